#include <cstring>

#include "formats/base/error.h"
#include "formats/bfloat16.h"
#include "formats/float16.h"
#include "quantize/kernels/plain_cast.h"
#include "quantize/schemes.h"

namespace ingot::quantize {
namespace {

template <typename Word, typename Convert>
DecodeFaults decode_words(const EncodedRows& in, formats::MatrixView<float> out, Convert convert) {
  INGOT_CHECK(out.rows == in.rows && out.cols == in.cols);
  for (std::size_t r = 0; r < in.rows; ++r) {
    const std::byte* from = in.weight + r * in.cols * sizeof(Word);
    float* to = out.row(r);
    for (std::size_t c = 0; c < in.cols; ++c) {
      Word word;
      std::memcpy(&word, from + c * sizeof word, sizeof word);
      to[c] = convert(word);
    }
  }
  return {};
}

DecodeFaults decode_bf16(const EncodedRows& in, formats::MatrixView<float> out) {
  return decode_words<std::uint16_t>(in, out, formats::float_from_bf16);
}

DecodeFaults decode_f16(const EncodedRows& in, formats::MatrixView<float> out) {
  return decode_words<std::uint16_t>(in, out, formats::float_from_f16);
}

DecodeFaults decode_f32(const EncodedRows& in, formats::MatrixView<float> out) {
  INGOT_CHECK(out.rows == in.rows && out.cols == in.cols);
  for (std::size_t r = 0; r < in.rows && in.cols > 0; ++r) {
    std::memcpy(out.row(r), in.weight + r * in.cols * sizeof(float), in.cols * sizeof(float));
  }
  return {};
}

void encode_bf16(formats::MatrixView<const float> in, std::span<std::byte> out) {
  INGOT_CHECK(in.cols == 0 || in.rows <= out.size() / sizeof(std::uint16_t) / in.cols);
  for (std::size_t r = 0; r < in.rows; ++r) {
    cast_f32_to_bf16(reinterpret_cast<const std::byte*>(in.row(r)), in.cols,
                     out.data() + r * in.cols * sizeof(std::uint16_t));
  }
}

void encode_f32(formats::MatrixView<const float> in, std::span<std::byte> out) {
  INGOT_CHECK(in.cols == 0 || in.rows <= out.size() / sizeof(float) / in.cols);
  for (std::size_t r = 0; r < in.rows && in.cols > 0; ++r) {
    std::memcpy(out.data() + r * in.cols * sizeof(float), in.row(r), in.cols * sizeof(float));
  }
}

}  // namespace

DecodeFaults transcode_f32_to_bf16(const EncodedRows& in, std::span<std::byte> out) {
  INGOT_CHECK(in.cols == 0 || in.rows <= out.size() / sizeof(std::uint16_t) / in.cols);
  cast_f32_to_bf16(in.weight, in.rows * in.cols, out.data());
  return {};
}

DecodeFaults transcode_f16_to_bf16(const EncodedRows& in, std::span<std::byte> out) {
  INGOT_CHECK(in.cols == 0 || in.rows <= out.size() / sizeof(std::uint16_t) / in.cols);
  cast_f16_to_bf16(in.weight, in.rows * in.cols, out.data());
  return {};
}

const Scheme kBf16Scheme{.id = formats::SchemeId::kBf16,
                         .element_bytes = 2,
                         .decode = decode_bf16,
                         .encode = encode_bf16};
const Scheme kF16Scheme{
    .id = formats::SchemeId::kF16, .element_bytes = 2, .decode = decode_f16, .encode = nullptr};
const Scheme kF32Scheme{
    .id = formats::SchemeId::kF32, .element_bytes = 4, .decode = decode_f32, .encode = encode_f32};

}  // namespace ingot::quantize
