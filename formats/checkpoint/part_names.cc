#include "formats/checkpoint/part_names.h"

#include <algorithm>
#include <array>
#include <vector>

#include "formats/dialect/dialect.h"

namespace ingot::formats {
namespace {

constexpr std::string_view kWeight = ".weight";
constexpr std::string_view kNativeScale = ".scale";

/// A block's scale by DeepSeek's names is never that of a row or of a tensor.
ScaleReach reach_of(std::string_view suffix) {
  return suffix == kNativeScale || suffix.ends_with("_scale_inv") ? ScaleReach::kBlock
                                                                  : ScaleReach::kAny;
}

void add(std::vector<PartNaming>& namings, PartNaming naming) {
  const bool is_known = std::any_of(namings.begin(), namings.end(), [&](const PartNaming& other) {
    return other.suffix == naming.suffix;
  });
  if (!is_known) namings.push_back(std::move(naming));
}

std::vector<PartNaming> collect() {
  std::vector<PartNaming> namings;
  for (const Dialect* dialect : dialects()) {
    for (const StorageRow& row : dialect->storage) {
      for (const PartRow& part : row.parts) {
        if (part.part == Part::kWeight) continue;
        const PartNaming naming = {.suffix = std::string(part.suffix),
                                   .part = part.part,
                                   .reach = reach_of(part.suffix),
                                   .global_divides = row.global_divides};
        add(namings, naming);
        PartNaming stacked = naming;
        stacked.suffix = stacked_suffix(part.suffix);
        stacked.is_stacked = true;
        // `X_scale` may be a parameter of its own; beside no weight it is one.
        stacked.is_distinct = stacked.reach == ScaleReach::kBlock;
        add(namings, std::move(stacked));
      }
    }
  }
  add(namings, {.suffix = std::string(kNativeScale),
                .part = Part::kScale,
                .is_distinct = false,
                .reach = ScaleReach::kBlock});
  std::stable_sort(namings.begin(), namings.end(), [](const PartNaming& a, const PartNaming& b) {
    return a.suffix.size() > b.suffix.size();
  });
  return namings;
}

std::vector<std::string_view> collect_packed() {
  std::vector<std::string_view> suffixes;
  for (const Dialect* dialect : dialects()) {
    for (const StorageRow& row : dialect->storage) {
      const std::string_view suffix = row.parts.front().suffix;
      const bool is_known = std::find(suffixes.begin(), suffixes.end(), suffix) != suffixes.end();
      if (suffix != kWeight && !is_known) suffixes.push_back(suffix);
    }
  }
  return suffixes;
}

}  // namespace

std::span<const PartNaming> part_namings() {
  static const std::vector<PartNaming> namings = collect();
  return namings;
}

std::span<const std::string_view> packed_suffixes() {
  static const std::vector<std::string_view> suffixes = collect_packed();
  return suffixes;
}

bool is_part_of(SchemeId scheme, Part part) {
  for (const Dialect* dialect : dialects()) {
    for (const StorageRow& row : dialect->storage) {
      const bool has_part = std::ranges::find(row.parts, part, &PartRow::part) != row.parts.end();
      if (row.scheme == scheme && has_part) return true;
    }
  }
  return false;
}

std::string weight_name(std::string_view stored) {
  for (const std::string_view suffix : packed_suffixes()) {
    if (!stored.ends_with(suffix)) continue;
    return std::string(stored.substr(0, stored.size() - suffix.size())).append(kWeight);
  }
  return std::string(stored);
}

}  // namespace ingot::formats
