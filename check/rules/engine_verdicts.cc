#include "check/rules/engine_verdicts.h"

#include <algorithm>
#include <optional>
#include <set>
#include <tuple>

#include <fmt/format.h>

#include "formats/base/error.h"
#include "formats/dialect/engine_families.h"
#include "formats/dialect/source_activations.h"

namespace ingot::check {

using formats::Activations;
using formats::Checkpoint;
using formats::EngineLimit;
using formats::EngineLoad;
using formats::EngineWeight;
using formats::LogicalTensor;
using formats::SchemeId;

namespace {

bool is_quantized(SchemeId scheme) {
  return formats::scheme_facts(scheme).quantized;
}

EngineWeight weight_of(const Checkpoint& checkpoint, const LogicalTensor& tensor,
                       Activations activations) {
  const formats::StoredParts& stored = tensor.encoding.stored;
  return {.name = tensor.name,
          .rule = tensor.rule,
          .scheme = tensor.encoding.scheme,
          .activations = activations,
          .has_group_order = stored.has(formats::Part::kGroupOrder),
          .has_zero_points = stored.has(formats::Part::kZeroPoint),
          .family = checkpoint.family().name,
          .is_stacked = tensor.stack != formats::StackOrder::kNone,
          .rows = tensor.shape.size() < 2 ? 0 : tensor.shape[tensor.shape.size() - 2],
          .block_rows = tensor.encoding.block_rows};
}

// One weight of each kind that engines tell apart, in the order of the checkpoint: quantized ones,
// or matrices where nothing is quantized.
std::vector<EngineWeight> kinds_of(const Checkpoint& checkpoint) {
  std::vector<EngineWeight> all = engine_weights(checkpoint);
  if (all.empty()) {
    for (const LogicalTensor& tensor : checkpoint.tensors()) {
      if (tensor.shape.size() < 2 || is_quantized(tensor.encoding.scheme) ||
          tensor.encoding.scheme == SchemeId::kRaw)
        continue;
      all.push_back(weight_of(checkpoint, tensor, {}));
    }
  }
  std::set<std::tuple<SchemeId, Activations, std::vector<const EngineLimit*>>> seen;
  std::erase_if(all, [&](const EngineWeight& weight) {
    return !seen.emplace(weight.scheme, weight.activations,
                         formats::limits_of(checkpoint.dialect(), weight))
                .second;
  });
  return all;
}

std::string what_is_not_read(const EngineWeight& weight, const formats::Dialect& dialect) {
  const std::string_view scheme = formats::scheme_facts(weight.scheme).name;
  if (!is_quantized(weight.scheme)) return fmt::format("it is not known to read {}", scheme);
  return fmt::format("it is not known to read {} with {} activations in dialect {}", scheme,
                     activations_name(weight.activations), dialect.name);
}

EngineVerdict verdict_of(formats::Engine engine, const formats::Dialect& dialect,
                         const std::vector<EngineWeight>& kinds) {
  EngineVerdict verdict{.engine = engine, .loads = true, .options = {}, .tensor = {}, .reason = {}};
  const auto needs = [&](std::string_view option) {
    if (option.empty() || std::ranges::find(verdict.options, option) != verdict.options.end())
      return;
    verdict.options.emplace_back(option);
  };
  for (const EngineWeight& weight : kinds) {
    const EngineLimit* limit = formats::limit_of(engine, dialect, weight);
    const EngineLoad* load = formats::find_load(engine, dialect, weight.scheme, weight.activations);
    const bool is_refused = limit != nullptr && limit->option.empty();
    if (is_refused || load == nullptr) {
      verdict.loads = false;
      verdict.is_known = is_refused;
      verdict.tensor = weight.name;
      verdict.reason = is_refused ? fmt::format("{} (it loads {})", limit->reason, limit->instead)
                                  : what_is_not_read(weight, dialect);
      return verdict;
    }
    const formats::Evidence of_family =
        formats::family_evidence(engine, weight.family, weight.scheme);
    verdict.evidence = std::max({verdict.evidence, load->evidence, of_family});
    needs(load->option);
    if (limit != nullptr) needs(limit->option);
  }
  // Options name one way of quantization for the whole model.
  const auto other = std::ranges::find_if(
      kinds, [&](const EngineWeight& weight) { return weight.scheme != kinds.front().scheme; });
  if (!verdict.options.empty() && other != kinds.end()) {
    verdict.loads = false;
    verdict.tensor = other->name;
    verdict.reason =
        fmt::format("it needs {}, which is for all weights, and there are {} and {}",
                    verdict.options.front(), formats::scheme_facts(kinds.front().scheme).name,
                    formats::scheme_facts(other->scheme).name);
  }
  return verdict;
}

}  // namespace

std::vector<EngineWeight> engine_weights(const Checkpoint& checkpoint) {
  std::vector<EngineWeight> weights;
  if (checkpoint.slicing() != nullptr) return weights;
  std::optional<formats::SourceActivations> activations;
  try {
    activations.emplace(checkpoint.config(), checkpoint.dialect(), checkpoint.description());
  } catch (const Error&) {
    return weights;
  }
  for (const LogicalTensor& tensor : checkpoint.tensors()) {
    if (!is_quantized(tensor.encoding.scheme)) continue;
    weights.push_back(weight_of(checkpoint, tensor, activations->of(tensor.name, tensor.encoding)));
  }
  return weights;
}

std::vector<EngineVerdict> engine_verdicts(const Checkpoint& checkpoint) {
  const std::vector<EngineWeight> kinds = kinds_of(checkpoint);
  std::vector<EngineVerdict> verdicts;
  for (const formats::EngineFacts& facts : formats::engines())
    verdicts.push_back(verdict_of(facts.engine, checkpoint.dialect(), kinds));
  return verdicts;
}

}  // namespace ingot::check
