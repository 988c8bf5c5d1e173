
#include <algorithm>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "convert/convert.h"
#include "convert/output/planned_checkpoint.h"
#include "engines/modules/modules.h"
#include "engines/verdicts.h"
#include "formats/base/error.h"

namespace ingot::convert {

using engines::EngineLimit;
using engines::EngineRow;
using formats::Checkpoint;
using formats::LogicalTensor;
using formats::SchemeId;

namespace {

/// The limit of an engine about shared experts that it fuses; null: it fuses none.
const EngineLimit* fusing_limit(const EngineRow& engine) {
  const auto limit =
      std::ranges::find(engine.limits, engines::EngineScope::kFusedOtherwise, &EngineLimit::scope);
  return limit == engine.limits.end() ? nullptr : &*limit;
}

bool may_choose(const Recipe& recipe, const Checkpoint& source, const PlanOptions& options) {
  const engines::FusedLayers layers = engines::fusible_layers(source.config());
  return recipe.choices.engine != nullptr && fusing_limit(*recipe.choices.engine) != nullptr &&
         recipe.to && is_quantized(*recipe.to) && !options.layout->is_sliced &&
         (layers.in_model || layers.in_draft);
}

/// A planned output as the engine of --for sees it.
struct FusedView {
  bool loads = false;
  std::set<std::string> otherwise;  ///< shared experts that load only with the option
};

FusedView view_of(const Plan& plan) {
  const Checkpoint output = planned_checkpoint(plan, std::nullopt, 1);
  const engines::EngineInput input(output);
  const engines::Serving serving = {.has_power_of_two_scales = plan.target.power_of_two_scales};
  FusedView view;
  for (const engines::EngineWeight& weight : engines::engine_weights(output, input, serving)) {
    if (weight.fused_otherwise != engines::FusedOtherwise::kNo) view.otherwise.emplace(weight.name);
  }
  view.loads = engines::engine_verdict(output, input, *plan.recipe.choices.engine, serving).loads;
  return view;
}

bool is_shared_expert(const LogicalTensor& tensor) {
  return tensor.layer && tensor.rule != nullptr &&
         formats::kSharedExpertRoles.has(tensor.rule->role);
}

/// True if the user has decided about a tensor: by a rule, or by --mtp.
bool is_decided_by_user(const Decision& decision) {
  return decision.rule != nullptr &&
         (decision.rule->origin != RuleOrigin::kDefault || decision.rule->first_layer);
}

using LayerSet = std::set<std::uint64_t>;

/// `1-3,7`.
std::string layers_text(const LayerSet& layers) {
  std::string text;
  for (auto first = layers.begin(); first != layers.end();) {
    auto last = first;
    while (std::next(last) != layers.end() && *std::next(last) == *last + 1) ++last;
    text += text.empty() ? "" : ",";
    text += first == last ? fmt::format("{}", *first) : fmt::format("{}-{}", *first, *last);
    first = std::next(last);
  }
  return text;
}

/// The layers of shared experts that are stored otherwise, by the word of the scheme that makes
/// them alike; empty where the user has decided about one.
std::map<std::string_view, LayerSet> layers_by_word(const Plan& plan,
                                                    const std::set<std::string>& otherwise) {
  std::map<std::uint64_t, SchemeId> routed;
  for (const PlannedTensor& planned : plan.tensors) {
    const LogicalTensor& tensor = plan.tensor_of(planned);
    if (tensor.layer && tensor.rule != nullptr && is_routed_expert(tensor.rule->role))
      routed.try_emplace(*tensor.layer, planned.to);
  }
  std::map<std::string_view, LayerSet> by_word;
  for (const LogicalTensor& tensor : plan.source.tensors()) {
    if (!is_shared_expert(tensor) || !otherwise.contains(tensor.name)) continue;
    if (is_decided_by_user(plan.recipe.decide(tensor))) return {};
    const SchemeId scheme = routed.at(*tensor.layer);
    const bool is_plain = !is_quantized(scheme) && !is_quantized(tensor.encoding.scheme);
    by_word[is_plain ? "keep" : scheme_name(scheme)].insert(*tensor.layer);
  }
  return by_word;
}

std::vector<Rule> rules_of(const Plan& plan, const std::map<std::string_view, LayerSet>& by_word) {
  LayerSet all;
  for (const LogicalTensor& tensor : plan.source.tensors()) {
    if (is_shared_expert(tensor)) all.insert(*tensor.layer);
  }
  std::vector<Rule> rules;
  for (const auto& [word, layers] : by_word) {
    const std::string selector =
        layers == all ? "role:shared-experts"
                      : fmt::format("role:shared-experts&layers:{}", layers_text(layers));
    rules.push_back(make_rule(selector, word, RuleOrigin::kDefault));
  }
  return rules;
}

}  // namespace

Plan plan_with_alike_experts(const Checkpoint& source, Recipe recipe, const PlanOptions& options,
                             SourceFacts facts) {
  if (!may_choose(recipe, source, options))
    return make_plan(source, std::move(recipe), options, std::move(facts));
  Plan plan = make_plan(source, recipe, options, facts);
  const auto by_word = layers_by_word(plan, view_of(plan).otherwise);
  if (by_word.empty()) return plan;
  const auto first_default = std::ranges::find(recipe.rules, RuleOrigin::kDefault, &Rule::origin);
  std::vector<Rule> rules = rules_of(plan, by_word);
  recipe.rules.insert(first_default, std::make_move_iterator(rules.begin()),
                      std::make_move_iterator(rules.end()));
  try {
    Plan alike = make_plan(source, std::move(recipe), options, std::move(facts));
    const FusedView view = view_of(alike);
    if (!view.loads || !view.otherwise.empty()) return plan;
    std::vector<std::string_view> words;
    for (const auto& [word, layers] : by_word)
      words.push_back(word == "keep" ? std::string_view("plain") : word);
    const EngineRow& engine = *alike.recipe.choices.engine;
    alike.warnings.push_back(fmt::format(
        "shared experts are {} as the routed ones are: {} loads them as further routed ones, and "
        "needs {} if they are stored otherwise (--rule role:shared-experts=SCHEME decides)",
        fmt::join(words, ", "), engine.name, fusing_limit(engine)->option));
    return alike;
  } catch (const Error&) {
    // The form of the routed ones cannot be written of them, as without statistics of their inputs:
    // the option is left.
    return plan;
  }
}

}  // namespace ingot::convert
