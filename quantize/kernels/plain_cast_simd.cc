// Between plain floating-point types: the scalar formulas of formats/, compiled once per target.
// They are free of branches and calls, so the compiler's own vectors serve; written out in Highway
// they would say the same.

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "formats/container/bfloat16.h"
#include "formats/container/float16.h"
#include "quantize/kernels/plain_cast.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "quantize/kernels/plain_cast_simd.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h.
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace ingot::quantize {
namespace HWY_NAMESPACE {

/// A function object rather than a function pointer, so that it is inlined into each target.
template <typename From, typename Convert>
HWY_INLINE void convert_all(const std::byte* HWY_RESTRICT in, std::size_t n,
                            std::byte* HWY_RESTRICT out, Convert convert) {
  for (std::size_t i = 0; i < n; ++i) {
    From value;
    std::memcpy(&value, in + i * sizeof value, sizeof value);
    const auto word = convert(value);
    std::memcpy(out + i * sizeof word, &word, sizeof word);
  }
}

void cast_words(WordCast cast, const std::byte* in, std::size_t n, std::byte* out) {
  switch (cast) {
    case WordCast::kF32ToBf16:
      return convert_all<float>(in, n, out, [](float v) { return formats::bf16_from_float(v); });
    case WordCast::kF16ToBf16:
      return convert_all<std::uint16_t>(in, n, out, [](std::uint16_t half) {
        return formats::bf16_from_float(formats::float_from_f16(half));
      });
    case WordCast::kF32ToF16:
      return convert_all<float>(in, n, out, [](float v) { return formats::f16_from_float(v); });
    case WordCast::kBf16ToF32:
      return convert_all<std::uint16_t>(
          in, n, out, [](std::uint16_t word) { return formats::float_from_bf16(word); });
    case WordCast::kF16ToF32:
      return convert_all<std::uint16_t>(
          in, n, out, [](std::uint16_t half) { return formats::float_from_f16(half); });
    case WordCast::kF32ToF32:
      std::memcpy(out, in, n * sizeof(float));
  }
}

void round_f32_to_bf16(float* values, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) {
    values[i] = formats::float_from_bf16(formats::bf16_from_float(values[i]));
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace ingot::quantize
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ingot::quantize {
namespace {
HWY_EXPORT(cast_words);
HWY_EXPORT(round_f32_to_bf16);
}  // namespace

void cast_words(WordCast cast, const std::byte* in, std::size_t n, std::byte* out) {
  HWY_DYNAMIC_DISPATCH(cast_words)(cast, in, n, out);
}

void round_f32_to_bf16(float* values, std::size_t n) {
  HWY_DYNAMIC_DISPATCH(round_f32_to_bf16)(values, n);
}

}  // namespace ingot::quantize
#endif
