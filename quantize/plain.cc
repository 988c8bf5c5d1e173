// The schemes without scales.

#include <array>
#include <cmath>

#include "quantize/kernels/plain_cast.h"
#include "quantize/kernels/row_scan.h"
#include "quantize/schemes.h"

namespace ingot::quantize {
namespace {

template <WordCast FromFloat>
EncodeFaults encode_words(const EncodeInput& in, const EncodeOutput& out) {
  for (std::size_t r = 0; r < in.values.rows && in.values.cols > 0; ++r) {
    cast_words(FromFloat, reinterpret_cast<const std::byte*>(in.values.row(r)), in.values.cols,
               out.weight + r * out.weight_stride);
  }
  return {};
}

EncodeFaults encode_f16(const EncodeInput& in, const EncodeOutput& out) {
  encode_words<WordCast::kF32ToF16>(in, out);
  EncodeFaults faults;
  // The first magnitude that rounds to infinity is halfway between 65504 and 65536.
  constexpr float kFirstInfinite = 65520.0F;
  for (std::size_t r = 0; r < in.values.rows; ++r) {
    const float* row = in.values.row(r);
    if (finite_amax(row, in.values.cols) < kFirstInfinite) continue;
    for (std::size_t c = 0; c < in.values.cols; ++c) {
      if (std::fabs(row[c]) < kFirstInfinite || !std::isfinite(row[c])) continue;
      if (faults.overflows++ == 0) faults.first_overflow = r * in.values.cols + c;
    }
  }
  return faults;
}

constexpr std::array kRows = {
    Scheme{.id = formats::SchemeId::kBf16, .encode = encode_words<WordCast::kF32ToBf16>},
    Scheme{.id = formats::SchemeId::kF16, .encode = encode_f16},
    Scheme{.id = formats::SchemeId::kF32, .encode = encode_words<WordCast::kF32ToF32>},
};

}  // namespace

constinit const std::span<const Scheme> kPlainSchemes = kRows;

}  // namespace ingot::quantize
