#include <algorithm>
#include <array>
#include <map>
#include <set>

#include <fmt/format.h>

#include "convert/plan/passes.h"
#include "convert/recipe/statistics.h"
#include "formats/experts/separation.h"
#include "formats/modules/joined_module.h"
#include "quantize/error_feedback.h"

namespace ingot::convert {

using formats::LogicalTensor;

namespace {

constexpr std::string_view kNoRange = "--activation-scales has no input range for";
constexpr std::string_view kHasBias =
    "static W8A8 of modelslim folds a layer's bias into quant_bias, which this version does not "
    "do; use --activations dynamic, or keep";
constexpr std::string_view kNoSource =
    "--activations static needs --activation-scales STATS (ingot calibrate SOURCE --text TEXT "
    "--out STATS makes it), or --input-scale 1, for";

bool is_asymmetric(const formats::StorageRow& row) {
  return std::any_of(row.parts.begin(), row.parts.end(),
                     [](const auto& part) { return part.part == formats::Part::kInputOffset; });
}

InputScale scale_of(const PlannedTensor& planned, const InputRange& range) {
  if (is_asymmetric(*planned.storage)) return asymmetric_input_scale(range);
  return symmetric_input_scale(formats::scheme_facts(planned.to).code, range,
                               planned.storage->global_divides);
}

// A quant_bias without the layer's own bias would compute another model.
void refuse_biases(const Plan& plan, ErrorList& refusals) {
  std::set<std::string_view> names;
  for (const formats::LogicalTensor& tensor : plan.source.tensors()) {
    if (tensor.name.ends_with(".bias")) names.insert(tensor.name);
  }
  for (const PlannedTensor& planned : plan.tensors) {
    if (planned.storage == nullptr || !is_asymmetric(*planned.storage)) continue;
    const std::string_view module = formats::module_name(plan.tensor_of(planned).name);
    if (names.contains(fmt::format("{}.bias", module)))
      refusals.add(ErrorCode::kUnsupported, module, "{}", kHasBias);
  }
}

// True if --importance has a statistic of the inputs of some matrix of a tensor. Refuses another
// shape than this, gate and up of a stack with different ones, and columns that are no inputs.
bool has_inputs(const Plan& plan, const LogicalTensor& tensor, std::string_view ending,
                const formats::Shape& shape, ErrorList& refusals) {
  const Importance& importance = *plan.recipe.choices.importance;
  bool has_some = false;
  for (std::uint64_t matrix = 0; matrix < input_matrices(tensor); ++matrix) {
    const auto* const first = input_statistic(importance, plan.source, tensor, matrix, ending);
    if (first == nullptr) continue;
    has_some = true;
    const std::vector<std::string> modules = input_modules(plan.source, tensor, matrix);
    if (tensor.stack == formats::StackOrder::kInputMajor) {
      refusals.add(ErrorCode::kUnsupported, formats::module_name(tensor.name),
                   "columns of this stack are outputs, which --importance does not weigh "
                   "(--experts separate, or other weights)");
      break;
    }
    if (first->shape != shape) {
      refusals.add(ErrorCode::kShapeMismatch, modules.front(),
                   "--importance has {} of shape {} where the weight has {} columns",
                   ending.substr(1), formats::shape_text(first->shape), tensor.shape.back());
      continue;
    }
    const bool are_one = std::ranges::all_of(modules, [&](const std::string& module) {
      const auto* const other = importance.find_tensor(module, ending);
      return other == first ||
             (other != nullptr && other->shape == shape &&
              importance.file().values(*other) == importance.file().values(*first));
    });
    if (!are_one) {
      refusals.add(ErrorCode::kMismatch, modules.front(),
                   "--importance has another {} for gate than for up, which are one matrix of a "
                   "stack here (--experts separate)",
                   ending.substr(1));
    }
  }
  return has_some;
}

// True if --importance has moments of the inputs of a tensor, for groups of whole blocks of them.
bool has_moments(const Plan& plan, const PlannedTensor& planned, ErrorList& refusals) {
  constexpr std::uint64_t kBlock = formats::kMomentBlock;
  const LogicalTensor& tensor = plan.tensor_of(planned);
  const std::uint64_t cols = tensor.shape.back(), group = planned.block[1];
  if (cols % kBlock != 0 || (group % kBlock != 0 && group < cols)) return false;
  return has_inputs(plan, tensor, formats::kInputBlockMoments, {cols / kBlock, kBlock, kBlock},
                    refusals);
}

}  // namespace

std::string fused_module(const LogicalTensor& tensor) {
  std::string module =
      formats::joined_module(tensor.name, tensor.rule, formats::ExpertJoin::kExpert);
  return module.empty() ? std::string(formats::module_name(tensor.name)) : module;
}

bool keeps_inputs(const formats::StorageRow& row, const formats::Checkpoint& source,
                  const LogicalTensor& tensor) {
  using formats::Part;
  const formats::StoredParts& stored = tensor.encoding.stored;
  if (row.activations != formats::Activations::kStatic || !stored.has(Part::kInputScale) ||
      formats::element_count(source.stored()[stored[Part::kInputScale]].shape) != 1)
    return false;
  return std::ranges::all_of(
      std::array{Part::kInputScale, Part::kInputOffset, Part::kQuantBias, Part::kDeqScale},
      [&](Part part) {
        return stored.has(part) == (formats::find_part_row(row, part) != nullptr);
      });
}

void set_input_scales(Plan& plan, ErrorList& refusals) {
  const Choices& choices = plan.recipe.choices;
  std::map<std::string, std::optional<InputRange>> ranges;
  const auto for_each_static = [&](const auto& visit) {
    for (PlannedTensor& planned : plan.tensors) {
      if (planned.storage != nullptr && !planned.keeps_input &&
          planned.storage->activations == formats::Activations::kStatic)
        visit(planned, plan.tensor_of(planned));
    }
  };
  refuse_biases(plan, refusals);
  for_each_static([&](PlannedTensor& planned, const formats::LogicalTensor& tensor) {
    if (choices.input_scale) {
      const float scale = *choices.input_scale;
      planned.input = {.scale = planned.storage->global_divides ? 1.0F / scale : scale};
      return;
    }
    if (choices.activation_scales == nullptr) {
      refusals.add(ErrorCode::kMissingTensor, formats::module_name(tensor.name), "{}", kNoSource);
      return;
    }
    auto& range = ranges[fused_module(tensor)];
    for (std::uint64_t matrix = 0; matrix < input_matrices(tensor); ++matrix) {
      std::vector<std::string> modules = input_modules(plan.source, tensor, matrix);
      if (modules.empty()) modules.emplace_back(formats::module_name(tensor.name));
      for (const std::string& module : modules) {
        const auto found = choices.activation_scales->find(module);
        if (!found) {
          refusals.add(ErrorCode::kMissingTensor, module, "{}", kNoRange);
          return;
        }
        if (!range) range = found;
        range->include(*found);
      }
    }
  });
  for_each_static([&](PlannedTensor& planned, const formats::LogicalTensor& tensor) {
    const auto range = ranges.find(fused_module(tensor));
    if (range != ranges.end() && range->second) planned.input = scale_of(planned, *range->second);
  });
}

namespace {

// True if scales mean the same under codes that we encode.
bool can_be_taken(const formats::Checkpoint& release, const LogicalTensor& tensor) {
  const formats::SchemeFacts& facts = formats::scheme_facts(tensor.encoding.scheme);
  const formats::StoredParts& stored = tensor.encoding.stored;
  if (facts.scale_dtype == formats::DType::kF32) return true;  // F32 holds every dtype
  return release.stored()[stored[formats::Part::kScale]].dtype == facts.scale_dtype &&
         !stored.has(formats::Part::kZeroPoint) && !stored.has(formats::Part::kGroupOrder);
}

}  // namespace

void set_released_scales(Plan& plan, const ReleasedTensors& released, ErrorList& refusals) {
  if (plan.recipe.choices.scales_from == nullptr) return;
  const formats::Checkpoint& release = *plan.recipe.choices.scales_from;
  for (PlannedTensor& planned : plan.tensors) {
    if (planned.action != Action::kQuantize || !quantize::find_scheme(planned.to)->takes_scales)
      continue;
    const LogicalTensor& tensor = plan.tensor_of(planned);
    const LogicalTensor* found = released.find(tensor.name);
    if (found == nullptr) {
      refusals.add(ErrorCode::kMissingTensor, tensor.name, "--scales-from does not hold");
      continue;
    }
    if (found->encoding.scheme != planned.to || found->shape != tensor.shape ||
        std::array{found->encoding.block_rows, found->encoding.block_cols} != planned.block) {
      refusals.add(ErrorCode::kMismatch, tensor.name,
                   "--scales-from holds with another scheme, shape or block size");
      continue;
    }
    if (!can_be_taken(release, *found)) {
      refusals.add(ErrorCode::kUnsupported, tensor.name,
                   "--scales-from holds with zero points, an order of groups or "
                   "scales that are not {}",
                   dtype_name(formats::scheme_facts(planned.to).scale_dtype));
      continue;
    }
    planned.scales = static_cast<std::uint32_t>(found - release.tensors().data());
  }
}

bool searches_scales(const Plan& plan, const PlannedTensor& planned) {
  if (planned.action != Action::kQuantize || planned.scales != PlannedTensor::kNone) return false;
  // Codes of MXFP4 are copied where NVFP4 can have them.
  const bool is_repacked = planned.to == formats::SchemeId::kNvfp4 &&
                           plan.tensor_of(planned).encoding.scheme == formats::SchemeId::kMxfp4;
  return !is_repacked && can_search(*quantize::find_scheme(planned.to), plan.target.encode);
}

void set_importance(Plan& plan, ErrorList& refusals) {
  const Choices& choices = plan.recipe.choices;
  const bool wants_moments = choices.search == quantize::ScaleSearch::kHessian;
  if (choices.importance == nullptr) {
    if (!wants_moments) return;
    throw Error(ErrorCode::kInvalidArgument,
                "--search hessian needs --importance STATS, a directory with moments of inputs "
                "(ingot calibrate SOURCE --text TEXT --out STATS makes it; mse needs none)");
  }
  if (choices.search == quantize::ScaleSearch::kAmax) {
    throw Error(ErrorCode::kInvalidArgument,
                "--importance weights a search of scales, and --search amax is none (use "
                "mse)");
  }
  PlanCounts& counts = plan.counts;
  for (PlannedTensor& planned : plan.tensors) {
    const formats::LogicalTensor& tensor = plan.tensor_of(planned);
    if (!searches_scales(plan, planned)) continue;
    ++counts.searched;
    planned.by_moments = wants_moments && has_moments(plan, planned, refusals);
    const bool has_squares =
        has_inputs(plan, tensor, formats::kInputMeanSquare, {tensor.shape.back()}, refusals);
    planned.is_weighted = planned.by_moments || has_squares;
    if (planned.is_weighted) ++counts.weighted;
    if (planned.by_moments) ++counts.by_moments;
  }
  refusals.throw_if_any();
  if (counts.searched > 0 && (wants_moments ? counts.by_moments : counts.weighted) == 0) {
    throw Error(ErrorCode::kMissingTensor,
                "--importance has {} of none of the tensors whose scales are searched ({})",
                wants_moments ? "moments of the inputs" : "mean squares",
                wants_moments ? "--search hessian needs a directory of ingot calibrate with them"
                              : "made from another model?");
  }
}

bool can_carry_errors(const Plan& plan, const PlannedTensor& planned) {
  return quantize::can_carry_errors(planned.to) && searches_scales(plan, planned);
}

std::vector<const formats::StatisticTensor*> moments_of(const Plan& plan,
                                                        const PlannedTensor& planned) {
  const LogicalTensor& tensor = plan.tensor_of(planned);
  std::vector<const formats::StatisticTensor*> moments;
  for (std::uint64_t matrix = 0; matrix < input_matrices(tensor); ++matrix)
    moments.push_back(input_statistic(*plan.recipe.choices.importance, plan.source, tensor, matrix,
                                      formats::kInputMoments));
  return moments;
}

void set_moments(Plan& plan, ErrorList& refusals) {
  const Choices& choices = plan.recipe.choices;
  if (!choices.gptq) return;
  if (choices.importance == nullptr) {
    throw Error(ErrorCode::kInvalidArgument,
                "--gptq needs the second moments of inputs: --importance STATS, a directory that "
                "ingot calibrate wrote");
  }
  for (PlannedTensor& planned : plan.tensors) {
    if (!can_carry_errors(plan, planned)) continue;
    ++plan.counts.carriable;
    const formats::LogicalTensor& tensor = plan.tensor_of(planned);
    const std::uint64_t cols = tensor.shape.back();
    if (!has_inputs(plan, tensor, formats::kInputMoments, {cols, cols}, refusals)) continue;
    planned.carries_errors = true;
    ++plan.counts.carrying;
  }
  refusals.throw_if_any();
  if (plan.counts.carriable > 0 && plan.counts.carrying == 0) {
    throw Error(ErrorCode::kMissingTensor,
                "--importance has input_moments of none of the tensors that --gptq is for (ingot "
                "calibrate --out DIRECTORY keeps them, a single file does not)");
  }
}

namespace {

bool has_global(const PlannedTensor& planned) {
  const quantize::Scheme* scheme = quantize::find_scheme(planned.to);
  return scheme != nullptr && scheme->global != nullptr;
}

// Their global scales are compared (agree_on_globals).
bool keeps_codes(const PlannedTensor& planned) {
  return planned.action == Action::kCopy || planned.action == Action::kRewrap;
}

void require_alike(const Plan& plan, const std::vector<std::uint32_t>& fused, ErrorList& refusals) {
  const PlannedTensor& first = plan.tensors[fused.front()];
  const std::string& first_name = plan.tensor_of(first).name;
  const auto is_quantized = [](const PlannedTensor& planned) {
    return formats::scheme_facts(planned.to).quantized;
  };
  for (const std::uint32_t index : fused) {
    const PlannedTensor& other = plan.tensors[index];
    const std::string& name = plan.tensor_of(other).name;
    if (other.to != first.to && (is_quantized(other) || is_quantized(first))) {
      refusals.add(ErrorCode::kInvalidArgument, name,
                   "loaders fuse it with {}, which becomes {} (give both one scheme)", first_name,
                   scheme_name(first.to));
    } else if (has_global(first) && other.action != first.action &&
               !(keeps_codes(first) && keeps_codes(other) &&
                 plan.recipe.choices.composed != nullptr)) {
      refusals.add(ErrorCode::kInvalidArgument, name,
                   "loaders fuse it with {}, and the two would have different global "
                   "scales (cast the source to bf16 first)",
                   first_name);
    }
  }
}

}  // namespace

namespace {

// A set of which some values change in their own scheme is encoded as one where it shares a scale:
// the others keep their codes only if the changed ones fit under it.
void join_changed(Plan& plan, const std::vector<std::uint32_t>& fused) {
  const auto again = std::ranges::find_if(fused, [&](std::uint32_t index) {
    const PlannedTensor& planned = plan.tensors[index];
    return planned.is_changed && planned.action == Action::kQuantize && has_global(planned) &&
           planned.to == plan.tensor_of(planned).encoding.scheme;
  });
  if (again == fused.end()) return;
  const PlannedTensor& changed = plan.tensors[*again];
  for (const std::uint32_t index : fused) {
    PlannedTensor& planned = plan.tensors[index];
    if (!keeps_codes(planned) || planned.to != changed.to || changed.storage == nullptr) continue;
    const formats::Encoding& encoding = plan.tensor_of(planned).encoding;
    planned.action = Action::kQuantize;
    planned.storage = changed.storage;
    planned.keeps_input = changed.keeps_input;
    planned.block = {encoding.block_rows, encoding.block_cols};
    planned.may_keep_codes = !encoding.stored.has(formats::Part::kGlobal) ||
                             encoding.global_divides == planned.storage->global_divides;
  }
}

}  // namespace

void join_fused_tensors(Plan& plan, ErrorList& refusals) {
  std::map<std::string, std::vector<std::uint32_t>> by_key;
  for (std::uint32_t i = 0; i < plan.tensors.size(); ++i) {
    if (plan.tensors[i].action == Action::kDrop) continue;
    by_key[fused_module(plan.tensor_of(plan.tensors[i]))].push_back(i);
  }
  for (auto& [key, fused] : by_key) {
    join_changed(plan, fused);
    require_alike(plan, fused, refusals);
    const PlannedTensor& first = plan.tensors[fused.front()];
    if (first.action == Action::kQuantize && has_global(first))
      plan.fused_sets.push_back(std::move(fused));
  }
  std::sort(plan.fused_sets.begin(), plan.fused_sets.end());
  for (std::uint32_t set = 0; set < plan.fused_sets.size(); ++set) {
    for (const std::uint32_t index : plan.fused_sets[set]) plan.tensors[index].fused_set = set;
  }
}

std::string expert_form_fault(const Plan& plan, const PlannedTensor& planned) {
  const formats::Dialect& dialect = *plan.target.dialect;
  const Choices& choices = plan.recipe.choices;
  const formats::SchemeFacts& facts = formats::scheme_facts(planned.to);
  const formats::StorageRow* row = formats::find_storage(dialect, planned.to, choices.activations);
  if (row == nullptr || row->experts == formats::ExpertForm::kEither) return {};
  const bool is_stack = plan.tensor_of(planned).shape.size() > 2;
  if (row->experts == formats::ExpertForm::kStacked) {
    if (is_stack) return {};
    return fmt::format(
        "dialect {} holds {} only in stacks of experts (--experts stacked, or --dialect "
        "compressed-tensors)",
        dialect.name, facts.name);
  }
  // A number for all of a matrix would be one for all experts; INT4 packs only matrices.
  const bool may_be_asked_for = !facts.chooses_cols && facts.group_rows != 0;
  if (!is_stack || (choices.experts && may_be_asked_for)) return {};
  const bool can_be_separate =
      formats::separation_fault(plan.source, plan.tensor_of(planned)).empty();
  return fmt::format(
      "stacked experts cannot be encoded as {}, which loaders expect expert by "
      "expert ({}{}choose fp8 or bf16 for them)",
      facts.name, can_be_separate ? "--experts separate, or " : "",
      !can_be_separate && may_be_asked_for ? "--experts keep for another program, or " : "");
}

}  // namespace ingot::convert
