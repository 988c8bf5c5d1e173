#include "formats/base/error.h"
#include "quantize/kernels/block_grid.h"
#include "quantize/kernels/fp8_cast.h"
#include "quantize/kernels/fp8_segment.h"

namespace ingot::quantize {

DecodeFaults scalar::cast_fp8_block_to_bf16(const EncodedRows& in, std::span<std::byte> out) {
  if (in.rows == 0 || in.cols == 0) return {};
  INGOT_CHECK(in.rows <= out.size() / 2 / in.cols);
  const BlockGrid grid(in);
  DecodeFaults faults;
  for (std::size_t r = 0; r < in.rows; ++r) {
    const float* scales = grid.scales_of_row(r);
    for (std::size_t c = 0; c < in.cols;) {
      const std::size_t end = grid.block_end(c);
      const std::size_t at = r * in.cols + c;
      cast_segment(in.weight + at, end - c, scales[grid.block_of_col(c)], out.data() + 2 * at);
      count_nan_codes(in.weight + at, end - c, at, faults);
      c = end;
    }
  }
  return faults;
}

DecodeFaults decode_fp8_block(const EncodedRows& in, formats::MatrixView<float> out) {
  INGOT_CHECK(out.rows == in.rows && out.cols == in.cols);
  if (in.rows == 0 || in.cols == 0) return {};
  const BlockGrid grid(in);
  DecodeFaults faults;
  for (std::size_t r = 0; r < in.rows; ++r) {
    const float* scales = grid.scales_of_row(r);
    float* row = out.row(r);
    const std::byte* codes = in.weight + r * in.cols;
    for (std::size_t c = 0; c < in.cols;) {
      const std::size_t end = grid.block_end(c);
      const float scale = scales[grid.block_of_col(c)];
      for (; c < end; ++c) {
        row[c] = scaled_e4m3(std::to_integer<std::uint8_t>(codes[c]), scale);
      }
    }
    count_nan_codes(codes, in.cols, r * in.cols, faults);
  }
  return faults;
}

}  // namespace ingot::quantize
