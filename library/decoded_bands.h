#pragma once

#include <cstddef>
#include <functional>
#include <span>

#include "formats/storage/tensor_source.h"
#include "verify/weights/weight_bands.h"

namespace ingot::library {

/// Decodes a weight band by band on `threads` threads, and calls `visit` with each band and its
/// values, row-major, from these threads. Returns false, and calls nothing, where its dtype has no
/// arithmetic here.
bool decode_bands(
    const formats::TensorSource& source, const formats::LogicalTensor& tensor, std::size_t threads,
    const std::function<void(const verify::WeightBand&, std::span<const float>)>& visit);

}  // namespace ingot::library
