#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "formats/base/error.h"
#include "formats/checkpoint/checkpoint.h"

// Weights whose parts do not go together, so that they are no logical tensors.

namespace ingot::check {

/// A part that the structure could not understand, as its recognition says it.
struct PartFault {
  Error error;
  formats::SchemeId scheme{};  ///< for which the codes and their scale are most likely meant
  formats::Part part{};        ///< to which `error` points
};

/// The faults of such weights. Reads no values.
std::vector<PartFault> find_part_faults(const formats::Checkpoint& checkpoint);

/// The block size that the config claims; 128 x 128 where it claims none, or several.
std::array<std::uint64_t, 2> claimed_block(const formats::Checkpoint& checkpoint);
/// Whether a dtype is of 8 bits with an exponent.
bool is_float8(formats::DType dtype);

}  // namespace ingot::check
