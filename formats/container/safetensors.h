#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "formats/base/fd.h"
#include "formats/container/tensor.h"

namespace ingot::formats {

/// Ending of the names of safetensors files.
inline constexpr std::string_view kWeightsSuffix = ".safetensors";
/// Bytes of the length N that a file begins with; the header's N bytes follow.
inline constexpr std::size_t kLengthBytes = 8;
/// Longest header that the format allows, in bytes (100 MB, decimal).
inline constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;

/// A validated header. Tensors are in the order of their data; `offset` is absolute.
/// StoredTensor::file is 0.
struct SafetensorsHeader {
  std::vector<StoredTensor> tensors;
  std::vector<std::pair<std::string, std::string>>
      metadata;                  ///< `__metadata__`, in the order of the file
  std::uint64_t data_start = 0;  ///< 8 + N
  std::uint64_t file_bytes = 0;
};

/// Checks bytes [0, 8+N) of a file of `file_bytes` against every rule of docs/formats.md,
/// "safetensors" (no holes, no overlaps, no duplicates, no trailing bytes, checked arithmetic).
/// Throws kCorrupt, kLimit, kDuplicate or kUnsupported (dtype of a newer format), naming `file`,
/// the tensor and the byte.
SafetensorsHeader parse_safetensors_header(std::span<const std::byte> bytes,
                                           std::uint64_t file_bytes, std::string_view file);

/// Reads the 8+N header bytes of an open file, without parsing them; checks rules 1 to 3.
std::vector<std::byte> read_safetensors_header_bytes(const Fd& file);

/// Reads and checks the header of an open file.
SafetensorsHeader read_safetensors_header(const Fd& file);

/// A tensor to be written.
struct TensorSpec {
  std::string name;
  DType dtype{};
  Shape shape;
};

/// True when `a` comes before `b` in a file: wider dtypes first, then names by bytes.
bool writes_before(DType dtype_a, std::string_view name_a, DType dtype_b, std::string_view name_b);

/// The bytes [0, 8+N) of a file holding `tensors` back to back in the given order (use
/// writes_before to sort), with
/// `__metadata__` {"format":"pt"}, padded with spaces so that N is a multiple of 8. Throws kLimit
/// beyond 100 MB.
std::string safetensors_header_text(std::span<const TensorSpec> tensors);
/// The text of a header with another `__metadata__`.
std::string safetensors_header_text(std::span<const TensorSpec> tensors,
                                    std::span<const std::pair<std::string, std::string>> metadata);

}  // namespace ingot::formats
