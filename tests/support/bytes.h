#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "formats/base/hash.h"

namespace ingot::testing {

inline std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text));
}

/// The bytes of numbers, for TinyTensor::data.
template <typename T>
std::string bytes_of(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

/// The tensor hash of these bytes.
inline Hash128 hash_of(std::string_view bytes) {
  TensorHasher hasher;
  hasher.update(bytes_of(bytes));
  return hasher.finish();
}

/// In lower-case hexadecimal.
inline std::string sha256(std::string_view bytes) {
  Sha256 hasher;
  hasher.update(bytes_of(bytes));
  return hasher.finish_hex();
}

}  // namespace ingot::testing
