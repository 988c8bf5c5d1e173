#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "convert/recipe/activation_scales.h"
#include "formats/storage/encoding.h"

namespace ingot::convert {

/// Parts that follow from codes, weight scales and the input's scale. Source: docs/formats.md,
/// "W8A8 static".
struct AscendInputs {
  InputScale input;
  std::span<const float> row_scales;       ///< of the weight, [N]
  std::span<const std::int64_t> row_sums;  ///< of the codes of each row, [N]
};

/// Bytes of one of Part::kInputScale, kInputOffset (F32 [1]), kDeqScale (F32 [N], input scale x row
/// scale in one FP32 multiplication) and kQuantBias (I32 [N], round(-offset x sum) of a layer
/// without bias; kUnsupported where it does not fit).
std::vector<std::byte> ascend_part(formats::Part part, const AscendInputs& inputs);

}  // namespace ingot::convert
