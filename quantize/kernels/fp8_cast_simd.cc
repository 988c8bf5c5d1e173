// FP8 E4M3 to BF16 by byte look-ups instead of arithmetic.
//
// Under one scale a code has 128 possible magnitudes, so a block's results are a table; the
// question is how to look up bytes. Two ways, chosen by target.
//
// AVX-512 VBMI (AVX3_DL and better) permutes bytes out of 128: two tables (low and high bytes of
// the BF16 words) per block, two permutes per 64 codes. Exact by construction for every finite
// scale. Highway 1.0.3 has no two-table byte permute, hence the intrinsics.
//
// The others look up among 16 bytes. As long as no result is subnormal or infinite, rounding
// commutes with powers of two, and the word of a normal code is the word of its mantissa plus its
// exponent e << 7. Splitting e into its lowest bit and the rest leaves 16 table entries (parity,
// mantissa) and an addition of e >> 1 to only the high byte, which cannot carry into it. The eight
// subnormal codes have a table of their own. Both look-ups are made and or-ed: an index with bit 7
// set gives zero, so magnitude - 8 (negative for subnormals) selects in one table and magnitude +
// 0x78, saturating (from 0x80 on for normals), in the other. Blocks whose scale is below 2^-120, or
// negative, or so large that 448 x scale is infinite take the scalar path; real ones do not.
//
// Measured from L2 on one core, input bytes: 15 to 16 GB/s with AVX2 on Zen 3, where memcpy of the
// same traffic makes 27; 24 with AVX3_DL and 23 with AVX3 on Sapphire Rapids, where it makes 33.
// Rejected: conversion through F16C to F32, multiplication and integer rounding (4.7 GB/s on the
// same Zen 3); eight 16-entry look-ups per byte (48 operations for 32 codes, against 19).
//
// Rows are walked in order with the tables of a whole group of blocks at hand, because streams of
// whole rows are faster than hopping from block to block. NaN codes cost one maximum per vector:
// a row is looked at again only if its largest magnitude is the NaN's.

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "formats/base/error.h"
#include "formats/container/bfloat16.h"
#include "formats/container/float8.h"
#include "quantize/kernels/codes.h"
#include "quantize/kernels/fp8_cast.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "quantize/kernels/fp8_cast_simd.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h.
#include <hwy/highway.h>

#ifndef INGOT_QUANTIZE_FP8_CAST_ONCE
#define INGOT_QUANTIZE_FP8_CAST_ONCE
namespace ingot::quantize {
namespace {

/// Blocks whose tables are kept at hand: 64 x 128 columns hold a row of 7168 at once, in 4 KiB (16
/// KiB with VBMI).
constexpr std::size_t kBlocksPerGroup = 64;

/// Casts `n` E4M3 codes that share a scale to BF16 words.
void cast_segment(const std::byte* codes, std::size_t n, float scale, std::byte* out) {
  for (std::size_t i = 0; i < n; ++i) {
    const std::uint16_t word = formats::bf16_from_float(
        scaled(E4m3::value(std::to_integer<std::uint8_t>(codes[i])), scale));
    std::memcpy(out + 2 * i, &word, sizeof word);
  }
}

/// Writes the NaN words of a row and counts them.
void settle_nan_codes(const std::byte* codes, std::size_t n, std::size_t position, std::byte* out,
                      DecodeFaults& faults) {
  DecodeFaults here;
  count_nan_codes(codes, n, position, here);
  if (here.nan_codes == 0) return;
  for (std::size_t i = 0; i < n; ++i) {
    const auto code = std::to_integer<std::uint8_t>(codes[i]);
    if ((code & 0x7FU) != formats::kE4m3Nan) continue;
    const auto word = static_cast<std::uint16_t>(formats::kBf16QuietNan |
                                                 static_cast<unsigned>(code & 0x80U) << 8);
    std::memcpy(out + 2 * i, &word, sizeof word);
  }
  if (faults.nan_codes == 0 || here.first_nan < faults.first_nan) faults.first_nan = here.first_nan;
  faults.nan_codes += here.nan_codes;
}

}  // namespace
}  // namespace ingot::quantize
#endif

// Targets without byte look-ups of 16 entries, or with vectors of unknown length, run the scalar
// twin.
#undef INGOT_BYTE_LOOKUP
#if HWY_TARGET == HWY_SCALAR || HWY_TARGET == HWY_EMU128 || HWY_HAVE_SCALABLE
#define INGOT_BYTE_LOOKUP 0
#elif defined(HWY_SSE2) && HWY_TARGET == HWY_SSE2
#define INGOT_BYTE_LOOKUP 0
#else
#define INGOT_BYTE_LOOKUP 1
#endif
#undef INGOT_BYTE_PERMUTE_128
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3_DL
#define INGOT_BYTE_PERMUTE_128 1
#else
#define INGOT_BYTE_PERMUTE_128 0
#endif

