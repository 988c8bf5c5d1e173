#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "formats/container/dtype.h"

namespace ingot::formats {

/// Dimensions, outermost first; empty means one element.
using Shape = std::vector<std::uint64_t>;

/// `[7168, 2048]`, for messages.
std::string shape_text(const Shape& shape);

/// Product of the dimensions, or nullopt when it does not fit 64 bits.
std::optional<std::uint64_t> element_count(const Shape& shape);

/// Bytes of a tensor in safetensors: elements x bits / 8. nullopt on overflow or when the bits do
/// not fill bytes.
std::optional<std::uint64_t> byte_count(DType dtype, const Shape& shape);

/// A row-major matrix that someone else owns. `stride` counts elements from row to row and is >=
/// cols.
template <typename T>
struct MatrixView {
  T* data = nullptr;
  std::size_t rows = 0;
  std::size_t cols = 0;
  std::size_t stride = 0;
  [[nodiscard]] T* row(std::size_t r) const { return data + r * stride; }
  /// This matrix, read-only.
  operator MatrixView<const T>() const  // NOLINT(google-explicit-constructor)
      requires(!std::is_const_v<T>) {
    return {data, rows, cols, stride};
  }
};

/// One tensor as a file holds it.
struct StoredTensor {
  std::string name;
  DType dtype{};
  Shape shape;
  std::uint32_t file = 0;    ///< index into the checkpoint's files
  std::uint64_t offset = 0;  ///< absolute, from the start of the file
  std::uint64_t n_bytes = 0;
};

}  // namespace ingot::formats
