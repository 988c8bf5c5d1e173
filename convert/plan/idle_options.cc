#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "convert/plan/passes.h"
#include "convert/recipe/default_recipes.h"
#include "formats/base/error.h"
#include "formats/dialect/source_activations.h"

namespace ingot::convert {

using formats::Activations;
using formats::LogicalTensor;
using formats::SchemeId;

namespace {

struct Planned {
  const formats::Checkpoint& source;
  const Recipe& recipe;
  const Plan& plan;

  /// Whether `test(planned, tensor)` holds for a tensor of the output.
  template <typename Test>
  [[nodiscard]] bool any(const Test& test) const {
    return std::any_of(plan.tensors.begin(), plan.tensors.end(), [&](const PlannedTensor& planned) {
      return planned.action != Action::kDrop && test(planned, source.tensors()[planned.tensor]);
    });
  }
};

bool is_quantized(const PlannedTensor& planned, const LogicalTensor&) {
  return formats::scheme_facts(planned.to).quantized;
}

bool encodes_nvfp4(const PlannedTensor& planned, const LogicalTensor& tensor) {
  // Codes of MXFP4 are copied where they can be.
  return planned.action == Action::kQuantize && planned.to == SchemeId::kNvfp4 &&
         tensor.encoding.scheme != SchemeId::kMxfp4;
}

bool has_static_inputs(const PlannedTensor& planned, const LogicalTensor&) {
  return planned.spelling != nullptr && planned.spelling->activations == Activations::kStatic;
}

bool takes_fp8_grid(const PlannedTensor& planned, const LogicalTensor&) {
  const bool is_fp8 = planned.to == SchemeId::kFp8Block || planned.to == SchemeId::kFp8Channel ||
                      planned.to == SchemeId::kFp8Tensor;
  return is_fp8 && (planned.action == Action::kQuantize || planned.to == SchemeId::kFp8Block);
}

bool takes_activations(const Planned& output) {
  const auto& wanted = output.recipe.choices.activations;
  const formats::SourceActivations of_source(output.source.config(), output.source.dialect(),
                                             output.source.description());
  return output.any([&](const PlannedTensor& planned, const LogicalTensor& tensor) {
    if (!is_quantized(planned, tensor)) return false;
    return wanted == (planned.spelling != nullptr ? planned.spelling->activations
                                                  : of_source.of(tensor.name, tensor.encoding));
  });
}

bool has_attention_on_request(const Planned& output) {
  const auto lines = default_recipe_lines();
  return std::any_of(lines.begin(), lines.end(), [&](const DefaultRecipeLine& line) {
    return line.to == output.recipe.to && line.treatment == Treatment::kOnRequest;
  });
}

/// An option, and when it has an effect.
struct OptionScope {
  std::string_view option;
  std::string_view meaning;  ///< what it does
  std::string_view lacking;  ///< what is not so when it has no effect
  std::string_view remedy;
  bool (*acts)(const Planned& output);
};

constexpr std::array kScopes = {
    OptionScope{"--dialect", "says how quantized tensors are stored",
                "no tensor of the output is quantized", "use --to with a quantized scheme",
                [](const Planned& output) {
                  return output.plan.counts.demoted > 0 || output.any(is_quantized);
                }},
    OptionScope{"--activations", "belongs to quantized tensors that can have such activations",
                "the output has none", "choose another --to or --dialect", takes_activations},
    OptionScope{"--activation-scales", "belongs to --activations static",
                "no tensor of the output has static activations", "add --activations static",
                [](const Planned& output) { return output.any(has_static_inputs); }},
    OptionScope{"--input-scale", "belongs to --activations static",
                "no tensor of the output has static activations", "add --activations static",
                [](const Planned& output) { return output.any(has_static_inputs); }},
    OptionScope{"--fp8-grid", "belongs to FP8 with scales of blocks, rows or tensors",
                "no tensor of the output is encoded so", "use --to fp8",
                [](const Planned& output) { return output.any(takes_fp8_grid); }},
    OptionScope{"--scales-from", "gives the scales of fp8-block",
                "no tensor is encoded as fp8-block", "use --to fp8",
                [](const Planned& output) {
                  return output.any([](const PlannedTensor& planned, const LogicalTensor&) {
                    return planned.scales != PlannedTensor::kNone;
                  });
                }},
    OptionScope{"--nvfp4-search", "chooses the scales of nvfp4", "no tensor is encoded as nvfp4",
                "use --to nvfp4", [](const Planned& output) { return output.any(encodes_nvfp4); }},
    OptionScope{"--importance", "weights the search of nvfp4 scales",
                "no tensor is encoded as nvfp4", "use --to nvfp4",
                [](const Planned& output) { return output.any(encodes_nvfp4); }},
    OptionScope{"--via", "is what values pass through before they are encoded",
                "no tensor is encoded anew", "use --to with a quantized scheme",
                [](const Planned& output) {
                  return output.any([](const PlannedTensor& planned, const LogicalTensor& tensor) {
                    return goes_through_bands(tensor, planned);
                  });
                }},
    OptionScope{"--quantize-attention", "belongs to --to nvfp4 and mxfp4",
                "that is not what is asked for", "use one of them", has_attention_on_request},
};

}  // namespace

void refuse_idle_options(const PlanInputs& inputs, const Plan& plan) {
  const Recipe& recipe = inputs.recipe;
  const Planned output{.source = inputs.source, .recipe = recipe, .plan = plan};
  ErrorList idle;
  for (const OptionScope& row : kScopes) {
    // A file is only read for somebody who gave it.
    const bool is_given =
        (row.option == "--importance" && recipe.choices.importance != nullptr) ||
        std::find(recipe.given.begin(), recipe.given.end(), row.option) != recipe.given.end();
    if (!is_given || row.acts(output)) continue;
    idle.add(Error(ErrorCode::kInvalidArgument,
                   fmt::format("{} {}, but {} ({}, or leave it out)", row.option, row.meaning,
                               row.lacking, row.remedy)));
  }
  idle.throw_if_any();
}

}  // namespace ingot::convert
