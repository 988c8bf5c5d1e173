#include "shard/cut/expert_map.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <numeric>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "formats/base/error.h"
#include "formats/base/words.h"
#include "formats/json/json.h"
#include "formats/text/list_text.h"

namespace ingot::shard {

using formats::Json;

namespace {

/// The slots of each rank.
using ByRank = std::vector<std::vector<std::uint32_t>>;

/// A map as its file says it.
struct MapText {
  const formats::Json* slots = nullptr;   ///< list for every layer
  const formats::Json* layers = nullptr;  ///< object of lists
  const formats::Json* slots_per_rank = nullptr;
};

std::optional<std::uint32_t> whole(const Json& json) {
  if (!json.is_number_unsigned()) return std::nullopt;
  const auto value = json.get<std::uint64_t>();
  if (value > std::numeric_limits<std::uint32_t>::max()) return std::nullopt;
  return static_cast<std::uint32_t>(value);
}

/// Reads the JSON of an expert map and shares its slots out to ranks. Faults of single lists are
/// collected; faults that make the file useless are thrown.
class MapReader {
 public:
  /// `limits` must outlive it.
  MapReader(std::string_view where, const ExpertMapLimits& limits)
      : where_(where), limits_(limits) {}

  [[nodiscard]] MapText read_top(const Json& json) const {
    if (json.is_array()) return {.slots = &json};
    if (!json.is_object())
      throw refusal("is neither a list of experts by slot nor an object with slots or layers");
    MapText text;
    for (const auto& [key, value] : json.items()) {
      if (key == "slots") {
        text.slots = &value;
      } else if (key == "layers") {
        text.layers = &value;
      } else if (key == "slots_per_rank") {
        text.slots_per_rank = &value;
      } else {
        throw refusal(
            fmt::format("has the unknown key '{}' (known are slots, layers, slots_per_rank)", key));
      }
    }
    if ((text.slots == nullptr) == (text.layers == nullptr))
      throw refusal("needs either slots, for every layer alike, or layers");
    if (text.layers != nullptr && !text.layers->is_object())
      throw refusal("has layers that are not an object from layer to list");
    return text;
  }

  /// Null: ranks share evenly.
  void read_slots_per_rank(const Json* list) {
    if (list == nullptr) return;
    if (!list->is_array() || list->size() != limits_.ep) {
      throw refusal(fmt::format("slots_per_rank is not a list of {} numbers, one per rank of --ep",
                                limits_.ep));
    }
    for (const Json& number : *list) {
      const std::optional<std::uint32_t> n = whole(number);
      if (!n || *n == 0)
        throw refusal(fmt::format("slots_per_rank holds {}, not a number above 0", number.dump()));
      slots_per_rank_.push_back(*n);
    }
    const bool is_even = std::adjacent_find(slots_per_rank_.begin(), slots_per_rank_.end(),
                                            std::not_equal_to<>()) == slots_per_rank_.end();
    if (is_even || limits_.allow_uneven) return;
    throw refusal(
        "slots_per_rank gives ranks different numbers of slots (make them equal, or ask for "
        "--uneven-experts)");
  }

  /// The slots of each rank; empty after a fault. `layer` is nullopt for all layers together.
  ByRank read_slots(const Json& list, std::optional<std::uint32_t> layer) {
    layer_ = layer;
    if (!list.is_array()) {
      list_fault("is not a list of experts by slot");
      return {};
    }
    std::vector<std::uint32_t> slots;
    std::vector<std::uint32_t> n_slots_of(limits_.n_experts + (limits_.has_shared ? 1U : 0U));
    for (const Json& entry : list) {
      const std::optional<std::uint32_t> expert = whole(entry);
      if (!expert || *expert >= n_slots_of.size()) {
        list_fault(fmt::format("slot {} holds {}, experts are 0 to {}{}", slots.size(),
                               entry.dump(), limits_.n_experts - 1,
                               limits_.has_shared
                                   ? fmt::format(", and {} is the shared one", limits_.n_experts)
                                   : ""));
        return {};
      }
      slots.push_back(*expert);
      ++n_slots_of[*expert];
    }
    check_counts(n_slots_of);
    return share_out(slots);
  }

  [[nodiscard]] Error refusal(std::string fact) const {
    return Error(ErrorCode::kInvalidArgument, std::move(fact)).in_file(where_);
  }
  void fault(std::string fact) { faults_.add(refusal(std::move(fact))); }
  [[nodiscard]] const ErrorList& faults() const { return faults_; }

 private:
  void list_fault(std::string_view fact) {
    fault(layer_ ? fmt::format("layer {}: {}", *layer_, fact) : std::string(fact));
  }

