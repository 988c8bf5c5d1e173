#include <algorithm>
#include <array>
#include <cmath>

#include <fmt/format.h>

#include "check/rules/loader_rule_values.h"
#include "formats/container/float8.h"
#include "formats/storage/stored_names.h"

// NVFP4 in either convention. Weights are found by the names of their parts, so that one which the
// checkpoint could not understand is looked at too.

namespace ingot::formats::rule_bodies {
namespace {

constexpr std::uint64_t kGroupColumns = 16;

struct Convention {
  std::string_view codes, global;
  bool divides;
};
constexpr std::string_view kScale = ".weight_scale";
constexpr std::array kConventions = {
    Convention{".weight", ".weight_scale_2", false},
    Convention{".weight_packed", ".weight_global_scale", true},
};

// Parts of one weight; null for those that are not there.
struct Nvfp4Weight {
  std::string name;  ///< X.weight
  const StoredTensor* codes = nullptr;
  const StoredTensor* scale = nullptr;
  const StoredTensor* global = nullptr;
  const StoredTensor* any = nullptr;  ///< the part by which it was found
  bool divides = false;
};

class Finder {
 public:
  explicit Finder(const Checkpoint& checkpoint)
      : stored_(checkpoint.stored()), by_name_(checkpoint.stored()) {}

  std::vector<Nvfp4Weight> run() const {
    std::vector<Nvfp4Weight> weights;
    for (const StoredTensor& tensor : stored_) {
      if (auto weight = of_global(tensor)) weights.push_back(std::move(*weight));
      if (auto weight = of_codes(tensor)) weights.push_back(std::move(*weight));
    }
    return weights;
  }

 private:
  [[nodiscard]] const StoredTensor* find(std::string_view stem, std::string_view suffix) const {
    const auto found = by_name_.find(fmt::format("{}{}", stem, suffix));
    return found ? &stored_[*found] : nullptr;
  }

  static std::string_view stem_of(const StoredTensor& tensor, std::string_view suffix) {
    return std::string_view(tensor.name).substr(0, tensor.name.size() - suffix.size());
  }

  /// Codes under either name; those of 8 bits and more are another scheme's.
  [[nodiscard]] const StoredTensor* codes_of_stem(std::string_view stem) const {
    for (const Convention& convention : kConventions) {
      if (const StoredTensor* codes = find(stem, convention.codes)) return codes;
    }
    return nullptr;
  }

  [[nodiscard]] std::optional<Nvfp4Weight> of_global(const StoredTensor& tensor) const {
    for (const Convention& convention : kConventions) {
      if (!tensor.name.ends_with(convention.global)) continue;
      const std::string_view stem = stem_of(tensor, convention.global);
      Nvfp4Weight weight;
      weight.name = fmt::format("{}.weight", stem);
      weight.codes = codes_of_stem(stem);
      weight.scale = find(stem, kScale);
      weight.global = &tensor;
      weight.any = &tensor;
      weight.divides = convention.divides;
      return weight;
    }
    return std::nullopt;
  }

  /// U8 codes with E4M3 scales, or none at all, of which no global scale tells.
  [[nodiscard]] std::optional<Nvfp4Weight> of_codes(const StoredTensor& tensor) const {
    for (const Convention& convention : kConventions) {
      if (tensor.dtype != DType::kU8 || !tensor.name.ends_with(convention.codes)) continue;
      const std::string_view stem = stem_of(tensor, convention.codes);
      for (const Convention& other : kConventions) {
        if (find(stem, other.global) != nullptr) return std::nullopt;
      }
      Nvfp4Weight weight;
      weight.name = fmt::format("{}.weight", stem);
      weight.codes = &tensor;
      weight.scale = find(stem, kScale);
      weight.any = &tensor;
      if (weight.scale == nullptr || weight.scale->dtype != DType::kF8E4M3) return std::nullopt;
      return weight;
    }
    return std::nullopt;
  }

