
#include <algorithm>
#include <utility>
#include <vector>

#include "convert/convert.h"
#include "convert/plan/passes.h"
#include "convert/recipe/default_recipes.h"
#include "convert/recipe/engine_choice.h"
#include "engines/limits.h"
#include "formats/base/error.h"
#include "formats/checkpoint/stored_facts.h"
#include "formats/dialect/input_major.h"
#include "formats/experts/expert_views.h"
#include "formats/storage/stack_form.h"

namespace ingot::convert {

using formats::Checkpoint;
using formats::ExpertForm;
using formats::LogicalTensor;
using formats::StackOrder;

namespace {

/// The recipe with the choices of engine, family and dialect.
Recipe resolved(Recipe recipe, const Checkpoint& source, const PlanOptions& options) {
  choose_for_engine(recipe, source, *options.layout);
  add_default_rules(recipe, source.family(), source.config(), target_dialect(recipe, source),
                    formats::narrower_dtype(source), formats::has_plain_only(source));
  recipe.set_layers(source.config().num_hidden_layers);
  return recipe;
}

bool is_quantized_target(const Recipe& recipe) {
  return recipe.to && formats::scheme_facts(*recipe.to).quantized;
}

bool has_odd_stacks(const Checkpoint& source) {
  return std::ranges::any_of(source.tensors(), [](const LogicalTensor& tensor) {
    return tensor.rule != nullptr && (tensor.rule->stack == StackOrder::kInputMajor ||
                                      tensor.rule->gate_up == formats::GateUpOrder::kInterleaved);
  });
}

bool has_globals(const Checkpoint& source, const LogicalTensor& tensor) {
  const formats::StoredParts& stored = tensor.encoding.stored;
  return stored.has(formats::Part::kGlobal) &&
         formats::element_count(source.stored()[stored[formats::Part::kGlobal]].shape) != 1;
}

bool has_globals_by_expert(const Checkpoint& source) {
  return std::ranges::any_of(source.tensors(), [&](const LogicalTensor& tensor) {
    return tensor.stack != StackOrder::kNone && has_globals(source, tensor);
  });
}

/// The form of experts that loaders read in the scheme of --to.
ExpertForm form_of_target(Recipe recipe, const Checkpoint& source, const PlanOptions& options) {
  recipe = resolved(std::move(recipe), source, options);
  if (!is_quantized_target(recipe)) return ExpertForm::kEither;
  const formats::StorageRow* row =
      formats::find_storage(target_dialect(recipe, source), *recipe.to, recipe.choices.activations);
  return row == nullptr ? ExpertForm::kEither : row->experts;
}

void refuse_idle(std::string_view word, std::string_view fact) {
  throw Error(ErrorCode::kInvalidArgument, "--experts {} has no effect: {} (leave it out)", word,
              fact);
}

/// True if ranks of the engine skip experts of others only where files have them one by one.
bool reads_fewer_singles(const engines::EngineRow& engine, const formats::Family& family) {
  return !engine.skip_option.empty() && engines::takes_singles(engine, family);
}

using Seen = std::shared_ptr<const Checkpoint>;

Seen seen(Checkpoint source) {
  return std::make_shared<const Checkpoint>(std::move(source));
}

Seen in_form(Seen source, const Recipe& recipe, const PlanOptions& options) {
  const bool has_stacks = formats::holds_stacks(*source);
  const bool has_singles = formats::holds_single_experts(*source);
  if (const auto choice = recipe.choices.experts) {
    if (*choice == ExpertChoice::kSeparate) {
      if (!has_stacks) refuse_idle("separate", "no experts are stacked here");
      return seen(formats::with_single_experts(std::move(source)));
    }
    if (*choice == ExpertChoice::kStacked) {
      if (!has_singles && !has_stacks) refuse_idle("stacked", "no routed experts are here");
      if (has_singles) return seen(formats::with_stacked_experts(std::move(source)));
    }
    return source;
  }
  if ((!has_stacks && !has_singles) || source->slicing() != nullptr) return source;
  ExpertForm form = form_of_target(recipe, *source, options);
  // Experts with one number over the scales of each are decoded one by one.
  if (recipe.to && has_globals_by_expert(*source)) form = ExpertForm::kSeparate;
  // Loaders know quantized stacks only in the form of transformers 5. No loader of a family in a
  // user's file is known: its stacks stay stacks.
  const bool is_of_user = !source->family().file_hash.empty();
  if (form == ExpertForm::kEither && is_quantized_target(recipe) && has_odd_stacks(*source) &&
      !is_of_user)
    form = ExpertForm::kSeparate;
  const engines::EngineRow* engine = recipe.choices.engine;
  if (form == ExpertForm::kEither && engine != nullptr && !is_of_user &&
      (!engines::takes_stacks(*engine, source->family().name) ||
       reads_fewer_singles(*engine, source->family())))
    form = ExpertForm::kSeparate;
  if (form == ExpertForm::kSeparate && has_stacks && formats::separation_fault(*source).empty())
    return seen(formats::with_single_experts(std::move(source)));
  if (form == ExpertForm::kStacked && has_singles && formats::stacking_fault(*source).empty())
    return seen(formats::with_stacked_experts(std::move(source)));
  return source;
}

/// The stacks whose order is another than this one of their row, as plain, or as schemes that turn
/// them have it.
template <typename IsTurned>
std::vector<std::uint32_t> stacks_to_turn(const Checkpoint& source, const IsTurned& is_turned) {
  std::vector<std::uint32_t> stacks;
  for (std::uint32_t i = 0; i < source.tensors().size(); ++i) {
    const LogicalTensor& tensor = source.tensors()[i];
    if (tensor.stack == StackOrder::kNone) continue;
    if (formats::stack_order(*tensor.rule, is_turned(i)) != tensor.stack) stacks.push_back(i);
  }
  return stacks;
}

/// Returns true for each tensor of the output that has a scheme which turns stacks. The output is
/// planned with every stack output-major, because shapes decide whether a tensor can be quantized.
std::vector<bool> turned_in_output(const Seen& source, Recipe recipe, const PlanOptions& options) {
  const auto always = [](std::uint32_t) { return true; };
  const Checkpoint seen = formats::with_turned_stacks(source, stacks_to_turn(*source, always));
  recipe = resolved(std::move(recipe), seen, options);
  const formats::Dialect& dialect = target_dialect(recipe, seen);
  Plan plan{.source = seen,
            .recipe = std::move(recipe),
            .options = options,
            .source_facts = {.quantization = remembered_quantization(seen)},
            .target = {.dialect = &dialect}};
  decide(plan);
  std::vector<bool> is_turned(seen.tensors().size());
  for (const PlannedTensor& planned : plan.tensors)
    is_turned[planned.tensor] = formats::turns_stacks(planned.to);
  return is_turned;
}

}  // namespace

Seen as_written(Seen source, const Recipe& recipe, const PlanOptions& options) {
  // Apart: a call may move the source before it makes its other arguments.
  const Recipe whole = resolved(recipe, *source, options);
  source = with_caches_as_written(std::move(source), whole);
  source = in_form(std::move(source), recipe, options);
  const bool may_turn = std::ranges::any_of(source->tensors(), [](const LogicalTensor& tensor) {
    return tensor.stack == StackOrder::kInputMajor ||
           (tensor.stack != StackOrder::kNone && tensor.rule->stack == StackOrder::kInputMajor);
  });
  if (!may_turn) return source;
  const std::vector<bool> is_turned = turned_in_output(source, recipe, options);
  const std::vector<std::uint32_t> turned =
      stacks_to_turn(*source, [&](std::uint32_t i) { return is_turned[i]; });
  if (turned.empty()) return source;
  return seen(formats::with_turned_stacks(source, turned));
}

bool is_copied_as_stored(const Checkpoint& source, const Recipe& recipe,
                         const PlanOptions& options) {
  const bool is_plain_copy = !recipe.to && recipe.rules.empty() && !recipe.mtp &&
                             recipe.given.empty() && recipe.choices.editors.empty() &&
                             recipe.choices.engine == nullptr &&
                             recipe.choices.dialect.empty() && !recipe.choices.experts &&
                             !recipe.choices.n_layers && recipe.choices.kept_experts.empty() &&
                             recipe.choices.repair == nullptr &&
                             options.layout == formats::find_layout("hf");
  // Fewer experts are no reason to pack codes otherwise.
  if (is_plain_copy && recipe.choices.prunes &&
      formats::input_major_dialect(source.config()) != nullptr)
    return true;
  return is_plain_copy && std::ranges::any_of(source.tensors(), [&](const LogicalTensor& tensor) {
           return tensor.encoding.is_reordered || has_globals(source, tensor);
         });
}

}  // namespace ingot::convert
