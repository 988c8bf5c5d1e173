#include "formats/base/error.h"
#include "quantize/kernels/block_grid.h"
#include "quantize/kernels/code_decode.h"
#include "quantize/kernels/scaled_code.h"

namespace ingot::quantize::scalar {

DecodeFaults decode_e4m3(const EncodedRows& in, formats::MatrixView<float> out) {
  INGOT_CHECK(out.rows == in.rows && out.cols == in.cols);
  DecodeFaults faults;
  for_each_piece(in, [&](std::size_t r, std::size_t begin, std::size_t end, float scale) {
    const std::byte* codes = in.weight + r * code_stride(in);
    for (std::size_t c = begin; c < end; ++c) {
      out.row(r)[c] = scaled_e4m3(std::to_integer<std::uint8_t>(codes[c]), scale);
    }
    count_nan_codes(codes + begin, end - begin, r * in.cols + begin, faults);
  });
  return faults;
}

DecodeFaults decode_int8(const EncodedRows& in, formats::MatrixView<float> out) {
  INGOT_CHECK(out.rows == in.rows && out.cols == in.cols);
  for_each_piece(in, [&](std::size_t r, std::size_t begin, std::size_t end, float scale) {
    const std::byte* codes = in.weight + r * code_stride(in);
    for (std::size_t c = begin; c < end; ++c) {
      out.row(r)[c] = scaled_int8(std::to_integer<std::uint8_t>(codes[c]), scale);
    }
  });
  return {};
}

DecodeFaults decode_e2m1(const EncodedRows& in, formats::MatrixView<float> out) {
  INGOT_CHECK(out.rows == in.rows && out.cols == in.cols);
  INGOT_CHECK(in.cols % 2 == 0 && code_stride(in) % 2 == 0);
  for_each_piece(in, [&](std::size_t r, std::size_t begin, std::size_t end, float scale) {
    const std::byte* codes = in.weight + r * (code_stride(in) / 2);
    for (std::size_t c = begin; c < end; ++c) {
      out.row(r)[c] = scaled_e2m1(e2m1_in_byte(codes[c / 2], c), scale);
    }
  });
  return {};
}

}  // namespace ingot::quantize::scalar
