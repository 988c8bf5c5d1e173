#include "formats/container/tensor.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "formats/base/checked.h"

namespace ingot::formats {

std::string shape_text(const Shape& shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

std::optional<std::uint64_t> element_count(const Shape& shape) {
  std::optional<std::uint64_t> count = 1;
  for (const std::uint64_t dimension : shape) {
    count = checked_mul(*count, dimension);
    if (!count) return std::nullopt;
  }
  return count;
}

std::optional<std::uint64_t> byte_count(DType dtype, const Shape& shape) {
  const std::optional<std::uint64_t> count = element_count(shape);
  if (!count) return std::nullopt;
  const std::optional<std::uint64_t> bits = checked_mul(*count, dtype_bits(dtype));
  if (!bits || *bits % 8 != 0) return std::nullopt;
  return *bits / 8;
}

}  // namespace ingot::formats
