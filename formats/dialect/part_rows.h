#pragma once

#include <array>

#include "formats/dialect/dialect.h"

// The words of tables of parts, and the tables that several dialects share, for the files of this
// folder only.

namespace ingot::formats {

using enum DType;
using enum PartShape;

constexpr PartRow codes_part(DType dtype, std::string_view suffix = kWeightSuffix) {
  return {Part::kWeight, suffix, dtype, kCodes};
}
constexpr PartRow scale_part(DType dtype, PartShape shape,
                             std::string_view suffix = ".weight_scale") {
  return {Part::kScale, suffix, dtype, shape};
}
constexpr PartRow global_part(PartShape shape, std::string_view suffix = ".weight_scale_2") {
  return {Part::kGlobal, suffix, kF32, shape};
}
/// Tables with the scale of static activations end with it (without_inputs()).
constexpr PartRow input_part(PartShape shape, std::string_view suffix = ".input_scale") {
  return {Part::kInputScale, suffix, kF32, shape};
}

constexpr StorageRow kept_only(StorageRow row) {
  row.is_kept_only = true;
  return row;
}
constexpr StorageRow with_experts(ExpertForm experts, StorageRow row) {
  row.experts = experts;
  return row;
}

/// DeepSeek's FP8; engines read experts in ModelOpt's mixtures so, too.
inline constexpr std::array kReleasedFp8Parts = {codes_part(kF8E4M3),
                                                 scale_part(kF32, kGrid, ".weight_scale_inv")};
inline constexpr std::array kScalarFp8Parts = {codes_part(kF8E4M3), scale_part(kF32, kScalar),
                                               input_part(kScalar)};
/// Under ModelOpt's names.
inline constexpr std::array kNvidiaNvfp4Parts = {codes_part(kU8), scale_part(kF8E4M3, kGrid),
                                                 global_part(kScalar), input_part(kScalar)};
inline constexpr std::array kMxfp8Parts = {codes_part(kF8E4M3), scale_part(kU8, kGrid)};

}  // namespace ingot::formats
