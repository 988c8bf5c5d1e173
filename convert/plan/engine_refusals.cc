#include <string_view>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "convert/plan/passes.h"
#include "engines/limits.h"

namespace ingot::convert {

void refuse_what_no_engine_loads(const Plan& plan, ErrorList& refusals) {
  const formats::Dialect& dialect = *plan.target.dialect;
  engines::EngineLimitsMet met(dialect);
  std::vector<engines::EngineWeight> weights;
  for (const PlannedTensor& planned : plan.tensors) {
    const formats::LogicalTensor& tensor = plan.tensor_of(planned);
    // A tensor that is copied is as the source's maker wanted it.
    if (planned.storage == nullptr || any_matches(plan.recipe.allow.engine_refuses, tensor.name))
      continue;
    const auto keeps = [&](formats::Part part) {
      return planned.action == Action::kRewrap && tensor.encoding.stored.has(part);
    };
    weights.push_back({.name = tensor.name,
                       .rule = tensor.rule,
                       .scheme = planned.to,
                       .activations = planned.storage->activations,
                       .has_group_order = keeps(formats::Part::kGroupOrder),
                       .has_zero_points = keeps(formats::Part::kZeroPoint),
                       .family = plan.source.family().name,
                       .is_stacked = tensor.stack != formats::StackOrder::kNone});
    met.add(weights.back());
  }
  if (!met.is_refused_by_all()) return;
  std::vector<std::string_view> names;
  for (const engines::EngineRow* engine : engines::judged_versions()) names.push_back(engine->name);
  for (const engines::EngineWeight& weight : weights) {
    for (const auto& [engine, limit] : engines::limits_of_all(dialect, weight)) {
      if (!limit->is_refusal() || !limit->is_of_form()) continue;
      refusals.add(
          ErrorCode::kUnsupported,
          fmt::format(
              "none of {} loads this: {} refuses {} with {} activations in dialect {} "
              "({}); it loads {} (--allow 'engine-refuses=PATTERN' writes it "
              "anyway)",
              fmt::join(names, ", "), engine->name, formats::scheme_facts(weight.scheme).name,
              activations_name(weight.activations), dialect.name, limit->reason, limit->instead),
          weight.name);
    }
  }
}

}  // namespace ingot::convert