HWY_BEFORE_NAMESPACE();
namespace ingot::quantize {
namespace HWY_NAMESPACE {
#if INGOT_BYTE_LOOKUP
namespace {
namespace hn = hwy::HWY_NAMESPACE;

const hn::ScalableTag<std::uint8_t> kBytes;
using Bytes = hn::Vec<decltype(kBytes)>;
constexpr std::size_t kLanes = hn::MaxLanes(kBytes);

/// Interleaving works within 128-bit parts. On 512 bits one permutation of the codes beforehand
/// makes its results contiguous; on 256 bits two exchanges of halves afterwards are cheaper (a
/// fifth on Zen 3).
HWY_INLINE Bytes load_codes(const std::uint8_t* from) {
  const Bytes codes = hn::LoadU(kBytes, from);
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3
  return Bytes{_mm512_permutexvar_epi64(_mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7), codes.raw)};
#else
  return codes;
#endif
}

/// Low and high bytes of kLanes BF16 words, to memory.
HWY_INLINE void store_words(Bytes low, Bytes high, std::uint8_t* out) {
  Bytes first = hn::InterleaveLower(kBytes, low, high);
  Bytes second = hn::InterleaveUpper(kBytes, low, high);
#if HWY_TARGET == HWY_AVX2
  const Bytes upper = hn::ConcatUpperUpper(kBytes, second, first);
  first = hn::ConcatLowerLower(kBytes, second, first);
  second = upper;
#endif
  hn::StoreU(first, kBytes, out);
  hn::StoreU(second, kBytes, out + kLanes);
}

#if INGOT_BYTE_PERMUTE_128

struct BlockTable {
  alignas(64) std::array<std::uint8_t, 128> low, high;
  bool usable;
};

HWY_INLINE void prepare(float scale, BlockTable& table) {
  table.usable = std::isfinite(scale);
  if (!table.usable) return;
  for (std::size_t i = 0; i < 128; ++i) {
    const std::uint16_t word = formats::bf16_from_float(formats::kE4m3Values[i] * scale);
    table.low[i] = static_cast<std::uint8_t>(word);
    table.high[i] = static_cast<std::uint8_t>(word >> 8);
  }
  table.low[formats::kE4m3Nan] = static_cast<std::uint8_t>(formats::kBf16QuietNan & 0xFF);
  table.high[formats::kE4m3Nan] = static_cast<std::uint8_t>(formats::kBf16QuietNan >> 8);
}

/// The table in registers.
struct Lookup {
  explicit HWY_INLINE Lookup(const BlockTable& table)
      : low0(hn::Load(kBytes, table.low.data())),
        low1(hn::Load(kBytes, table.low.data() + 64)),
        high0(hn::Load(kBytes, table.high.data())),
        high1(hn::Load(kBytes, table.high.data() + 64)) {}

  /// Casts kLanes codes and raises `largest` to their magnitudes.
  HWY_INLINE void cast(const std::uint8_t* from, std::uint8_t* out, Bytes& largest) const {
    const Bytes codes = load_codes(from);
    largest = hn::Max(largest, hn::And(codes, hn::Set(kBytes, 0x7F)));
    // The permute ignores bit 7 of the index.
    const Bytes low{_mm512_permutex2var_epi8(low0.raw, codes.raw, low1.raw)};
    const Bytes high{_mm512_permutex2var_epi8(high0.raw, codes.raw, high1.raw)};
    store_words(low, hn::Xor(high, hn::And(codes, hn::Set(kBytes, 0x80))), out);
  }

