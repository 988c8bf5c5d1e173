#include <algorithm>
#include <cmath>

#include "formats/container/float8.h"
#include "quantize/kernels/block_grid.h"
#include "quantize/kernels/group_pieces.h"
#include "quantize/kernels/row_scan.h"

namespace ingot::quantize::scalar {

float finite_amax(const float* values, std::size_t n) {
  float largest = 0;
  for (std::size_t i = 0; i < n; ++i) {
    const float magnitude = std::fabs(values[i]);
    if (std::isfinite(magnitude)) largest = std::max(largest, magnitude);
  }
  return largest;
}

void group_amax(formats::MatrixView<const float> values, std::uint64_t block_rows,
                std::uint64_t block_cols, std::span<float> out) {
  std::fill(out.begin(), out.end(), 0.0F);
  for_each_group_piece(values, block_rows, block_cols, out.size(),
                       [&](std::size_t r, std::size_t begin, std::size_t end, std::size_t group) {
                         const float here = finite_amax(values.row(r) + begin, end - begin);
                         out[group] = std::max(out[group], here);
                       });
}

bool e4m3_amax(const EncodedRows& in, float& largest) {
  largest = 0;
  bool finite = true;
  for_each_piece(in, [&](std::size_t r, std::size_t begin, std::size_t end, float scale) {
    const std::byte* codes = in.weight + r * code_stride(in);
    std::size_t code = 0;
    for (std::size_t c = begin; c < end; ++c) {
      const auto magnitude = std::to_integer<std::size_t>(codes[c]) & 0x7FU;
      if (magnitude != formats::kE4m3Nan) code = std::max(code, magnitude);
    }
    const float product = std::fabs(formats::kE4m3Values[code] * scale);
    finite = finite && std::isfinite(product);
    largest = std::max(largest, product);
  });
  return finite;
}

}  // namespace ingot::quantize::scalar
