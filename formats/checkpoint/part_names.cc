#include "formats/checkpoint/part_names.h"

#include <algorithm>
#include <vector>

#include <fmt/format.h>

#include "formats/base/checked.h"
#include "formats/dialect/dialect.h"

namespace ingot::formats {
namespace {

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
        if (row.experts != ExpertForm::kStacked) add(namings, naming);
        PartNaming stacked = naming;
        stacked.suffix = stacked_suffix(part.suffix);
        stacked.is_stacked = true;
        // `X_scale` may be a parameter of its own; without a weight it is one.
        stacked.is_distinct = stacked.reach == ScaleReach::kBlock;
        add(namings, stacked);
        // ModelOpt's export of the stacks of transformers 5 keeps the word of the part.
        stacked.suffix = fmt::format("_{}", part.suffix.substr(1));
        stacked.is_distinct = false;
        add(namings, std::move(stacked));
      }
    }
  }
  add(namings, {.suffix = std::string(kNativeScale),
                .part = Part::kScale,
                .is_distinct = false,
                .reach = ScaleReach::kBlock});
  // Quark's.
  add(namings, {.suffix = ".input_zero_point", .part = Part::kInputOffset});
  add(namings, {.suffix = ".output_scale", .part = Part::kOutputScale});
  // ModelOpt's AWQ.
  add(namings, {.suffix = ".pre_quant_scale", .part = Part::kColumnFactor});
  std::stable_sort(namings.begin(), namings.end(), [](const PartNaming& a, const PartNaming& b) {
    return a.suffix.size() > b.suffix.size();
  });
  return namings;
}

std::vector<PackedNaming> collect_packed() {
  std::vector<PackedNaming> namings;
  for (const Dialect* dialect : dialects()) {
    for (const StorageRow& row : dialect->storage) {
      const std::string_view suffix = row.parts.front().suffix;
      if (suffix == kWeightSuffix) continue;
      const bool is_stacked = row.experts == ExpertForm::kStacked;
      PackedNaming naming{.suffix = is_stacked ? stacked_suffix(suffix) : std::string(suffix),
                          .is_stacked = is_stacked};
      if (std::ranges::find(namings, naming.suffix, &PackedNaming::suffix) == namings.end())
        namings.push_back(std::move(naming));
    }
  }
  return namings;
}

}  // namespace

std::span<const PartNaming> part_namings() {
  static const std::vector<PartNaming> namings = collect();
  return namings;
}

std::span<const PackedNaming> packed_namings() {
  static const std::vector<PackedNaming> namings = collect_packed();
  return namings;
}

const PackedNaming* find_packed(const StoredTensor& stored) {
  for (const PackedNaming& naming : packed_namings()) {
    // Other tensors may be called so too, but have no blocks of bytes.
    const bool may_be =
        !naming.is_stacked || (stored.dtype == DType::kU8 && stored.shape.size() > 3);
    if (may_be && stored.name.ends_with(naming.suffix)) return &naming;
  }
  return nullptr;
}

Shape rows_of_codes(const StoredTensor& stored) {
  Shape shape = stored.shape;
  const PackedNaming* naming = find_packed(stored);
  if (naming == nullptr || !naming->is_stacked) return shape;
  const std::uint64_t n_bytes = shape.back();
  shape.pop_back();
  // The product of a header's shape is bounded by its file.
  shape.back() = checked_mul(shape.back(), n_bytes).value_or(0);
  return shape;
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

std::string weight_name(const StoredTensor& stored) {
  const PackedNaming* naming = find_packed(stored);
  if (naming == nullptr) return stored.name;
  std::string name = stored.name.substr(0, stored.name.size() - naming->suffix.size());
  return naming->is_stacked ? name : name.append(kWeightSuffix);
}

}  // namespace ingot::formats