  Bytes low0, low1, high0, high1;
};

#else

/// Indices 0-15: normal codes of odd (0-7) and even (8-15) exponent, less (e >> 1) << 8. Indices
/// 24-31: the subnormal codes; 16-23 are never selected.
struct BlockTable {
  alignas(16) std::array<std::uint8_t, 32> low, high;
  bool usable;
};

/// Any odd and any even exponent serve; 7 and 8 are values from 1 to 4.
constexpr std::array<float, 32> kTableValues = [] {
  std::array<float, 32> values{};
  for (std::size_t m = 0; m < 8; ++m) {
    values[m] = formats::kE4m3Values[(7U << 3) + m];
    values[8 + m] = formats::kE4m3Values[(8U << 3) + m];
    values[24 + m] = formats::kE4m3Values[m];
  }
  return values;
}();
constexpr std::array<std::uint16_t, 32> kTableOffsets = [] {
  std::array<std::uint16_t, 32> offsets{};
  for (std::size_t m = 0; m < 8; ++m) {
    offsets[m] = (7U >> 1) << 8;
    offsets[8 + m] = (8U >> 1) << 8;
  }
  return offsets;
}();

HWY_INLINE void prepare(float scale, BlockTable& table) {
  // 2^-6 x 2^-120 is the smallest normal number.
  table.usable =
      scale >= 0x1p-120F && formats::bf16_from_float(448.0F * scale) < formats::kBf16Infinity;
  if (!table.usable) return;
  for (std::size_t i = 0; i < 32; ++i) {
    const auto word = static_cast<std::uint16_t>(formats::bf16_from_float(kTableValues[i] * scale) -
                                                 kTableOffsets[i]);
    table.low[i] = static_cast<std::uint8_t>(word);
    table.high[i] = static_cast<std::uint8_t>(word >> 8);
  }
}

/// table[index & 15], or 0 where bit 7 of the index is set.
HWY_INLINE Bytes look_up(Bytes table, Bytes index) {
#if HWY_ARCH_X86
  return hn::TableLookupBytesOr0(table, index);
#else
  return hn::TableLookupBytesOr0(table, hn::And(index, hn::Set(kBytes, 0x8F)));
#endif
}

/// The table in registers.
struct Lookup {
  explicit HWY_INLINE Lookup(const BlockTable& table)
      : normal_low(hn::LoadDup128(kBytes, table.low.data())),
        normal_high(hn::LoadDup128(kBytes, table.high.data())),
        tiny_low(hn::LoadDup128(kBytes, table.low.data() + 16)),
        tiny_high(hn::LoadDup128(kBytes, table.high.data() + 16)) {}

  /// Casts kLanes codes (NaN codes to something) and raises `largest` to their magnitudes.
  HWY_INLINE void cast(const std::uint8_t* from, std::uint8_t* out, Bytes& largest) const {
    const Bytes codes = load_codes(from);
    const Bytes magnitude = hn::And(codes, hn::Set(kBytes, 0x7F));
    largest = hn::Max(largest, magnitude);
    const Bytes normal = hn::Sub(magnitude, hn::Set(kBytes, 8));
    const Bytes tiny = hn::SaturatedAdd(magnitude, hn::Set(kBytes, 0x78));
    const Bytes low = hn::Or(look_up(normal_low, normal), look_up(tiny_low, tiny));
    const Bytes mantissa = hn::Or(look_up(normal_high, normal), look_up(tiny_high, tiny));
    const Bytes high = hn::Add(mantissa, hn::ShiftRight<4>(magnitude));
    store_words(low, hn::OrAnd(high, codes, hn::Set(kBytes, 0x80)), out);
  }