  std::span<const StoredTensor> stored_;
  StoredNames by_name_;
};

std::vector<Nvfp4Weight> nvfp4_weights(const Checkpoint& checkpoint) {
  // Most checkpoints have none, and then names need not be sorted.
  const auto stored = checkpoint.stored();
  const bool may_have_some =
      std::any_of(stored.begin(), stored.end(), [](const StoredTensor& tensor) {
        return tensor.dtype == DType::kU8 || tensor.name.ends_with(kConventions[0].global) ||
               tensor.name.ends_with(kConventions[1].global);
      });
  if (!may_have_some) return {};
  return Finder(checkpoint).run();
}

std::uint64_t columns(const StoredTensor& codes) {
  return codes.shape.empty() ? 0 : codes.shape.back() * 2;
}

}  // namespace

void nvfp4_parts(const Checkpoint& checkpoint, const RuleOptions&, const Report& report) {
  for (const Nvfp4Weight& weight : nvfp4_weights(checkpoint)) {
    std::string missing;
    if (weight.codes == nullptr) missing += " codes (weight or weight_packed)";
    if (weight.scale == nullptr) missing += " block scales (weight_scale)";
    if (weight.global == nullptr)
      missing += " a global scale (weight_scale_2 or weight_global_scale)";
    if (missing.empty()) continue;
    report(at(checkpoint, *weight.any, ErrorCode::kMissingTensor,
              fmt::format("is part of an NVFP4 weight without{}", missing)));
  }
}

void nvfp4_dtypes(const Checkpoint& checkpoint, const RuleOptions&, const Report& report) {
  for (const Nvfp4Weight& weight : nvfp4_weights(checkpoint)) {
    const std::array<std::pair<const StoredTensor*, DType>, 3> wanted = {
        {{weight.codes, DType::kU8}, {weight.scale, DType::kF8E4M3}, {weight.global, DType::kF32}}};
    for (const auto& [tensor, dtype] : wanted) {
      if (tensor == nullptr || tensor->dtype == dtype) continue;
      report(at(checkpoint, *tensor, ErrorCode::kDtypeMismatch,
                fmt::format("is {}, this part of an NVFP4 weight is {}", dtype_name(tensor->dtype),
                            dtype_name(dtype))));
    }
  }
}

void nvfp4_columns(const Checkpoint& checkpoint, const RuleOptions&, const Report& report) {
  for (const Nvfp4Weight& weight : nvfp4_weights(checkpoint)) {
    if (weight.codes == nullptr || weight.codes->dtype != DType::kU8) continue;
    if (columns(*weight.codes) % kGroupColumns == 0) continue;
    report(at(checkpoint, *weight.codes, ErrorCode::kShapeMismatch,
              fmt::format("has {} columns, not a multiple of {} (leave it unquantized)",
                          columns(*weight.codes), kGroupColumns)));
  }
}

void nvfp4_scale_shape(const Checkpoint& checkpoint, const RuleOptions&, const Report& report) {
  for (const Nvfp4Weight& weight : nvfp4_weights(checkpoint)) {
    if (weight.codes == nullptr || weight.scale == nullptr || weight.codes->shape.size() < 2)
      continue;
    if (weight.codes->dtype != DType::kU8 || columns(*weight.codes) % kGroupColumns != 0) continue;
    Shape wanted = weight.codes->shape;
    wanted.back() = columns(*weight.codes) / kGroupColumns;
    if (weight.scale->shape == wanted) continue;
    report(at(checkpoint, *weight.scale, ErrorCode::kShapeMismatch,
              fmt::format("has shape {}, packed codes of shape {} need {}",
                          shape_text(weight.scale->shape), shape_text(weight.codes->shape),
                          shape_text(wanted))));
  }
}

void nvfp4_global_one_element(const Checkpoint& checkpoint, const RuleOptions&,
                              const Report& report) {
  for (const Nvfp4Weight& weight : nvfp4_weights(checkpoint)) {
    if (weight.global == nullptr || element_count(weight.global->shape) == 1) continue;
    report(at(checkpoint, *weight.global, ErrorCode::kShapeMismatch,
              fmt::format("has shape {}, a global scale is one number",
                          shape_text(weight.global->shape))));
  }
}

void nvfp4_global_convention(const Checkpoint& checkpoint, const RuleOptions&,
                             const Report& report) {
  const SchemeSpelling* spelling = find_spelling(checkpoint.dialect(), SchemeId::kNvfp4);
  if (spelling == nullptr) return;
  for (const Nvfp4Weight& weight : nvfp4_weights(checkpoint)) {
    if (weight.global == nullptr || weight.divides == spelling->global_divides) continue;
    report(at(checkpoint, *weight.global, ErrorCode::kMismatch,
              fmt::format("by its name {} the weight, but in dialect {} the global scale {} it "
                          "(convert to the dialect that is meant)",
                          weight.divides ? "divides" : "multiplies", checkpoint.dialect().name,
                          spelling->global_divides ? "divides" : "multiplies")));
  }
}

void nvfp4_scale_values(const Checkpoint& checkpoint, const RuleOptions& options,
                        const Report& report) {
  std::vector<const StoredTensor*> scales;
  for (const Nvfp4Weight& weight : nvfp4_weights(checkpoint)) {
    if (weight.scale != nullptr && weight.scale->dtype == DType::kF8E4M3)
      scales.push_back(weight.scale);
  }
  report_bad_scales(checkpoint, scales, options, report);
}

void nvfp4_global_values(const Checkpoint& checkpoint, const RuleOptions& options,
                         const Report& report) {
  std::vector<const StoredTensor*> globals;
  for (const Nvfp4Weight& weight : nvfp4_weights(checkpoint)) {
    if (weight.global != nullptr && weight.global->dtype == DType::kF32)
      globals.push_back(weight.global);
  }
  report_bad_scales(checkpoint, globals, options, report);
}

void nvfp4_reciprocal(const Checkpoint& checkpoint, const RuleOptions&, const Report& report) {
  FindingsByKind found;
  for (const Nvfp4Weight& weight : nvfp4_weights(checkpoint)) {
    if (weight.global == nullptr || weight.global->dtype != DType::kF32) continue;
    const std::optional<float> stored = first_scale(checkpoint, *weight.global);
    if (!stored || is_bad_scale(*stored)) continue;
    const float factor = weight.divides ? 1 / *stored : *stored;
    // A weight's largest magnitude is 1536 to 2688 times this: no model has such weights.
    if (!(factor > 1)) continue;
    found.add(nullptr, at(checkpoint, *weight.global, ErrorCode::kBadScale,
                          fmt::format("is {}, so that the largest weight would be above 1500; its "
                                      "reciprocal is likely (the other convention's number)",
                                      *stored)));
  }
  found.report(report);
}

}  // namespace ingot::formats::rule_bodies
