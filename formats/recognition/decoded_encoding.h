#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>

#include "formats/base/error.h"
#include "formats/container/tensor.h"
#include "formats/storage/encoding.h"
#include "formats/storage/scale_shapes.h"

namespace ingot::formats {

/// The stored tensors of a weight in codes that are read and not written.
struct DecodedParts {
  std::span<const StoredTensor> stored;  ///< tensors of the checkpoint
  StoredParts parts;
  std::span<const Block> blocks;  ///< blocks in the order in which they are tried
};

/// The encoding of such a weight, which is_decoded(): plain F32, with the rows and columns that
/// share a scale, as decode_values() wants them (formats/relaid/decoded_values.h). A scale is one
/// of the matrix, of a row or of a block. nullopt, and told to `refuse` with the number of the
/// part, for a scale, zero points or an order of columns of another dtype or shape.
std::optional<Encoding> decoded_encoding(
    const DecodedParts& weight,
    const std::function<void(std::uint32_t, ErrorCode, std::string)>& refuse);

}  // namespace ingot::formats
