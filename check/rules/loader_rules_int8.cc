#include <algorithm>

#include <fmt/format.h>

#include "check/rules/loader_rule_values.h"
#include "formats/checkpoint/part_names.h"
#include "formats/storage/stored_names.h"

// INT8 codes and the scales beside them: one per row or block. Code -128 is not judged: some tools
// write it, and every loader reads it.

namespace ingot::formats::rule_bodies {
namespace {

constexpr std::string_view kWeight = ".weight";

// An INT8 weight as stored, with the tensor that is named as its scale, if there is one.
struct Int8Weight {
  const StoredTensor* weight = nullptr;
  const StoredTensor* scale = nullptr;
  Part part = Part::kScale;
  ScaleReach reach = ScaleReach::kAny;
};

bool is_exponent(DType dtype) {
  return dtype == DType::kF8E8M0 || dtype == DType::kU8;
}

std::vector<Int8Weight> int8_weights(const Checkpoint& checkpoint) {
  const auto stored = checkpoint.stored();
  const bool has_codes = std::any_of(stored.begin(), stored.end(), [](const StoredTensor& tensor) {
    return tensor.dtype == DType::kI8;
  });
  if (!has_codes) return {};
  const StoredNames by_name(stored);
  std::vector<Int8Weight> weights;
  for (const StoredTensor& tensor : stored) {
    if (tensor.dtype != DType::kI8 || tensor.shape.size() < 2) continue;
    // Other I8 tensors may be parameters: a table of numbers is no weight of a linear layer.
    const bool is_weight = tensor.name.ends_with(kWeight);
    const std::string_view stem =
        std::string_view(tensor.name)
            .substr(0, tensor.name.size() - (is_weight ? kWeight.size() : 0));
    Int8Weight weight;
    weight.weight = &tensor;
    for (const PartNaming& naming : part_namings()) {
      if (naming.part != Part::kScale && naming.part != Part::kDeqScale) continue;
      if (naming.is_stacked == is_weight) continue;
      const auto found = by_name.find(fmt::format("{}{}", stem, naming.suffix));
      // Ascend's static weights may have both.
      if (!found || weight.part == Part::kDeqScale) continue;
      if (weight.scale != nullptr && naming.part == Part::kScale) continue;
      weight.scale = &stored[*found];
      weight.part = naming.part;
      weight.reach = naming.reach;
    }
    // Two 4-bit codes in a byte, by the exponents beside them: those have rows of their own.
    if (weight.scale != nullptr && is_exponent(weight.scale->dtype)) continue;
    if (is_weight || weight.scale != nullptr) weights.push_back(weight);
  }
  return weights;
}

bool has_scale_dtype(const Int8Weight& weight) {
  switch (weight.scale->dtype) {
    case DType::kF32:
      return true;
    case DType::kI64:
      return weight.part == Part::kDeqScale;
    case DType::kBf16:
      return weight.part == Part::kScale;
    case DType::kF16:
      return weight.part == Part::kScale && weight.reach == ScaleReach::kAny;
    default:
      return false;
  }
}

}  // namespace

void int8_scale_present(const Checkpoint& checkpoint, const RuleOptions&, const Report& report) {
  for (const Int8Weight& weight : int8_weights(checkpoint)) {
    if (weight.scale != nullptr) continue;
    report(at(checkpoint, *weight.weight, ErrorCode::kMissingTensor,
              "is I8 and has no scale beside it (weight_scale, weight_scale_inv or deq_scale)"));
  }
}

void int8_scale_dtype(const Checkpoint& checkpoint, const RuleOptions&, const Report& report) {
  for (const Int8Weight& weight : int8_weights(checkpoint)) {
    if (weight.scale == nullptr || has_scale_dtype(weight)) continue;
    report(at(checkpoint, *weight.scale, ErrorCode::kDtypeMismatch,
              fmt::format("is {}, a scale of INT8 codes is F32 or BF16",
                          dtype_name(weight.scale->dtype))));
  }
}

void int8_scale_shape(const Checkpoint& checkpoint, const RuleOptions&, const Report& report) {
  const auto [rows, cols] = block_of(checkpoint);
  for (const Int8Weight& weight : int8_weights(checkpoint)) {
    if (weight.scale == nullptr) continue;
    const Shape& codes = weight.weight->shape;
    Shape column = codes;
    column.back() = 1;
    Shape per_row = codes;
    per_row.pop_back();
    const Shape grid = block_scale_shape(codes, rows, cols);
    const Shape& scale = weight.scale->shape;
    const bool is_of_rows =
        weight.reach == ScaleReach::kAny && (scale == column || scale == per_row);
    if (is_of_rows || (weight.part == Part::kScale && scale == grid)) continue;
    const Shape& wanted = weight.reach == ScaleReach::kBlock ? grid : column;
    report(at(checkpoint, *weight.scale, ErrorCode::kShapeMismatch,
              fmt::format("has shape {}, a weight of shape {} needs {}", shape_text(scale),
                          shape_text(codes), shape_text(wanted))));
  }
}

void int8_scale_values(const Checkpoint& checkpoint, const RuleOptions& options,
                       const Report& report) {
  std::vector<const StoredTensor*> scales;
  for (const Int8Weight& weight : int8_weights(checkpoint)) {
    if (weight.scale != nullptr && has_scale_dtype(weight)) scales.push_back(weight.scale);
  }
  report_bad_scales(checkpoint, scales, options, report);
}

}  // namespace ingot::formats::rule_bodies