  void check_counts(const std::vector<std::uint32_t>& n_slots_of) {
    for (std::uint32_t expert = 0; expert < n_slots_of.size(); ++expert) {
      const bool is_shared = expert == limits_.n_experts;
      if (n_slots_of[expert] == 0 && !is_shared)
        list_fault(fmt::format("expert {} is in no slot (every expert needs one)", expert));
      if (n_slots_of[expert] > 1 && !limits_.allow_redundant) {
        list_fault(
            fmt::format("expert {}{} is in {} slots (keep one, or ask for --redundant-experts)",
                        expert, is_shared ? ", the shared one," : "", n_slots_of[expert]));
      }
    }
  }

  ByRank share_out(const std::vector<std::uint32_t>& slots) {
    std::vector<std::size_t> n_slots(slots_per_rank_.begin(), slots_per_rank_.end());
    if (n_slots.empty()) {
      const std::size_t even = slots.size() / limits_.ep;
      const std::size_t more = slots.size() % limits_.ep;
      if (even == 0 || (more != 0 && !limits_.allow_uneven)) {
        list_fault(fmt::format(
            "has {} slots, which --ep {} ranks cannot share evenly{}", slots.size(), limits_.ep,
            even == 0 ? " (choose a smaller --ep)"
                      : " (give experts more slots with --redundant-experts, or ask "
                        "for --uneven-experts)"));
        return {};
      }
      for (std::size_t rank = 0; rank < limits_.ep; ++rank)
        n_slots.push_back(even + (rank < more ? 1 : 0));
    }
    const std::size_t n_wanted = std::accumulate(n_slots.begin(), n_slots.end(), std::size_t{0});
    if (n_wanted != slots.size()) {
      list_fault(fmt::format("has {} slots, slots_per_rank adds up to {}", slots.size(), n_wanted));
      return {};
    }
    ByRank by_rank;
    auto next = slots.begin();
    for (const std::size_t n : n_slots) {
      const auto end = next + static_cast<std::ptrdiff_t>(n);
      by_rank.emplace_back(next, end);
      next = end;
    }
    return by_rank;
  }

  std::string where_;
  const ExpertMapLimits& limits_;
  std::vector<std::uint32_t> slots_per_rank_;
  std::optional<std::uint32_t> layer_;  // layer of the list that is being read
  ErrorList faults_;
};

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
  const auto layer = number_from(key);
  return layer && std::to_string(*layer) == key ? layer : std::nullopt;
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

std::set<std::uint32_t> layers_with_experts(const formats::TensorSource& model) {
  std::set<std::uint32_t> layers;
  for (const formats::LogicalTensor& tensor : model.tensors()) {
    if (tensor.layer && formats::is_routed_expert(role_of(tensor))) layers.insert(*tensor.layer);
  }
  return layers;
}

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
      if (layer && (!limits.layers || limits.layers->contains(*layer))) {
        map.layers_[*layer].by_rank = reader.read_slots(list, layer);
      } else {
        reader.fault(
            fmt::format("has a list for layer '{}', layers with experts are {}", key,
                        limits.layers ? ranges_text(*limits.layers, " to ", ", ") : "numbers"));
      }
    }
    for (const std::uint32_t layer : limits.layers.value_or(std::set<std::uint32_t>())) {
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

formats::JsonValue ExpertMap::to_json() const {
  if (is_contiguous_) return {};
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

std::string map_of_kept(std::string_view text, std::string_view where,
                        const formats::KeptExperts& kept) {
  const Json json = formats::parse_json(text, where);
  const bool is_by_layer = json.is_object() && json.contains("layers");
  const Json& of_all = json.is_object() && json.contains("slots") ? json.at("slots") : json;
  if (!is_by_layer && !of_all.is_array()) return std::string(text);
  Json layers = Json::object();
  for (const auto& [layer, experts] : kept.layers) {
    const std::string name = std::to_string(layer);
    const Json& before = is_by_layer ? formats::json_member(json.at("layers"), name) : of_all;
    if (!before.is_array()) continue;
    Json& slots = layers[name] = Json::array();
    for (const Json& slot : before) {
      const std::optional<std::uint32_t> expert = whole(slot);
      // Its fault is told with the number of its slot.
      if (!expert || *expert > kept.n_experts) return std::string(text);
      const auto found = std::ranges::lower_bound(experts, *expert);
      if (*expert == kept.n_experts || (found != experts.end() && *found == *expert))
        slots.push_back(found - experts.begin());
    }
  }
  return formats::json_text({{"layers", std::move(layers)}});
}

}  // namespace ingot::shard
