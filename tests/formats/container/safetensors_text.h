#pragma once

#include <fmt/ranges.h>

#include "formats/container/safetensors.h"
#include "tests/support/bytes.h"
#include "tests/support/test.h"

// Writes safetensors files by hand, right or wrong, for the tests of reader and writer.
namespace ingot::testing {

inline std::string length_prefix(std::uint64_t n) {
  std::string text(sizeof n, '\0');
  std::memcpy(text.data(), &n, sizeof n);
  return text;
}

/// A whole file: length, header, and `n_data` bytes of data.
inline std::string file_text(const std::string& json, std::size_t n_data) {
  return length_prefix(json.size()) + json + std::string(n_data, 'd');
}

inline formats::SafetensorsHeader parse_header(const std::string& file) {
  return formats::parse_safetensors_header(bytes_of(file), file.size(), "m.safetensors");
}

inline std::string entry(const std::string& name, const std::string& dtype,
                         const std::string& shape, const std::string& offsets) {
  return fmt::format(R"("{}":{{"dtype":"{}","shape":{},"data_offsets":{}}})", name, dtype, shape,
                     offsets);
}

/// A JSON object of these members.
inline std::string json_object(const std::string& members) {
  return fmt::format("{{{}}}", members);
}

/// A file of one tensor 'a'.
inline std::string one_tensor(const std::string& dtype, const std::string& shape,
                              const std::string& offsets, std::size_t n_data) {
  return file_text(json_object(entry("a", dtype, shape, offsets)), n_data);
}

/// A shape of `rank` dimensions of 1.
inline std::string dimensions_of_one(std::size_t rank) {
  return fmt::format("[{}]", fmt::join(std::vector<int>(rank, 1), ","));
}

/// The test vector of docs/formats.md: `a` F32 [1] = 1.0, `b` U8 [3] = 1, 2, 3, no metadata.
inline std::string test_vector() {
  const std::string json =
      R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"b":{"dtype":"U8","shape":[3],"data_offsets":[4,7]}})";
  return length_prefix(112) + json + std::string(6, ' ') + std::string("\0\0\x80\x3F\1\2\3", 7);
}

}  // namespace ingot::testing
