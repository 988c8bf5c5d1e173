#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

namespace ingot::testing {

/// A tensor as bytes, sliced element by element: slow, and independent of the product.
struct NaiveTensor {
  std::string dtype;
  std::size_t element_bytes = 1;
  std::vector<std::uint64_t> shape;
  std::string data;

  [[nodiscard]] std::uint64_t count() const {
    std::uint64_t n = 1;
    for (const std::uint64_t dimension : shape) n *= dimension;
    return n;
  }
  [[nodiscard]] std::string element(const std::vector<std::uint64_t>& at) const {
    std::uint64_t index = 0;
    for (std::size_t d = 0; d < shape.size(); ++d) index = index * shape[d] + at[d];
    return data.substr(index * element_bytes, element_bytes);
  }
};

inline NaiveTensor random_tensor(std::string dtype, std::size_t element_bytes,
                                 std::vector<std::uint64_t> shape, unsigned seed) {
  NaiveTensor tensor{std::move(dtype), element_bytes, std::move(shape), {}};
  std::mt19937 generator(seed);
  for (std::uint64_t i = 0; i < tensor.count() * element_bytes; ++i)
    tensor.data += static_cast<char>(generator() & 0xff);
  return tensor;
}

/// The tensor of `shape` whose element at each place is what `pick` takes from that place.
template <typename Pick>
NaiveTensor build(const NaiveTensor& like, std::vector<std::uint64_t> shape, const Pick& pick) {
  NaiveTensor made{like.dtype, like.element_bytes, std::move(shape), {}};
  std::vector<std::uint64_t> at(made.shape.size(), 0);
  for (std::uint64_t i = 0; i < made.count(); ++i) {
    std::uint64_t rest = i;
    for (std::size_t d = made.shape.size(); d-- > 0; rest /= made.shape[d])
      at[d] = rest % made.shape[d];
    made.data += pick(at);
  }
  return made;
}

/// Slice `number` of `n` along `axis`, of each of the equal sections of that axis; of a stack, only
/// `experts` of the first dimension (empty: all).
inline NaiveTensor naive_slice(const NaiveTensor& whole, std::size_t axis, std::uint64_t number,
                               std::uint64_t n, std::uint64_t sections = 1,
                               const std::vector<std::uint32_t>& experts = {}) {
  std::vector<std::uint64_t> shape = whole.shape;
  shape[axis] /= n;
  if (!experts.empty()) shape[0] = experts.size();
  const std::uint64_t length = shape[axis] / sections;
  return build(whole, shape, [&](std::vector<std::uint64_t> at) {
    at[axis] =
        at[axis] / length * (whole.shape[axis] / sections) + number * length + at[axis] % length;
    if (!experts.empty()) at[0] = experts[at[0]];
    return whole.element(at);
  });
}

/// Extends every section of `axis` at its end by elements of 0xEE.
inline NaiveTensor naive_pad(const NaiveTensor& tensor, std::size_t axis, std::uint64_t padded,
                             std::uint64_t sections = 1) {
  std::vector<std::uint64_t> shape = tensor.shape;
  const std::uint64_t before = shape[axis] / sections;
  shape[axis] = padded;
  const std::uint64_t after = padded / sections;
  return build(tensor, shape, [&](std::vector<std::uint64_t> at) {
    const std::uint64_t section = at[axis] / after;
    const std::uint64_t within = at[axis] % after;
    if (within >= before) return std::string(tensor.element_bytes, '\xEE');
    at[axis] = section * before + within;
    return tensor.element(at);
  });
}

/// Every scale repeated for the smaller blocks that take the place of its own; the last row and
/// column may have fewer of them.
inline NaiveTensor naive_retile(const NaiveTensor& scales, std::array<std::uint64_t, 2> repeat,
                                std::uint64_t rows, std::uint64_t cols) {
  std::vector<std::uint64_t> shape = scales.shape;
  const std::size_t r = shape.size() - 2;
  shape[r] = rows;
  shape[r + 1] = cols;
  return build(scales, shape, [&](std::vector<std::uint64_t> at) {
    at[r] /= repeat[0];
    at[r + 1] /= repeat[1];
    return scales.element(at);
  });
}

}  // namespace ingot::testing
