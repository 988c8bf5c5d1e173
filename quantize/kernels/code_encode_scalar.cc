#include <algorithm>
#include <cmath>

#include "formats/container/float8.h"
#include "quantize/kernels/code_encode.h"
#include "quantize/kernels/e2m1.h"
#include "quantize/kernels/group_pieces.h"

namespace ingot::quantize::scalar {
namespace {

template <typename Visit>
void for_each_scaled_piece(const ScaledGroups& in, const Visit& visit) {
  for_each_group_piece(in.values, in.block_rows, in.block_cols, in.scales.size(),
                       [&](std::size_t r, std::size_t begin, std::size_t end, std::size_t group) {
                         visit(r, begin, end, in.scales[group]);
                       });
}

std::uint8_t int8_from_float(float quotient) {
  const float rounded = std::nearbyint(std::clamp(quotient, -127.0F, 127.0F));
  return static_cast<std::uint8_t>(static_cast<std::int8_t>(rounded));
}

std::uint8_t e2m1_code(float value, float scale) {
  const std::uint8_t code = e2m1_from_magnitude(std::fabs(value / scale));
  return value < 0 ? static_cast<std::uint8_t>(code | 8U) : code;
}

}  // namespace

void encode_e4m3(const ScaledGroups& in, std::byte* codes, std::size_t stride) {
  for_each_scaled_piece(in, [&](std::size_t r, std::size_t begin, std::size_t end, float scale) {
    for (std::size_t c = begin; c < end; ++c) {
      codes[r * stride + c] = std::byte{formats::e4m3_from_float(in.values.row(r)[c] / scale)};
    }
  });
}

void encode_int8(const ScaledGroups& in, std::byte* codes, std::size_t stride) {
  for_each_scaled_piece(in, [&](std::size_t r, std::size_t begin, std::size_t end, float scale) {
    for (std::size_t c = begin; c < end; ++c) {
      codes[r * stride + c] = std::byte{int8_from_float(in.values.row(r)[c] / scale)};
    }
  });
}

void encode_e2m1(const ScaledGroups& in, std::byte* codes, std::size_t stride) {
  INGOT_CHECK(in.values.cols % 2 == 0);
  for_each_scaled_piece(in, [&](std::size_t r, std::size_t begin, std::size_t end, float scale) {
    for (std::size_t c = begin; c < end; ++c) {
      const std::uint8_t code = e2m1_code(in.values.row(r)[c], scale);
      std::byte& pair = codes[r * stride + c / 2];
      pair = c % 2 == 0 ? std::byte{code} : pair | std::byte{static_cast<std::uint8_t>(code << 4)};
    }
  });
}

}  // namespace ingot::quantize::scalar
