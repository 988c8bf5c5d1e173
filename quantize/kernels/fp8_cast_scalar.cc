#include "formats/base/error.h"
#include "quantize/kernels/block_grid.h"
#include "quantize/kernels/fp8_cast.h"
#include "quantize/kernels/fp8_segment.h"

namespace ingot::quantize {

DecodeFaults scalar::cast_fp8_block_to_bf16(const EncodedRows& in, std::span<std::byte> out) {
  if (in.rows == 0 || in.cols == 0) return {};
  INGOT_CHECK(code_stride(in) == in.cols && in.rows <= out.size() / 2 / in.cols);
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

}  // namespace ingot::quantize
