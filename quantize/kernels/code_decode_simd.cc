// Codes to FP32, over the decoders of lanes-inl.h.
//
// A decoder's value of a NaN code, or of a code under a scale that is not finite, has no certain
// sign. So groups under such a scale are the twin's, and rows with NaN codes, which a look at their
// bytes finds, get a second look.

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>
#include <utility>
#include <vector>

#include "formats/base/error.h"
#include "formats/container/bfloat16.h"
#include "formats/container/float16.h"
#include "quantize/kernels/codes.h"
#include "quantize/kernels/plain_cast.h"
#include "quantize/scheme.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "quantize/kernels/code_decode_simd.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h.
#include <hwy/highway.h>

#include "quantize/kernels/coded_lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace ingot::quantize {
namespace HWY_NAMESPACE {
#if INGOT_HAS_LANES
namespace {

/// True if there is a NaN among `n` E4M3 codes, which fill a vector at least.
template <class D>
HWY_INLINE bool has_nan_code(D d, const std::uint8_t* codes, std::size_t n) {
  constexpr std::size_t kAtOnce = hn::MaxLanes(d);
  const auto magnitudes = hn::Set(d, formats::kE4m3Nan);
  const auto magnitudes_at = [&](std::size_t i)
                                 HWY_ATTR { return hn::And(hn::LoadU(d, codes + i), magnitudes); };
  // Two chains, each of which waits for itself only.
  auto even = magnitudes_at(n - kAtOnce), odd = even;
  std::size_t i = 0;
  for (; i + 2 * kAtOnce <= n; i += 2 * kAtOnce) {
    even = hn::Max(even, magnitudes_at(i));
    odd = hn::Max(odd, magnitudes_at(i + kAtOnce));
  }
  if (i + kAtOnce <= n) odd = hn::Max(odd, magnitudes_at(i));
  return !hn::AllFalse(d, hn::Eq(hn::Max(even, odd), magnitudes));
}

/// True if there is a NaN among `n` E4M3 codes.
HWY_INLINE bool has_nan_code(const std::byte* codes, std::size_t n) {
  constexpr hn::ScalableTag<std::uint8_t> kMost;
  constexpr hn::FixedTag<std::uint8_t, 16> kSixteen;
  const auto* bytes = reinterpret_cast<const std::uint8_t*>(codes);
  if (n >= hn::MaxLanes(kMost)) return has_nan_code(kMost, bytes, n);
  if (n >= hn::MaxLanes(kSixteen)) return has_nan_code(kSixteen, bytes, n);
  return std::any_of(bytes, bytes + n, [](std::uint8_t code) {
    return (code & formats::kE4m3Nan) == formats::kE4m3Nan;
  });
}

/// Puts the NaN codes of a row right, and counts them.
template <class Code>
HWY_INLINE void settle_nan_codes(const CodedMatrix& in, std::size_t row, float* out,
                                 DecodeFaults& faults) {
  if (!std::is_same_v<Code, E4m3> || !has_nan_code(in.row(row), in.cols)) return;
  for (std::size_t c = 0; c < in.cols; ++c) {
    const float value = E4m3::value(code_at<8>(in.row(row), c));
    if (std::isnan(value)) out[c] = scaled(value, 1.0F);
  }
  count_nan_codes(in.row(row), in.cols, row * in.cols, faults);
}

/// Decodes a row group by group.
template <class Code, class Decoder>
HWY_NOINLINE void decode_groups(const CodedMatrix& in, std::size_t row, float* out,
                                DecodeFaults& faults) {
  constexpr std::size_t kAtOnce = Decoder::kVectors * kDotLanes;
  const auto fills_bytes = [](std::size_t codes) { return codes * Code::kBits % 8 == 0; };
  const typename Decoder::Shared shared(nullptr);
  Decoder decoder;
  decoder.open(in, row);
  const std::size_t first = in.first_group(row);
  std::size_t place = in.block_of_col(0);
  for (std::size_t k = 0, end = in.group_end(0); k < in.cols; ++place) {
    const std::size_t begin = k;
    const float scale = decoder.scales.at(place);
    if (HWY_LIKELY(std::isfinite(scale) && fills_bytes(k) && decoder.begin(place))) {
      // More codes than those of the group may be loaded, but none behind the row.
      while (k + kDotLanes <= end && k + kAtOnce <= in.cols) {
        const auto loaded = decoder.load(shared, k);
        for (std::size_t j = 0; j < Decoder::kVectors && k + kDotLanes <= end; ++j) {
          store_lanes(decoder.lanes(shared, loaded, j), out + k);
          k += kDotLanes;
        }
      }
      for (; k + kDotLanes <= end; k += kDotLanes) store_lanes(decoder.sixteen(shared, k), out + k);
      // The last vector may overlap its predecessor: the same codes give the same values.
      if (k < end && end - begin >= kDotLanes && fills_bytes(end)) {
        store_lanes(decoder.sixteen(shared, end - kDotLanes), out + end - kDotLanes);
        k = end;
      }
    }
    for (; k < end; ++k) {
      const std::uint8_t code = code_at<Code::kBits>(in.row(row), k);
      out[k] = scaled(Code::value(code, in.zero(first + place)), scale);
    }
    end = in.whole_group_end(end);
  }
  settle_nan_codes<Code>(in, row, out, faults);
}

/// True if a decoder can work with all of these scales.
template <class Decoder>
HWY_INLINE bool are_ordinary(const float* scales, std::size_t n) {
  constexpr auto kMost =
      std::bit_cast<std::uint32_t>(std::numeric_limits<float>::max() / Decoder::kUnit);
  std::uint32_t largest = 0;
  for (std::size_t i = 0; i < n; ++i)
    largest = std::max(largest, std::bit_cast<std::uint32_t>(scales[i]) & 0x7FFFFFFFU);
  return largest <= kMost;
}

/// Decodes rows whose groups are a power of two or a row, without a look at each scale.
template <class Code, class Decoder, unsigned kGroupShift>
HWY_NOINLINE void decode_rows(const CodedMatrix& in, formats::MatrixView<float> out,
                              DecodeFaults& faults) {
  constexpr std::size_t kAtOnce = Decoder::kVectors * kDotLanes;
  constexpr std::size_t kSharing = (std::size_t{1} << kGroupShift) / kDotLanes;
  const unsigned shift =
      is_one_group(in) ? 63U : static_cast<unsigned>(std::countr_zero(in.block_cols));
  const std::size_t first_col = in.first_col, cols = in.cols, first_place = first_col >> shift;
  const std::size_t n_groups = ((first_col + cols - 1) >> shift) + 1 - first_place;
  const typename Decoder::Shared shared(nullptr);
  Decoder decoder;
  for (std::size_t r = 0; r < in.rows; ++r) {
    float* to = out.row(r);
    decoder.open(in, r);
    if (HWY_UNLIKELY(cols < kDotLanes ||
                     !are_ordinary<Decoder>(decoder.scales.values + first_place, n_groups))) {
      decode_groups<Code, Decoder>(in, r, to, faults);
      continue;
    }
    // The last sixteen columns come first, under the last scale: those of other groups are written
    // again below.
    if (cols % kDotLanes != 0) {
      decoder.begin(first_place + n_groups - 1);
      store_lanes(decoder.sixteen(shared, cols - kDotLanes), to + cols - kDotLanes);
    }
    std::size_t k = 0;
    for (; k + kAtOnce <= cols; k += kAtOnce) {
      const auto loaded = decoder.load(shared, k);
      HWY_UNROLL(8)
      for (std::size_t j = 0; j < Decoder::kVectors; ++j) {
        if (j % kSharing == 0) decoder.begin((first_col + k + j * kDotLanes) >> shift);
        store_lanes(decoder.lanes(shared, loaded, j), to + k + j * kDotLanes);
      }
    }
    for (; k + kDotLanes <= cols; k += kDotLanes) {
      decoder.begin((first_col + k) >> shift);
      store_lanes(decoder.sixteen(shared, k), to + k);
    }
    settle_nan_codes<Code>(in, r, to, faults);
  }
}

template <class Code>
using DecoderOf =
    std::conditional_t<Code::kBits == 4, NibbleDecoder<Code>, ByteDecoder<Code, false, false>>;

}  // namespace

DecodeFaults decode_codes(const CodedMatrix& in, formats::MatrixView<float> out) {
  DecodeFaults faults;
  with_code(formats::scheme_facts(in.scheme).code, [&](auto code) HWY_ATTR {
    using Code = decltype(code);
    if (in.scales.empty() || !has_groups_of_power(in)) {
      for (std::size_t r = 0; r < in.rows; ++r)
        decode_groups<Code, DecoderOf<Code>>(in, r, out.row(r), faults);
      return;
    }
    with_group_shift(in, [&](auto shift) HWY_ATTR {
      decode_rows<Code, DecoderOf<Code>, shift()>(in, out, faults);
    });
  });
  return faults;
}

#else

DecodeFaults decode_codes(const CodedMatrix& in, formats::MatrixView<float> out) {
  return scalar::decode(in, out);
}

#endif
}  // namespace HWY_NAMESPACE
}  // namespace ingot::quantize
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ingot::quantize {
namespace {
HWY_EXPORT(decode_codes);

void decode_words(const CodedMatrix& in, formats::MatrixView<float> out) {
  const WordCast cast = in.scheme == formats::SchemeId::kBf16  ? WordCast::kBf16ToF32
                        : in.scheme == formats::SchemeId::kF16 ? WordCast::kF16ToF32
                                                               : WordCast::kF32ToF32;
  const std::size_t n_bytes = in.cols * formats::scheme_facts(in.scheme).code_bits / 8;
  for (std::size_t r = 0; r < in.rows; ++r) {
    const std::byte* row = in.row(r);
    // The next tile's part of this row, which is in a page of its own, as all rows are.
    for (std::size_t at = n_bytes; in.row_bytes > n_bytes && at < 2 * n_bytes; at += 64)
      __builtin_prefetch(row + at);
    cast_words(cast, row, in.cols, reinterpret_cast<std::byte*>(out.row(r)));
  }
}

/// The columns of one group are not adjacent, so vectors do not help: the sixteen values of each
/// group are made once a row, and looked up.
void decode_ordered(const CodedMatrix& in, formats::MatrixView<float> out) {
  constexpr std::size_t kCodes = 16;
  const auto groups = in.group_order.subspan(static_cast<std::size_t>(in.first_col), in.cols);
  INGOT_CHECK(std::ranges::all_of(groups, [&](auto group) { return group < in.scale_cols; }));
  std::vector<float> values(kCodes * in.scale_cols);
  for (std::size_t r = 0; r < in.rows; ++r) {
    const std::size_t first = in.first_group(r);
    for (std::size_t place = 0; place < in.scale_cols; ++place) {
      const float scale = in.scale(first + place);
      const std::uint8_t zero = in.zero(first + place);
      for (std::uint8_t code = 0; code < kCodes; ++code)
        values[kCodes * place + code] = scaled(Int4::value(code, zero), scale);
    }
    const std::byte* codes = in.row(r);
    float* row = out.row(r);
    for (std::size_t c = 0; c < in.cols; c += 2) {
      const auto pair = std::to_integer<std::size_t>(codes[c / 2]);
      row[c] = values[kCodes * groups[c] + pair % kCodes];
      row[c + 1] = values[kCodes * groups[c + 1] + pair / kCodes];
    }
  }
}

/// Checks the shapes; false where the run is empty.
bool has_codes(const CodedMatrix& in, formats::MatrixView<float> out) {
  INGOT_CHECK(out.rows == in.rows && out.cols == in.cols);
  check_codes(in);
  return in.rows != 0 && in.cols != 0;
}

}  // namespace

void decode_values(const CodedMatrix& m, std::size_t r, std::size_t c, std::size_t n, float* out) {
  const std::byte* codes = m.row(r);
  const auto numbers = [&](auto bits, const auto& value) {
    for (std::size_t i = 0; i < n; ++i) {
      std::memcpy(&bits, codes + (c + i) * sizeof bits, sizeof bits);
      out[i] = value(bits);
    }
  };
  if (m.scheme == formats::SchemeId::kBf16)
    return numbers(std::uint16_t{}, formats::float_from_bf16);
  if (m.scheme == formats::SchemeId::kF16) return numbers(std::uint16_t{}, formats::float_from_f16);
  if (m.scheme == formats::SchemeId::kF32) return numbers(0.0F, [](float value) { return value; });
  with_code<ReadCodes>(formats::scheme_facts(m.scheme).code, [&](auto code) {
    const std::size_t first = m.first_group(r), end = c + n;
    const auto decode_group = [&](std::size_t group, std::size_t from, std::size_t to) {
      const float scale = m.scale(group);
      const std::uint8_t zero = m.zero(group);
      for (std::size_t k = from; k < to; ++k)
        out[k - c] = scaled(code.value(code_at<code.kBits>(codes, k), zero), scale);
    };
    if (!m.group_order.empty()) {
      for (std::size_t k = c; k < end; ++k)
        decode_group(first + m.group_order[static_cast<std::size_t>(m.first_col) + k], k, k + 1);
      return;
    }
    std::size_t group = first + m.block_of_col(c);
    for (std::size_t k = c, next = m.group_end(c); k < end; ++group) {
      decode_group(group, k, std::min(next, end));
      k = std::exchange(next, m.whole_group_end(next));
    }
  });
}

namespace {

/// Decodes codes without factors of columns, and then multiplies the columns.
template <typename Decode>
DecodeFaults decode_columns(CodedMatrix in, formats::MatrixView<float> out, const Decode& decode) {
  const auto all = std::exchange(in.column_factors, {});
  const DecodeFaults faults = decode(in, out);
  if (in.rows == 0 || in.cols == 0) return faults;
  const auto factors = all.subspan(static_cast<std::size_t>(in.first_col), in.cols);
  for (std::size_t r = 0; r < in.rows; ++r) {
    float* row = out.row(r);
    for (std::size_t c = 0; c < in.cols; ++c) row[c] *= factors[c];
  }
  return faults;
}

}  // namespace

DecodeFaults scalar::decode(const CodedMatrix& in, formats::MatrixView<float> out) {
  DecodeFaults faults;
  if (!has_codes(in, out)) return faults;
  if (!in.column_factors.empty()) return decode_columns(in, out, scalar::decode);
  const bool is_e4m3 = formats::scheme_facts(in.scheme).code == formats::CodeKind::kE4m3;
  for (std::size_t r = 0; r < in.rows; ++r) {
    decode_values(in, r, 0, in.cols, out.row(r));
    if (is_e4m3) count_nan_codes(in.row(r), in.cols, r * in.cols, faults);
  }
  return faults;
}

DecodeFaults decode(const CodedMatrix& in, formats::MatrixView<float> out) {
  if (formats::is_read_only(in.scheme)) return scalar::decode(in, out);
  if (!has_codes(in, out)) return {};
  if (!in.column_factors.empty()) {
    return decode_columns(in, out, [](const CodedMatrix& plain, formats::MatrixView<float> values) {
      return decode(plain, values);
    });
  }
  if (formats::is_quantized(in.scheme) && in.group_order.empty())
    return HWY_DYNAMIC_DISPATCH(decode_codes)(in, out);
  formats::is_quantized(in.scheme) ? decode_ordered(in, out) : decode_words(in, out);
  return {};
}

}  // namespace ingot::quantize
#endif
