#include "shard/cut/expert_map.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "formats/base/error.h"
#include "shard/cut/expert_map_reader.h"

namespace ingot::shard {

using formats::Json;

namespace {

using ByRank = MapReader::ByRank;

ByRank contiguous_slots(std::uint32_t n_experts, std::uint32_t ep) {
  ByRank by_rank(ep);
  for (std::uint32_t expert = 0; expert < n_experts; ++expert)
    by_rank[expert / (n_experts / ep)].push_back(expert);
  return by_rank;
}

ByRank unique_experts(const ByRank& slots) {
  ByRank experts = slots;
  for (std::vector<std::uint32_t>& held : experts) {
    std::sort(held.begin(), held.end());
    held.erase(std::unique(held.begin(), held.end()), held.end());
  }
  return experts;
}

std::optional<std::uint32_t> layer_number(std::string_view key) {
  std::uint32_t layer = 0;
  const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), layer);
  if (error != std::errc() || end != key.data() + key.size() || std::to_string(layer) != key)
    return std::nullopt;
  return layer;
}

bool holds(const ByRank& by_rank, std::uint32_t expert) {
  return std::any_of(by_rank.begin(), by_rank.end(), [&](const auto& slots) {
    return std::find(slots.begin(), slots.end(), expert) != slots.end();
  });
}

Json slots_json(const ByRank& by_rank) {
  Json list = Json::array();
  for (const auto& slots : by_rank) {
    for (const std::uint32_t expert : slots) list.push_back(expert);
  }
  return list;
}

}  // namespace

ExpertMap ExpertMap::contiguous(std::uint32_t n_experts, std::uint32_t ep) {
  INGOT_CHECK(ep > 0);
  if (n_experts % ep != 0 || (n_experts == 0 && ep > 1)) {
    throw Error(
        ErrorCode::kInvalidArgument,
        n_experts == 0
            ? fmt::format("--ep {}: the model has no experts to share out (leave it at 1)", ep)
            : fmt::format("{} experts cannot be dealt evenly to --ep {} ranks (choose a "
                          "divisor of {}, or say with --expert-map which rank has which)",
                          n_experts, ep, n_experts));
  }
  ExpertMap map;
  map.ep_ = ep;
  map.is_contiguous_ = true;
  map.all_.by_rank = map.all_.experts = contiguous_slots(n_experts, ep);
  return map;
}

ExpertMap ExpertMap::parse(std::string_view text, std::string_view where,
                           const ExpertMapLimits& limits) {
  INGOT_CHECK(limits.ep > 0);
  MapReader reader(where, limits);
  if (limits.n_experts == 0) throw reader.refusal("is given, but the model has no experts");
  const Json json = formats::parse_json(text, where);
  const MapText top = reader.read_top(json);
  reader.read_slots_per_rank(top.slots_per_rank);

  ExpertMap map;
  map.ep_ = limits.ep;
  if (top.slots != nullptr) {
    map.all_.by_rank = reader.read_slots(*top.slots, std::nullopt);
  } else {
    for (const auto& [key, list] : top.layers->items()) {
      const std::optional<std::uint32_t> layer = layer_number(key);
      if (layer && *layer >= limits.first_moe_layer && *layer < limits.n_layers) {
        map.layers_[*layer].by_rank = reader.read_slots(list, layer);
      } else {
        reader.fault(fmt::format("has a list for layer '{}', layers with experts are {} to {}", key,
                                 limits.first_moe_layer, std::int64_t{limits.n_layers} - 1));
      }
    }
    for (std::uint32_t layer = limits.first_moe_layer; layer < limits.n_layers; ++layer) {
      if (!map.layers_.contains(layer))
        reader.fault(fmt::format("has no list for layer {}", layer));
    }
    if (map.layers_.empty()) reader.fault("has no list for any layer");
  }
  reader.faults().throw_if_any();

  const auto finish = [&](Slots& slots) {
    slots.experts = unique_experts(slots.by_rank);
    return limits.has_shared && holds(slots.by_rank, limits.n_experts);
  };
  if (map.layers_.empty()) {
    map.places_shared_ = finish(map.all_);
    map.is_contiguous_ = limits.n_experts % limits.ep == 0 &&
                         map.all_.by_rank == contiguous_slots(limits.n_experts, limits.ep);
    return map;
  }
  const std::uint32_t first = map.layers_.begin()->first;
  for (auto& [layer, slots] : map.layers_) {
    const bool places_shared = finish(slots);
    if (layer == first) map.places_shared_ = places_shared;
    if (places_shared == map.places_shared_) continue;
    reader.fault(
        fmt::format("gives the shared expert a slot in layer {}, but not in layer {} (in "
                    "all of them or in none)",
                    places_shared ? layer : first, places_shared ? first : layer));
  }
  reader.faults().throw_if_any();
  return map;
}

const ExpertMap::Slots* ExpertMap::of(std::uint32_t layer) const {
  if (layers_.empty()) return &all_;
  const auto found = layers_.find(layer);
  return found == layers_.end() ? nullptr : &found->second;
}

std::span<const std::uint32_t> ExpertMap::experts_of(std::uint32_t layer,
                                                     std::uint32_t ep_rank) const {
  INGOT_CHECK(ep_rank < ep_);
  const Slots* slots = of(layer);
  if (slots == nullptr) return {};
  return slots->experts[ep_rank];
}

std::span<const std::uint32_t> ExpertMap::slots_of(std::uint32_t layer,
                                                   std::uint32_t ep_rank) const {
  INGOT_CHECK(ep_rank < ep_);
  const Slots* slots = of(layer);
  if (slots == nullptr) return {};
  return slots->by_rank[ep_rank];
}

std::vector<std::uint32_t> ExpertMap::ranks_of(std::uint32_t layer, std::uint32_t expert) const {
  std::vector<std::uint32_t> ranks;
  const Slots* slots = of(layer);
  if (slots == nullptr) return ranks;
  for (std::uint32_t rank = 0; rank < ep_; ++rank) {
    const std::vector<std::uint32_t>& held = slots->experts[rank];
    if (std::binary_search(held.begin(), held.end(), expert)) ranks.push_back(rank);
  }
  return ranks;
}

Json ExpertMap::to_json() const {
  if (is_contiguous_) return nullptr;
  Json json = Json::object();
  const ByRank* any = &all_.by_rank;
  if (layers_.empty()) {
    json["slots"] = slots_json(all_.by_rank);
  } else {
    Json::object_t lists;
    for (const auto& [layer, slots] : layers_)
      lists.emplace_back(std::to_string(layer), slots_json(slots.by_rank));
    json["layers"] = std::move(lists);
    any = &layers_.begin()->second.by_rank;
  }
  bool is_even = true;
  Json counts = Json::array();
  for (const auto& slots : *any) {
    is_even = is_even && slots.size() == any->front().size();
    counts.push_back(slots.size());
  }
  if (!is_even) json["slots_per_rank"] = std::move(counts);
  return json;
}

}  // namespace ingot::shard
