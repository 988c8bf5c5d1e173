#include "shard/cut/expert_map_reader.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <numeric>

#include <fmt/format.h>

namespace ingot::shard {

using formats::Json;

namespace {

std::optional<std::uint32_t> whole(const Json& json) {
  if (!json.is_number_unsigned()) return std::nullopt;
  const auto value = json.get<std::uint64_t>();
  if (value > std::numeric_limits<std::uint32_t>::max()) return std::nullopt;
  return static_cast<std::uint32_t>(value);
}

}  // namespace

Error MapReader::refusal(std::string fact) const {
  return Error(ErrorCode::kInvalidArgument, std::move(fact)).in_file(where_);
}

void MapReader::list_fault(std::string_view fact) {
  fault(layer_ ? fmt::format("layer {}: {}", *layer_, fact) : std::string(fact));
}

MapText MapReader::read_top(const Json& json) const {
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

void MapReader::read_slots_per_rank(const Json* list) {
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

MapReader::ByRank MapReader::read_slots(const Json& list, std::optional<std::uint32_t> layer) {
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
      list_fault(fmt::format(
          "slot {} holds {}, experts are 0 to {}{}", slots.size(), entry.dump(),
          limits_.n_experts - 1,
          limits_.has_shared ? fmt::format(", and {} is the shared one", limits_.n_experts) : ""));
      return {};
    }
    slots.push_back(*expert);
    ++n_slots_of[*expert];
  }
  check_counts(n_slots_of);
  return deal(slots);
}

void MapReader::check_counts(const std::vector<std::uint32_t>& n_slots_of) {
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

MapReader::ByRank MapReader::deal(const std::vector<std::uint32_t>& slots) {
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

}  // namespace ingot::shard
