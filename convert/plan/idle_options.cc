#include <algorithm>

#include "convert/plan/passes.h"
#include "convert/recipe/default_recipes.h"
#include "formats/base/error.h"
#include "formats/composed.h"
#include "formats/dialect/dialect.h"

namespace ingot::convert {

using formats::Activations;
using formats::LogicalTensor;
using formats::SchemeId;

namespace {

template <typename Any>
bool any(const Plan& plan, const Any& test) {
  return std::ranges::any_of(plan.tensors, [&](const PlannedTensor& planned) {
    return planned.action != Action::kDrop && test(planned, plan.tensor_of(planned));
  });
}

bool is_quantized(const PlannedTensor& planned, const LogicalTensor&) {
  return formats::scheme_facts(planned.to).quantized;
}

bool has_static_inputs(const PlannedTensor& planned, const LogicalTensor&) {
  return planned.storage != nullptr && planned.storage->activations == Activations::kStatic;
}

bool is_changed(const PlannedTensor& planned, const LogicalTensor&) {
  return planned.action != Action::kCopy;
}

/// True if some weight is in the scheme of --to, made or kept. A plain scheme that changes no
/// tensor must be that of the linear layers, not only of norms.
bool takes_scheme(const Plan& plan) {
  const SchemeId to = *plan.recipe.to;
  const bool is_idle =
      !formats::scheme_facts(to).quantized && !any(plan, is_changed) &&
      any(plan, [to](const PlannedTensor& planned, const LogicalTensor& tensor) {
        return planned.to != to && tensor.rule != nullptr && tensor.rule->fp8_by_default;
      });
  return !is_idle && any(plan, [to](const PlannedTensor& planned, const LogicalTensor&) {
    return planned.to == to;
  });
}

bool takes_fp8_grid(const PlannedTensor& planned, const LogicalTensor&) {
  const quantize::Scheme* to = quantize::find_scheme(planned.to);
  return to != nullptr && to->takes_fp8_grid &&
         (planned.action == Action::kQuantize || planned.to == SchemeId::kFp8Block);
}

bool has_searches(const Plan& plan) {
  return any(plan, [&](const PlannedTensor& planned, const LogicalTensor&) {
    return searches_scales(plan, planned);
  });
}

/// Codes that are kept have that size already.
bool takes_group_size(const Plan& plan) {
  const std::uint64_t wanted = plan.recipe.choices.group_size.value_or(0);
  return any(plan, [&](const PlannedTensor& planned, const LogicalTensor& tensor) {
    if (!formats::scheme_facts(planned.to).chooses_cols) return false;
    return planned.action == Action::kQuantize ||
           tensor.encoding.block_cols == (wanted == 0 ? tensor.shape.back() : wanted);
  });
}

bool takes_activations(const Plan& plan) {
  const auto& wanted = plan.recipe.choices.activations;
  const formats::StoredActivations of_source(plan.source);
  return any(plan, [&](const PlannedTensor& planned, const LogicalTensor& tensor) {
    if (!is_quantized(planned, tensor)) return false;
    return wanted ==
           (planned.storage != nullptr ? planned.storage->activations : of_source.of(tensor));
  });
}

bool takes_unknown(const Plan& plan) {
  return std::ranges::any_of(plan.source.tensors(), [&](const LogicalTensor& tensor) {
    return any_matches(plan.recipe.allow.unknown_tensor, tensor.name);
  });
}

bool has_attention_on_request(const Plan& plan) {
  const auto lines = default_recipe_lines();
  return std::any_of(lines.begin(), lines.end(), [&](const DefaultRecipeLine& line) {
    return line.to == plan.recipe.to && line.treatment == Treatment::kOnRequest;
  });
}

/// True if the test holds for a tensor of the output.
template <auto test>
bool for_some(const Plan& plan) {
  return any(plan, test);
}

/// An option, and when it has an effect.
struct OptionScope {
  std::string_view option;
  std::string_view meaning;  ///< the effect of the option
  std::string_view lacking;  ///< the condition that is missing when it has no effect
  std::string_view remedy;
  bool (*acts)(const Plan& plan);
};

constexpr std::string_view kAllowUnknown = "--allow unknown-tensor";

constexpr OptionScope kScopes[] = {
    {"--to", "says which scheme weights have in the output", "no weight takes it",
     "see ingot list roles DIR, and give rules such as --rule SELECTOR=SCHEME", takes_scheme},
    {kAllowUnknown, "copies tensors that the family does not have", "no tensor is called so",
     "see the names in ingot inspect DIR", takes_unknown},
    {"--dialect", "says how quantized tensors are stored", "no tensor of the output is quantized",
     "use --to with a quantized scheme",
     [](const Plan& plan) {
       return plan.counts.demoted > 0 || plan.recipe.choices.kv_scales != nullptr ||
              any(plan, is_quantized);
     }},
    {"--activations", "belongs to quantized tensors that can have such activations",
     "the output has none", "choose another --to or --dialect", takes_activations},
    {"--activation-scales", "belongs to --activations static",
     "no tensor of the output has static activations", "add --activations static",
     for_some<has_static_inputs>},
    {"--input-scale", "belongs to --activations static",
     "no tensor of the output has static activations", "add --activations static",
     for_some<has_static_inputs>},
    {"--fp8-grid", "belongs to FP8 with scales of blocks, rows or tensors",
     "no tensor of the output is encoded so", "use --to fp8", for_some<takes_fp8_grid>},
    {"--scales-from", "gives the scales of fp8-block and int4-group",
     "no tensor is encoded as one of them", "use --to fp8 or int4",
     for_some<[](const PlannedTensor& planned, const LogicalTensor&) {
       return planned.scales != PlannedTensor::kNone;
     }>},
    {"--search", "chooses between scales", "no tensor is encoded under scales that leave a choice",
     "use --to with a quantized scheme, or --fp8-grid amax", has_searches},
    {"--zero-points", "gives int4-group zero points that are chosen with its scales",
     "no tensor is encoded as int4-group",
     "use --to int4; codes that the source has in INT4 stay: --group-size encodes them again",
     for_some<[](const PlannedTensor& planned, const LogicalTensor&) {
       return planned.adds_zero_points;
     }>},
    {"--importance", "weights the search of scales",
     "no tensor is encoded under scales that leave a choice",
     "use --to with a quantized scheme, or --fp8-grid amax", has_searches},
    {"--gptq", "carries the errors of columns on, in int4, nvfp4 and mxfp4",
     "no tensor is encoded as one of them under scales that leave a choice", "use --to int4",
     [](const Plan& plan) { return plan.counts.carriable > 0; }},
    {"--group-size", "says how many columns share an int4-group scale",
     "no tensor is encoded as int4-group", "use --to int4", takes_group_size},
    {"--via", "names the dtype to which values are rounded before they are encoded",
     "no tensor is encoded", "use --to with a quantized scheme",
     for_some<[](const PlannedTensor& planned, const LogicalTensor& tensor) {
       return goes_through_bands(tensor, planned);
     }>},
    {"--quantize-attention", "belongs to --to nvfp4, mxfp4 and int4", "another target is given",
     "use one of them", has_attention_on_request},
    {"--base-model", "is for the model card", "no tensor is changed, so README.md stays as it is",
     "use --to",
     [](const Plan& plan) { return plan.recipe.choices.prunes || for_some<is_changed>(plan); }},
};

}  // namespace

void refuse_idle_options(const Plan& plan) {
  const Recipe& recipe = plan.recipe;
  ErrorList idle;
  for (const OptionScope& row : kScopes) {
    // A file is read only when its option is given.
    const bool is_given = (row.option == "--to" && recipe.to) ||
                          (row.option == kAllowUnknown && !recipe.allow.unknown_tensor.empty()) ||
                          (row.option == "--importance" && recipe.choices.importance != nullptr) ||
                          std::ranges::find(recipe.given, row.option) != recipe.given.end();
    if (!is_given || row.acts(plan)) continue;
    idle.add(Error(ErrorCode::kInvalidArgument, "{} {}, but {} ({}, or leave it out)", row.option,
                   row.meaning, row.lacking, row.remedy));
  }
  idle.throw_if_any();
}

}  // namespace ingot::convert