  Bytes normal_low, normal_high, tiny_low, tiny_high;
};

#endif

/// Whole blocks of this many columns, the common size, get a loop of their own.
constexpr std::size_t kFullBlock = 128;

/// Casts `n_blocks` blocks of kFullBlock codes; returns the largest magnitudes. Apart, so that
/// nothing else competes for registers.
HWY_NOINLINE Bytes cast_full_blocks(const std::uint8_t* codes, std::size_t n_blocks,
                                    const BlockTable* tables, std::uint8_t* out) {
  Bytes largest = hn::Zero(kBytes);
  for (std::size_t b = 0; b < n_blocks; ++b) {
    const Lookup lookup(tables[b]);
    for (std::size_t i = 0; i < kFullBlock; i += kLanes) {
      lookup.cast(codes + i, out + 2 * i, largest);
    }
    codes += kFullBlock;
    out += 2 * kFullBlock;
  }
  return largest;
}

/// Casts `n` codes of one block of any size; returns the largest magnitudes.
HWY_NOINLINE Bytes cast_block(const std::uint8_t* codes, std::size_t n, const BlockTable& table,
                              std::uint8_t* out) {
  const Lookup lookup(table);
  Bytes largest = hn::Zero(kBytes);
  if (n < kLanes) {
    alignas(64) std::array<std::uint8_t, kLanes> some{};
    alignas(64) std::array<std::uint8_t, 2 * kLanes> words;
    std::memcpy(some.data(), codes, n);
    lookup.cast(some.data(), words.data(), largest);
    std::memcpy(out, words.data(), 2 * n);
    return largest;
  }
  std::size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) lookup.cast(codes + i, out + 2 * i, largest);
  // The last vector may overlap its predecessor: the same codes give the same words.
  if (i < n) lookup.cast(codes + n - kLanes, out + 2 * (n - kLanes), largest);
  return largest;
}

/// Consecutive blocks of one panel and their tables.
struct BlockGroup {
  std::size_t begin;  ///< columns of the run
  std::size_t end;
  std::size_t n_blocks;
  bool all_usable;
  std::array<std::size_t, kBlocksPerGroup> ends;
  std::array<std::size_t, kBlocksPerGroup> full_run;  ///< usable full blocks from this one on
  std::array<BlockTable, kBlocksPerGroup> tables;
};

void prepare_group(const float* scales, const CodedMatrix& in, std::size_t begin,
                   BlockGroup& group) {
  group.begin = begin;
  group.end = begin;
  group.n_blocks = 0;
  group.all_usable = true;
  while (group.end < in.cols && group.n_blocks < kBlocksPerGroup) {
    const std::size_t b = group.n_blocks++;
    BlockTable& table = group.tables[b];
    prepare(scales[in.block_of_col(group.end)], table);
    group.all_usable = group.all_usable && table.usable;
    group.ends[b] = in.group_end(group.end);
    group.full_run[b] = table.usable && group.ends[b] - group.end == kFullBlock ? 1 : 0;
    group.end = group.ends[b];
  }
  for (std::size_t b = group.n_blocks - 1; b-- > 0;) {
    if (group.full_run[b] != 0) group.full_run[b] += group.full_run[b + 1];
  }
}

void cast_group_row(const float* scales, const BlockGroup& group, const CodedMatrix& in,
                    std::size_t row, std::byte* out, DecodeFaults& faults) {
  const std::byte* codes = in.codes + row * in.cols;
  std::byte* words = out + 2 * row * in.cols;
  const auto* from = reinterpret_cast<const std::uint8_t*>(codes);
  auto* to = reinterpret_cast<std::uint8_t*>(words);
  Bytes largest = hn::Zero(kBytes);
  std::size_t c = group.begin;
  for (std::size_t b = 0; b < group.n_blocks;) {
    const BlockTable& table = group.tables[b];
    const std::size_t full = group.full_run[b];
    if (full > 0) {
      largest = hn::Max(largest, cast_full_blocks(from + c, full, &table, to + 2 * c));
      b += full;
    } else {
      const std::size_t n = group.ends[b] - c;
      if (table.usable) {
        largest = hn::Max(largest, cast_block(from + c, n, table, to + 2 * c));
      } else {
        cast_segment(codes + c, n, scales[in.block_of_col(c)], words + 2 * c);
      }
      ++b;
    }
    c = group.ends[b - 1];
  }
  const bool has_nan = !hn::AllFalse(kBytes, hn::Eq(largest, hn::Set(kBytes, formats::kE4m3Nan)));
  if (has_nan || !group.all_usable) {
    settle_nan_codes(codes + group.begin, group.end - group.begin, row * in.cols + group.begin,
                     words + 2 * group.begin, faults);
  }
}

}  // namespace

DecodeFaults cast_fp8_block_to_bf16(const CodedMatrix& in, std::span<std::byte> out) {
  check_scales(in);
  DecodeFaults faults;
  BlockGroup group;
  for (std::size_t panel = 0; panel < in.rows; panel = in.panel_end(panel)) {
    const float* scales = in.scales.data() + in.first_group(panel);
    const std::size_t panel_end = in.panel_end(panel);
    for (std::size_t begin = 0; begin < in.cols; begin = group.end) {
      prepare_group(scales, in, begin, group);
      for (std::size_t row = panel; row < panel_end; ++row) {
        cast_group_row(scales, group, in, row, out.data(), faults);
      }
    }
  }
  return faults;
}

#else  // INGOT_BYTE_LOOKUP

using scalar::cast_fp8_block_to_bf16;

#endif
}  // namespace HWY_NAMESPACE
}  // namespace ingot::quantize
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ingot::quantize {
namespace {
HWY_EXPORT(cast_fp8_block_to_bf16);
}  // namespace

DecodeFaults scalar::cast_fp8_block_to_bf16(const CodedMatrix& in, std::span<std::byte> out) {
  if (in.rows == 0 || in.cols == 0) return {};
  INGOT_CHECK((in.rows == 1 || in.row_bytes == in.cols) && in.rows <= out.size() / 2 / in.cols);
  check_scales(in);
  DecodeFaults faults;
  for (std::size_t r = 0; r < in.rows; ++r) {
    const float* scales = in.scales.data() + in.first_group(r);
    for (std::size_t c = 0; c < in.cols;) {
      const std::size_t end = in.group_end(c);
      const std::size_t at = r * in.cols + c;
      cast_segment(in.codes + at, end - c, scales[in.block_of_col(c)], out.data() + 2 * at);
      count_nan_codes(in.codes + at, end - c, at, faults);
      c = end;
    }
  }
  return faults;
}

DecodeFaults cast_fp8_block_to_bf16(const CodedMatrix& in, std::span<std::byte> out) {
  if (in.rows == 0 || in.cols == 0) return {};
  INGOT_CHECK((in.rows == 1 || in.row_bytes == in.cols) && in.rows <= out.size() / 2 / in.cols);
  return HWY_DYNAMIC_DISPATCH(cast_fp8_block_to_bf16)(in, out);
}

}  // namespace ingot::quantize
#endif
