#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "formats/storage/tensor_source.h"
#include "inference/kernels/quantized/quantized_matmul.h"
#include "inference/kernels/weight_matrix.h"
#include "inference/weights/held_bytes.h"
#include "inference/weights/part_layout.h"

namespace ingot::inference {

/// A part of a weight in memory that somebody else holds.
struct ReadPart {
  WeightMatrix weight;
  StaticInt8 fixed;  ///< null where the layout has no room for them
};

/// Reads into `memory`, layout.n_bytes at an edge of HeldBytes::kAlignment, on at most `threads`
/// threads and adds the bytes taken from the source to `n_read`. Scales must be finite and above
/// zero (kBadScale with position and value), offsets of codes zero (kUnsupported).
ReadPart read_part(const formats::TensorSource& source, const formats::LogicalTensor& tensor,
                   const PartLayout& layout, std::byte* memory, std::size_t threads,
                   std::atomic<std::uint64_t>& n_read);

}  // namespace ingot::inference
