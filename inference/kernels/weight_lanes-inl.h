// Walks the rows of a stored matrix: which decoder reads its scheme, where its scales change, and
// the twin for what fills no vector.

#if defined(INGOT_INFERENCE_KERNELS_WEIGHT_LANES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef INGOT_INFERENCE_KERNELS_WEIGHT_LANES_INL_H_
#undef INGOT_INFERENCE_KERNELS_WEIGHT_LANES_INL_H_
#else
#define INGOT_INFERENCE_KERNELS_WEIGHT_LANES_INL_H_
#endif

#include <array>
#include <cstddef>

#include <hwy/highway.h>

#include "formats/base/error.h"
#include "inference/kernels/code_lanes-inl.h"
#include "inference/kernels/e2m1_lanes-inl.h"
#include "inference/kernels/e4m3_lanes-inl.h"
#include "inference/kernels/matmul_task.h"
#include "inference/kernels/weight_value.h"

#if INGOT_HAS_LANES
HWY_BEFORE_NAMESPACE();
namespace ingot::inference {
namespace HWY_NAMESPACE {
namespace {

/// For matrices whose groups no other decoder can walk: never works, so that the twin does.
struct NoDecoder : PlainDecoder<NoDecoder, 4> {
  HWY_INLINE bool begin(std::size_t /*group*/) { return false; }
  HWY_INLINE Lanes value(std::size_t /*k*/) const { return zero_lanes(); }
};

/// Up to sixteen weights from the twin, zeros after the `n`-th.
HWY_INLINE Lanes twin_lanes(const WeightMatrix& w, std::size_t row, std::size_t col, std::size_t n,
                            WeightRounding rounding) {
  alignas(64) std::array<float, kDotLanes> values{};
  for (std::size_t i = 0; i < n; ++i) {
    values[i] = rounded_weight(weight_value(w, row, col + i), rounding);
  }
  return load_lanes(values.data());
}

/// Columns that share a scale as far as a decoder has to be told.
struct Segment {
  std::size_t begin = 0, end = 0, group = 0;
};

/// Calls visit(segment) for the segments of columns [begin, end) of a row.
template <class Decoder, class Visit>
HWY_INLINE void for_each_segment(const WeightMatrix& w, std::size_t begin, std::size_t end,
                                 const Visit& visit) {
  if constexpr (!Decoder::kGrouped) {
    visit(Segment{begin, end, 0});
  } else {
    Segment segment{begin, begin, w.block_cols == 0 ? 0 : (w.first_col + begin) / w.block_cols};
    while (segment.begin < end) {
      const std::size_t group_end = (segment.group + 1) * w.block_cols - w.first_col;
      segment.end = w.block_cols == 0 || group_end > end ? end : group_end;
      visit(segment);
      segment.begin = segment.end;
      ++segment.group;
    }
  }
}

/// Calls body(Decoder()) with the decoder for a matrix.
template <class Body>
HWY_INLINE void with_decoder(const WeightMatrix& w, WeightRounding rounding, const Body& body) {
  using formats::CodeKind;
  using formats::SchemeId;
  const bool round = rounding == WeightRounding::kBf16;
  const auto choose = [&](auto exact, auto rounded)
                          HWY_ATTR { round ? body(rounded) : body(exact); };
  if (!has_regular_groups(w)) return body(NoDecoder());
  switch (w.scheme) {
    case SchemeId::kBf16:
      return body(Bf16Decoder());
    case SchemeId::kF16:
      return choose(F16Decoder<false>(), F16Decoder<true>());
    case SchemeId::kF32:
      return choose(F32Decoder<false>(), F32Decoder<true>());
    default:
      break;
  }
  switch (formats::scheme_facts(w.scheme).code) {
    case CodeKind::kE4m3:
      return choose(E4m3Decoder<false>(), E4m3Decoder<true>());
    case CodeKind::kInt8:
      return choose(Int8Decoder<false>(), Int8Decoder<true>());
    case CodeKind::kE2m1:
      return w.block_cols == 16 ? choose(E2m1Decoder<false, 4>(), E2m1Decoder<true, 4>())
                                : choose(E2m1Decoder<false, 5>(), E2m1Decoder<true, 5>());
    case CodeKind::kPlain:
      break;
  }
  INGOT_CHECK(false);
}

}  // namespace
// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace ingot::inference
HWY_AFTER_NAMESPACE();
#endif  // INGOT_HAS_LANES

#endif  // per-target include guard
