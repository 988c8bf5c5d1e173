#include "formats/records/rank_holdings.h"

#include <algorithm>

#include "formats/json/json.h"

namespace ingot::formats {
namespace {

bool is_shared_expert(Role role) {
  return role == Role::kSharedGate || role == Role::kSharedUp || role == Role::kSharedDown;
}

bool mentions(const Json& slots, std::uint64_t expert) {
  if (slots.is_number_integer()) return slots == expert;
  if (!slots.is_structured()) return false;
  return std::any_of(slots.begin(), slots.end(),
                     [&](const Json& entry) { return mentions(entry, expert); });
}

/// The map is a list of slots, or an object in which `slots` or `layers` has such lists.
bool has_in_slot(const Json& map, std::uint64_t expert) {
  if (!map.is_object()) return mentions(map, expert);
  return mentions(json_member(map, "slots"), expert) ||
         mentions(json_member(map, "layers"), expert);
}

Holding promised_if(bool is_here) {
  return is_here ? Holding::kPromised : Holding::kElsewhere;
}

}  // namespace

RankHoldings::RankHoldings(const SlicingRecord& slicing, const ModelConfig& config)
    : slicing_(slicing),
      rank_(slicing.rank.value()),
      config_(config),
      places_shared_(has_in_slot(slicing.expert_map, config.n_routed_experts)) {}

Holding RankHoldings::of(const TensorRule& rule, std::optional<std::uint32_t> layer,
                         std::optional<std::uint32_t> expert) const {
  if (layer) return in_layer(rule, *layer, expert);
  switch (rule.role) {
    case Role::kEmbedding:
      return promised_if(rank_.has_embedding);
    case Role::kFinalNorm:
    case Role::kHead:
      return promised_if(rank_.has_head);
    default:
      return slicing_.pp == 1 ? Holding::kPromised : Holding::kOptional;
  }
}

Holding RankHoldings::in_layer(const TensorRule& rule, std::uint32_t layer,
                               std::optional<std::uint32_t> expert) const {
  if (layer < rank_.first_layer || layer >= rank_.end_layer) return Holding::kElsewhere;
  const std::vector<std::uint32_t>* held = rank_.experts_in(layer);
  if (held == nullptr) return Holding::kPromised;
  if (is_expert_stack(rule.role))
    return promised_if(!held->empty() && held->front() < config_.n_routed_experts);
  if (is_of_routed_expert(rule.role) && expert)
    return promised_if(std::binary_search(held->begin(), held->end(), *expert));
  if (is_shared_expert(rule.role) && places_shared_) {
    // A copy of it may also be outside of the slots.
    const bool is_held = !held->empty() && held->back() == config_.n_routed_experts;
    return is_held ? Holding::kPromised : Holding::kOptional;
  }
  return Holding::kPromised;
}

RankHoldings::Share RankHoldings::share_of(Role role) const {
  if (is_of_routed_expert(role) || (is_shared_expert(role) && places_shared_))
    return {.n = slicing_.etp, .index = rank_.etp_rank};
  return {.n = slicing_.tp, .index = rank_.tp_rank};
}

}  // namespace ingot::formats
