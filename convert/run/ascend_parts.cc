#include "convert/run/ascend_parts.h"

#include <cmath>
#include <cstring>
#include <limits>

#include <fmt/format.h>

#include "formats/base/error.h"

namespace ingot::convert {
namespace {

using formats::Part;

template <typename T>
std::vector<std::byte> bytes_of(const std::vector<T>& values) {
  std::vector<std::byte> bytes(values.size() * sizeof(T));
  if (!bytes.empty()) std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

std::int32_t quant_bias(float offset, std::int64_t sum) {
  // Both factors are integers below 2^53 / 2^8, so the product is exact.
  const double bias = -static_cast<double>(offset) * static_cast<double>(sum);
  if (std::abs(bias) > std::numeric_limits<std::int32_t>::max()) {
    throw Error(ErrorCode::kUnsupported,
                fmt::format("has a quant_bias of {}, beyond 32 bits", bias));
  }
  return static_cast<std::int32_t>(std::nearbyint(bias));
}

}  // namespace

std::vector<std::byte> ascend_part(Part part, const AscendInputs& inputs) {
  switch (part) {
    case Part::kInputScale:
      return bytes_of(std::vector<float>{inputs.input.scale});
    case Part::kInputOffset:
      return bytes_of(std::vector<float>{inputs.input.offset});
    case Part::kDeqScale: {
      std::vector<float> scales;
      for (const float scale : inputs.row_scales) scales.push_back(inputs.input.scale * scale);
      return bytes_of(scales);
    }
    case Part::kQuantBias: {
      std::vector<std::int32_t> biases;
      for (const std::int64_t sum : inputs.row_sums)
        biases.push_back(quant_bias(inputs.input.offset, sum));
      return bytes_of(biases);
    }
    default:
      INGOT_CHECK(false);
  }
  return {};
}

}  // namespace ingot::convert
