#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <span>

#include "formats/storage/tensor_source.h"
#include "verify/weights/weight_bands.h"

namespace ingot::library {

/// Rows of a weight seen as one matrix.
struct RowRange {
  std::uint64_t begin = 0, end = std::numeric_limits<std::uint64_t>::max();
};

/// Decodes rows of a weight band by band on `threads` threads, reads no others, and calls `visit`
/// with each band and its values, row-major, from these threads. Returns false, and calls nothing,
/// where its dtype has no arithmetic here.
bool decode_bands(
    const formats::TensorSource& source, const formats::LogicalTensor& tensor, std::size_t threads,
    const std::function<void(const verify::WeightBand&, std::span<const float>)>& visit,
    RowRange rows = {});

}  // namespace ingot::library
