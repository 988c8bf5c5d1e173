#include "formats/checkpoint/missing_tensors.h"

#include <deque>
#include <optional>
#include <set>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

#include "formats/checkpoint/family_match.h"
#include "formats/recognition/part_names.h"
#include "formats/records/rank_holdings.h"

namespace ingot::formats {
namespace {

constexpr RoleSet kIndexerOnly = {Role::kIndexerQ, Role::kIndexerK, Role::kIndexerKNorm,
                                  Role::kIndexerWeights};

// The tensors that are here, by name and by layer.
struct Present {
  std::unordered_set<std::string_view> names;  // names of weights, whatever their codes are called
  std::deque<std::string> spelled;             // those of weights that were not understood
  std::set<std::uint32_t> layers;              // layers with at least one tensor
  std::set<std::uint32_t> stacked_layers;      // layers with experts in one tensor
};

Present list_present(const Checkpoint& checkpoint) {
  Present present;
  const auto stored = checkpoint.stored();
  present.names.reserve(stored.size());
  // Names by which rows know the weights that were understood, and the other parts of these
  // weights.
  std::vector<std::string_view> known(stored.size());
  std::vector<bool> is_part(stored.size());
  for (const LogicalTensor& tensor : checkpoint.tensors()) {
    present.names.insert(tensor.name);
    if (!tensor.layer) continue;
    known[tensor.encoding.stored.weight()] = tensor.name;
    tensor.encoding.stored.for_each(
        [&](Part part, std::uint32_t index) { is_part[index] = part != Part::kWeight; });
    present.layers.insert(*tensor.layer);
    if (tensor.rule != nullptr && tensor.rule->presence == Presence::kStacked)
      present.stacked_layers.insert(*tensor.layer);
  }
  // A tensor that could not be understood (no scale, say) is still not missing.
  const NameGrammar grammar(checkpoint.family(), checkpoint.config());
  for (std::size_t i = 0; i < stored.size(); ++i) {
    if (is_part[i]) continue;
    std::string name = weight_name(stored[i]);
    if (name == known[i]) continue;
    const auto match = grammar.match(name);
    present.names.insert(present.spelled.emplace_back(std::move(name)));
    if (match && match->layer) present.layers.insert(*match->layer);
  }
  return present;
}

Gap gap_of(const ExpectedTensor& tensor, const ModelConfig& config, const Present& present) {
  if (tensor.layer && *tensor.layer >= config.num_hidden_layers) {
    return present.layers.contains(*tensor.layer) ? Gap::kMtpTensor : Gap::kMtpLayer;
  }
  if (kIndexerOnly.has(tensor.rule->role)) return Gap::kIndexer;
  if (tensor.rule->role == Role::kRouterBias) return Gap::kCorrectionBias;
  if (is_of_routed_expert(tensor.rule->role)) return Gap::kExpert;
  return Gap::kOther;
}

}  // namespace

MissingTensors::MissingTensors(const Checkpoint& checkpoint) {
  // Without any weights the promises cannot be compared.
  if (checkpoint.stored().empty()) return;
  const ModelConfig& config = checkpoint.config();
  const Present present = list_present(checkpoint);
  uneven_ = uneven_experts(checkpoint.family(), config, checkpoint.stored());
  std::optional<RankHoldings> holdings;
  if (const SlicingRecord* slicing = checkpoint.slicing()) holdings.emplace(*slicing, config);
  const auto visit = [&](const ExpectedTensor& tensor, bool stacked) {
    if (holdings && holdings->of(*tensor.rule, tensor.layer, tensor.expert) != Holding::kPromised)
      return;
    const bool is_of_expert = is_of_routed_expert(tensor.rule->role);
    if (is_of_expert && tensor.layer && uneven_.contains(*tensor.layer)) return;
    const bool in_stacked_layer = tensor.layer && present.stacked_layers.contains(*tensor.layer);
    const bool wanted = is_of_expert ? in_stacked_layer == stacked : !stacked;
    if (!wanted || present.names.contains(tensor.name)) return;
    if (checkpoint.may_have_lost(tensor.name)) return;
    names_[gap_of(tensor, config, present)].push_back(tensor.name);
  };
  for (const bool stacked : {false, true}) {
    if (stacked && present.stacked_layers.empty()) break;
    for_each_expected(checkpoint.family(), config, stacked,
                      [&](const ExpectedTensor& tensor) { visit(tensor, stacked); });
  }
}

std::span<const std::string> MissingTensors::of(Gap gap) const {
  const auto names = names_.find(gap);
  return names == names_.end() ? std::span<const std::string>() : names->second;
}

}  // namespace ingot::formats
