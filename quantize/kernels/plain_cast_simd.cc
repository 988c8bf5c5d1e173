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
template <typename From, typename To, typename Convert>
HWY_INLINE void convert_all(const std::byte* HWY_RESTRICT in, std::size_t n,
                            std::byte* HWY_RESTRICT out, Convert convert) {
  for (std::size_t i = 0; i < n; ++i) {
    From value;
    std::memcpy(&value, in + i * sizeof value, sizeof value);
    const To word = convert(value);
    std::memcpy(out + i * sizeof word, &word, sizeof word);
  }
}

void f32_to_bf16(const std::byte* in, std::size_t n, std::byte* out) {
  convert_all<float, std::uint16_t>(in, n, out,
                                    [](float value) { return formats::bf16_from_float(value); });
}

void f16_to_bf16(const std::byte* in, std::size_t n, std::byte* out) {
  convert_all<std::uint16_t, std::uint16_t>(in, n, out, [](std::uint16_t half) {
    return formats::bf16_from_float(formats::float_from_f16(half));
  });
}

void f32_to_f16(const std::byte* in, std::size_t n, std::byte* out) {
  convert_all<float, std::uint16_t>(in, n, out,
                                    [](float value) { return formats::f16_from_float(value); });
}

void bf16_to_f32(const std::byte* in, std::size_t n, std::byte* out) {
  convert_all<std::uint16_t, float>(
      in, n, out, [](std::uint16_t word) { return formats::float_from_bf16(word); });
}

void f16_to_f32(const std::byte* in, std::size_t n, std::byte* out) {
  convert_all<std::uint16_t, float>(
      in, n, out, [](std::uint16_t half) { return formats::float_from_f16(half); });
}

void round_to_bf16_values(float* values, std::size_t n) {
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
HWY_EXPORT(f32_to_bf16);
HWY_EXPORT(f16_to_bf16);
HWY_EXPORT(f32_to_f16);
HWY_EXPORT(bf16_to_f32);
HWY_EXPORT(f16_to_f32);
HWY_EXPORT(round_to_bf16_values);
}  // namespace

void cast_f32_to_bf16(const std::byte* in, std::size_t n, std::byte* out) {
  HWY_DYNAMIC_DISPATCH(f32_to_bf16)(in, n, out);
}

void cast_f16_to_bf16(const std::byte* in, std::size_t n, std::byte* out) {
  HWY_DYNAMIC_DISPATCH(f16_to_bf16)(in, n, out);
}

void cast_f32_to_f16(const std::byte* in, std::size_t n, std::byte* out) {
  HWY_DYNAMIC_DISPATCH(f32_to_f16)(in, n, out);
}

void cast_bf16_to_f32(const std::byte* in, std::size_t n, std::byte* out) {
  HWY_DYNAMIC_DISPATCH(bf16_to_f32)(in, n, out);
}

void cast_f16_to_f32(const std::byte* in, std::size_t n, std::byte* out) {
  HWY_DYNAMIC_DISPATCH(f16_to_f32)(in, n, out);
}

void round_f32_to_bf16(float* values, std::size_t n) {
  HWY_DYNAMIC_DISPATCH(round_to_bf16_values)(values, n);
}

}  // namespace ingot::quantize
#endif
