#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include "formats/base/hash.h"

namespace ingot::testing {

inline std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text));
}

/// In lower-case hexadecimal.
inline std::string sha256(std::string_view bytes) {
  Sha256 hasher;
  hasher.update(bytes_of(bytes));
  return hasher.finish_hex();
}

}  // namespace ingot::testing
