#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <string_view>

#include "formats/storage/tensor_source.h"

namespace ingot::formats {

/// The value of OpenOptions::family for a copy to the byte: family generic, and each stored tensor
/// is one of its own, whose codes nothing reads. It begins with a byte that no family's name has, so
/// that no user's `--family` means it.
inline constexpr std::string_view kAsStored = "\1as-stored";

/// Codes of a quantization that no scheme reads: they can be copied with the JSON that tells of
/// them, and nothing else.
struct UnreadCodes {
  const LogicalTensor* first = nullptr;
  std::size_t n = 0;  ///< tensors
  /// config.json has a block of quantization that names no method (`bits` and `group_size` of MLX).
  bool is_said = false;
};

/// Tensors of integers, bytes or floats of less than 16 bits that are no part of a weight whose
/// scheme is known, and that no row of a family has so: all of them where config.json has a block
/// without a method, else those of two dimensions or more. Numbers of 64 bits and truth values are
/// indices and masks. `is_known` names tensors with a known purpose, which are left out where the
/// config says nothing.
std::optional<UnreadCodes> unread_codes(
    const TensorSource& source, const std::function<bool(const LogicalTensor&)>& is_known = {});

}  // namespace ingot::formats
