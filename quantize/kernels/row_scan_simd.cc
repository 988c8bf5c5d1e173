// Largest magnitudes. Floats are compared as integers, in which order infinities and NaNs come
// last: only where one of them turns out to be the largest are the values looked at one by one.

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "formats/container/float8.h"
#include "quantize/coded_matrix.h"
#include "quantize/kernels/code_encode.h"
#include "quantize/kernels/row_scan.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "quantize/kernels/row_scan_simd.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h.
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace ingot::quantize {
namespace HWY_NAMESPACE {
#if HWY_TARGET == HWY_SCALAR

using scalar::e4m3_amax;
using scalar::finite_amax;
using scalar::group_amax;
using scalar::has_nonfinite;

#else
namespace {
namespace hn = hwy::HWY_NAMESPACE;

constexpr hn::ScalableTag<std::int32_t> kInts;
using Ints = hn::Vec<decltype(kInts)>;
constexpr std::size_t kLanes = hn::MaxLanes(kInts);

HWY_INLINE Ints magnitudes(const float* values) {
  return hn::And(hn::LoadU(kInts, reinterpret_cast<const std::int32_t*>(values)),
                 hn::Set(kInts, 0x7FFFFFFF));
}

/// The bits of the largest magnitude, NaNs and infinities included, of at least kLanes values.
HWY_INLINE std::int32_t largest_bits(const float* values, std::size_t n) {
  Ints first = magnitudes(values + n - kLanes);
  Ints second = hn::Zero(kInts);
  std::size_t i = 0;
  for (; i + 2 * kLanes <= n; i += 2 * kLanes) {
    first = hn::Max(first, magnitudes(values + i));
    second = hn::Max(second, magnitudes(values + i + kLanes));
  }
  if (i + kLanes <= n) second = hn::Max(second, magnitudes(values + i));
  return hn::GetLane(hn::MaxOfLanes(kInts, hn::Max(first, second)));
}

constexpr std::int32_t kInfinityBits = 0x7F800000;

HWY_INLINE float piece_amax(const float* values, std::size_t n) {
  if (n < kLanes) return scalar::finite_amax(values, n);
  const std::int32_t largest = largest_bits(values, n);
  if (largest >= kInfinityBits) return scalar::finite_amax(values, n);
  return std::bit_cast<float>(largest);
}

constexpr hn::ScalableTag<std::int8_t> kSignedBytes;
using SignedBytes = hn::Vec<decltype(kSignedBytes)>;
constexpr std::size_t kByteLanes = hn::MaxLanes(kSignedBytes);

/// One more than the magnitudes of codes, which makes a NaN the smallest signed byte.
HWY_INLINE SignedBytes ranks(const std::byte* codes) {
  const auto bytes = hn::LoadU(kSignedBytes, reinterpret_cast<const std::int8_t*>(codes));
  return hn::Add(hn::And(bytes, hn::Set(kSignedBytes, 0x7F)), hn::Set(kSignedBytes, 1));
}

HWY_INLINE std::size_t largest_code(const std::byte* codes, std::size_t n) {
  std::size_t largest = 0;
  std::size_t i = 0;
  if (n >= kByteLanes) {
    SignedBytes rank = hn::Max(hn::Set(kSignedBytes, 1), ranks(codes + n - kByteLanes));
    for (; i + kByteLanes <= n; i += kByteLanes) rank = hn::Max(rank, ranks(codes + i));
    i = n;
    // Ranks are positive by now, so that wider lanes hold several of them side by side.
    constexpr hn::Repartition<std::uint32_t, decltype(kSignedBytes)> kWords;
    const auto words = hn::BitCast(kWords, rank);
    const auto low = hn::Set(kWords, 0xFF);
    const auto pairs = hn::Max(
        hn::BitCast(kInts, hn::Max(hn::BitCast(kInts, hn::And(words, low)),
                                   hn::BitCast(kInts, hn::And(hn::ShiftRight<8>(words), low)))),
        hn::Max(hn::BitCast(kInts, hn::And(hn::ShiftRight<16>(words), low)),
                hn::BitCast(kInts, hn::ShiftRight<24>(words))));
    largest = static_cast<std::size_t>(hn::GetLane(hn::MaxOfLanes(kInts, pairs)) - 1);
  }
  for (; i < n; ++i) {
    const auto magnitude = std::to_integer<std::size_t>(codes[i]) & 0x7FU;
    if (magnitude != formats::kE4m3Nan) largest = std::max(largest, magnitude);
  }
  return largest;
}

}  // namespace

float finite_amax(const float* values, std::size_t n) {
  return piece_amax(values, n);
}

bool has_nonfinite(const float* values, std::size_t n) {
  return n < kLanes ? scalar::has_nonfinite(values, n) : largest_bits(values, n) >= kInfinityBits;
}

void group_amax(formats::MatrixView<const float> values, std::uint64_t block_rows,
                std::uint64_t block_cols, std::span<float> out) {
  std::fill(out.begin(), out.end(), 0.0F);
  const auto across = static_cast<std::size_t>(ceil_div(values.cols, block_cols));
  for (std::size_t r = 0; r < values.rows; ++r) {
    float* group = out.data() + static_cast<std::size_t>(r / block_rows) * across;
    for (std::size_t c = 0; c < values.cols; ++group) {
      const std::size_t n =
          static_cast<std::size_t>(std::min<std::uint64_t>(block_cols, values.cols - c));
      *group = std::max(*group, piece_amax(values.row(r) + c, n));
      c += n;
    }
  }
}

bool e4m3_amax(const CodedMatrix& in, float& largest) {
  bool finite = true;
  largest = 0;
  for (std::size_t r = 0; r < in.rows; ++r) {
    std::size_t group = in.first_group(r) + in.block_of_col(0);
    for (std::size_t c = 0, end = in.group_end(0); c < in.cols; ++group) {
      const std::size_t code = largest_code(in.row(r) + c, end - c);
      const float product = std::fabs(formats::kE4m3Values[code] * in.scale(group));
      finite = finite && std::isfinite(product);
      largest = std::max(largest, product);
      c = std::exchange(end, in.whole_group_end(end));
    }
  }
  return finite;
}

#endif
}  // namespace HWY_NAMESPACE
}  // namespace ingot::quantize
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ingot::quantize {
namespace {
HWY_EXPORT(finite_amax);
HWY_EXPORT(group_amax);
HWY_EXPORT(has_nonfinite);
HWY_EXPORT(e4m3_amax);
}  // namespace

float scalar::finite_amax(const float* values, std::size_t n) {
  float largest = 0;
  for (std::size_t i = 0; i < n; ++i) {
    const float magnitude = std::fabs(values[i]);
    if (std::isfinite(magnitude)) largest = std::max(largest, magnitude);
  }
  return largest;
}

bool scalar::has_nonfinite(const float* values, std::size_t n) {
  return !std::all_of(values, values + n, [](float value) { return std::isfinite(value); });
}

void scalar::group_amax(formats::MatrixView<const float> values, std::uint64_t block_rows,
                        std::uint64_t block_cols, std::span<float> out) {
  std::fill(out.begin(), out.end(), 0.0F);
  for_each_group_piece(values, block_rows, block_cols, out.size(),
                       [&](std::size_t r, std::size_t begin, std::size_t end, std::size_t group) {
                         const float here = finite_amax(values.row(r) + begin, end - begin);
                         out[group] = std::max(out[group], here);
                       });
}

bool scalar::e4m3_amax(const CodedMatrix& in, float& largest) {
  largest = 0;
  bool finite = true;
  for_each_piece(in, [&](std::size_t r, std::size_t begin, std::size_t end, std::size_t group) {
    const std::byte* codes = in.row(r);
    std::size_t code = 0;
    for (std::size_t c = begin; c < end; ++c) {
      const auto magnitude = std::to_integer<std::size_t>(codes[c]) & 0x7FU;
      if (magnitude != formats::kE4m3Nan) code = std::max(code, magnitude);
    }
    const float product = std::fabs(formats::kE4m3Values[code] * in.scale(group));
    finite = finite && std::isfinite(product);
    largest = std::max(largest, product);
  });
  return finite;
}

float finite_amax(const float* values, std::size_t n) {
  return HWY_DYNAMIC_DISPATCH(finite_amax)(values, n);
}

bool has_nonfinite(const float* values, std::size_t n) {
  return HWY_DYNAMIC_DISPATCH(has_nonfinite)(values, n);
}

void group_amax(formats::MatrixView<const float> values, std::uint64_t block_rows,
                std::uint64_t block_cols, std::span<float> out) {
  if (values.rows == 0 || values.cols == 0) return;
  INGOT_CHECK(block_rows > 0 && block_cols > 0);
  INGOT_CHECK(out.size() / ceil_div(values.cols, block_cols) >= ceil_div(values.rows, block_rows));
  HWY_DYNAMIC_DISPATCH(group_amax)(values, block_rows, block_cols, out);
}

bool e4m3_amax(const CodedMatrix& in, float& largest) {
  largest = 0;
  if (in.rows == 0 || in.cols == 0) return true;
  check_scales(in);
  return HWY_DYNAMIC_DISPATCH(e4m3_amax)(in, largest);
}

}  // namespace ingot::quantize
#endif
