// Plain floating point to BF16: the scalar formulas of formats/, compiled once per target. They are
// free of branches and calls, so the compiler's own vectors serve; written out in Highway they
// would say the same.

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "formats/bfloat16.h"
#include "formats/float16.h"
#include "quantize/kernels/plain_cast.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "quantize/kernels/plain_cast_simd.cc"
#ifndef HWY_WANT_AVX3_DL
#define HWY_WANT_AVX3_DL
#endif
#include <hwy/foreach_target.h>
// After foreach_target.h.
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace ingot::quantize {
namespace HWY_NAMESPACE {

void f32_rows(const std::byte* HWY_RESTRICT in, std::size_t n, std::byte* HWY_RESTRICT out) {
  for (std::size_t i = 0; i < n; ++i) {
    float value;
    std::memcpy(&value, in + 4 * i, sizeof value);
    const std::uint16_t word = formats::bf16_from_float(value);
    std::memcpy(out + 2 * i, &word, sizeof word);
  }
}

void f16_rows(const std::byte* HWY_RESTRICT in, std::size_t n, std::byte* HWY_RESTRICT out) {
  for (std::size_t i = 0; i < n; ++i) {
    std::uint16_t half;
    std::memcpy(&half, in + 2 * i, sizeof half);
    const std::uint16_t word = formats::bf16_from_float(formats::float_from_f16(half));
    std::memcpy(out + 2 * i, &word, sizeof word);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace ingot::quantize
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ingot::quantize {
namespace {
HWY_EXPORT(f32_rows);
HWY_EXPORT(f16_rows);
}  // namespace

void cast_f32_to_bf16(const std::byte* in, std::size_t n, std::byte* out) {
  HWY_DYNAMIC_DISPATCH(f32_rows)(in, n, out);
}

void cast_f16_to_bf16(const std::byte* in, std::size_t n, std::byte* out) {
  HWY_DYNAMIC_DISPATCH(f16_rows)(in, n, out);
}

}  // namespace ingot::quantize
#endif
