// Products of quantized activations and stored codes, four rows of w at a time.
//
// INT8: codes of w are widened to 16 bits and multiplied with those of x in pairs, whose sums are
// added in INT32: exact in any order; columns that fill no vector are the twin's, which is compiled
// for no target in particular (GCC 12 makes AVX-VNNI of such a loop where Highway allows it for
// AVX3_DL, and not every AVX-512 processor has that). E4M3 and E2M1: values of codes, unscaled, in
// the lanes of dot_lanes.h, again for every segment in which neither scale changes; each lane is
// scaled then.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "inference/kernels/matmul_task.h"
#include "inference/kernels/quantized/quantized_task.h"
#include "quantize/kernels/codes.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "inference/kernels/quantized/quantized_matmul_simd.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h.
#include <hwy/cache_control.h>
#include <hwy/highway.h>

#include "inference/kernels/dot_lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace ingot::inference {
namespace HWY_NAMESPACE {
#if INGOT_HAS_LANES
namespace {

constexpr std::size_t kRows = 4;
constexpr hn::CappedTag<std::int32_t, 16> kSums;
constexpr hn::RepartitionToNarrow<decltype(kSums)> kPairs;
constexpr hn::Rebind<std::int8_t, decltype(kPairs)> kNarrow;
using Sums = hn::Vec<decltype(kSums)>;
constexpr std::size_t kPairLanes = hn::MaxLanes(kPairs);

/// Where the scales of four rows of w begin: found once, since it takes divisions.
struct ScaleRows {
  HWY_INLINE ScaleRows(const CodedMatrix& w, std::size_t row) : matrix(w) {
    for (std::size_t n = 0; n < kRows; ++n) {
      first[n] = w.first_group(row + n);
    }
  }
  HWY_INLINE float of(std::size_t n, std::size_t group) const {
    return matrix.scale(first[n] + group);
  }
  HWY_INLINE FourFloats at(std::size_t group) const {
    alignas(16) float scales[kRows];
    for (std::size_t n = 0; n < kRows; ++n) scales[n] = of(n, group);
    return hn::Load(kFourFloats, scales);
  }
  const CodedMatrix& matrix;
  std::size_t first[kRows];
};

template <std::size_t kM>
HWY_INLINE void store_totals(const QuantizedTask& task, std::size_t m0, std::size_t row,
                             const FourFloats (&totals)[kM]) {
  HWY_UNROLL(4)
  for (std::size_t m = 0; m < kM; ++m) {
    hn::StoreU(one_nan(kFourFloats, totals[m]), kFourFloats, task.y.row(m0 + m) + row);
  }
}

/// The sums of a segment with their scales, added to the totals.
template <std::size_t kM>
HWY_INLINE void add_segment(const QuantizedTask& task, std::size_t m0, const ScaledColumns& columns,
                            FourFloats weight_scale, const FourFloats (&sums)[kM],
                            FourFloats (&totals)[kM]) {
  HWY_UNROLL(4)
  for (std::size_t m = 0; m < kM; ++m) {
    const float scale = task.x->scales[(m0 + m) * task.x->groups + columns.x_group];
    const FourFloats factor = hn::Mul(hn::Set(kFourFloats, scale), weight_scale);
    totals[m] = hn::Add(totals[m], hn::Mul(sums[m], factor));
  }
}

template <std::size_t kM>
HWY_INLINE void int8_rows(const QuantizedTask& task, std::size_t m0, std::size_t row) {
  const CodedMatrix& w = task.w;
  const ScaleRows scales(w, row);
  const std::int8_t* codes[kRows];
  const std::int16_t* x[kM];
  FourFloats totals[kM];
  HWY_UNROLL(4)
  for (std::size_t n = 0; n < kRows; ++n) {
    codes[n] = reinterpret_cast<const std::int8_t*>(w.row(row + n));
  }
  HWY_UNROLL(4)
  for (std::size_t m = 0; m < kM; ++m) {
    x[m] = task.integers.data() + (m0 + m) * task.padded;
    totals[m] = hn::Zero(kFourFloats);
  }
  const auto* next_rows = reinterpret_cast<const std::byte*>(codes[0]) + kRows * w.row_bytes;
  for (const ScaledColumns& columns : task.columns) {
    Sums sums[kM][kRows];
    HWY_UNROLL(4)
    for (std::size_t m = 0; m < kM; ++m) {
      HWY_UNROLL(4)
      for (std::size_t n = 0; n < kRows; ++n) sums[m][n] = hn::Zero(kSums);
    }
    std::size_t k = columns.begin;
    for (; k + kPairLanes <= columns.end; k += kPairLanes) {
      HWY_UNROLL(4)
      for (std::size_t n = 0; n < kRows; ++n) {
        if (k % kLineBytes == 0) fetch_ahead(next_rows + k * kRows + n * kLineBytes);
        const auto wide = hn::PromoteTo(kPairs, hn::LoadU(kNarrow, codes[n] + k));
        HWY_UNROLL(4)
        for (std::size_t m = 0; m < kM; ++m) {
          Sums unused = hn::Zero(kSums);
          const auto pairs = hn::LoadU(kPairs, x[m] + k);
#if HWY_ARCH_X86
          sums[m][n] = hn::ReorderWidenMulAccumulate(kSums, pairs, wide, sums[m][n], unused);
#else
          sums[m][n] = hn::ReorderWidenMulAccumulate(kSums, pairs, wide, sums[m][n], unused);
          sums[m][n] = hn::Add(sums[m][n], unused);
#endif
        }
      }
    }
    FourFloats folded[kM];
    HWY_UNROLL(4)
    for (std::size_t m = 0; m < kM; ++m) {
      alignas(16) float four[kRows];
      for (std::size_t n = 0; n < kRows; ++n) {
        std::int64_t sum = hn::GetLane(hn::SumOfLanes(kSums, sums[m][n]));
        sum += scalar::integer_sum(task, m0 + m, row + n, k, columns.end);
        if (task.fixed.quant_bias != nullptr) sum += task.fixed.quant_bias[row + n];
        four[n] = static_cast<float>(sum);
      }
      folded[m] = hn::Load(kFourFloats, four);
    }
    if (task.fixed.deq_scale != nullptr) {
      const FourFloats factor = hn::LoadU(kFourFloats, task.fixed.deq_scale + row);
      HWY_UNROLL(4)
      for (std::size_t m = 0; m < kM; ++m) {
        totals[m] = hn::Add(totals[m], hn::Mul(folded[m], factor));
      }
    } else {
      add_segment<kM>(task, m0, columns, scales.at(columns.w_group), folded, totals);
    }
  }
  store_totals<kM>(task, m0, row, totals);
}

/// E4M3 codes without a scale to multiply with, in units of 1 / kUnit.
struct UnscaledE4m3 : ByteDecoder<quantize::E4m3, false> {
  HWY_INLINE Lanes lanes(const Shared& shared, const Values::Loaded& loaded, std::size_t j) const {
    return Values::lanes(shared.values, loaded, j);
  }
  HWY_INLINE Lanes sixteen(const Shared& shared, std::size_t k) const {
    return Values::sixteen(shared.values, codes + k);
  }
};

/// E2M1 codes under scales that are all 1.
template <class Decoder>
struct UnscaledE2m1 : Decoder {
  static constexpr float kUnit = 1;
};

/// Computes kRows columns of kM rows of y. Inlined into the loop over rows it lacks registers: one
/// row by MXFP4 took 1.7 times as long.
template <class Decoder, std::size_t kM>
HWY_NOINLINE void float_rows(const QuantizedTask& task, const CodedMatrix& unscaled,
                             const typename Decoder::Shared& shared, std::size_t m0,
                             std::size_t row) {
  const ScaleRows scales(task.w, row);
  Decoder decoders[kRows];
  const float* x[kM];
  Lanes totals[kM][kRows];
  HWY_UNROLL(4)
  for (std::size_t n = 0; n < kRows; ++n) {
    decoders[n].open(unscaled, row + n);
  }
  HWY_UNROLL(4)
  for (std::size_t m = 0; m < kM; ++m) {
    x[m] = task.values.data() + (m0 + m) * task.padded;
    HWY_UNROLL(4)
    for (std::size_t n = 0; n < kRows; ++n) totals[m][n] = zero_lanes();
  }
  const auto* next_rows =
      reinterpret_cast<const std::byte*>(decoders[0].line(0)) + kRows * task.w.row_bytes;
  for (const ScaledColumns& columns : task.columns) {
    Lanes sums[kM][kRows];
    HWY_UNROLL(4)
    for (std::size_t m = 0; m < kM; ++m) {
      HWY_UNROLL(4)
      for (std::size_t n = 0; n < kRows; ++n) sums[m][n] = zero_lanes();
    }
    const auto add = [&](std::size_t k, std::size_t n, const Lanes& weights) HWY_ATTR {
      HWY_UNROLL(4)
      for (std::size_t m = 0; m < kM; ++m) add_product(load_lanes(x[m] + k), weights, sums[m][n]);
    };
    constexpr std::size_t kAtOnce = Decoder::kVectors * kDotLanes;
    std::size_t k = columns.begin;
    for (; k + kAtOnce <= columns.end; k += kAtOnce) {
      HWY_UNROLL(4)
      for (std::size_t n = 0; n < kRows; ++n) {
        fetch_ahead(next_rows + k / kAtOnce * kRows * kLineBytes + n * kLineBytes);
        const auto loaded = decoders[n].load(shared, k);
        HWY_UNROLL(4)
        for (std::size_t j = 0; j < Decoder::kVectors; ++j) {
          add(k + j * kDotLanes, n, decoders[n].lanes(shared, loaded, j));
        }
      }
    }
    for (; k + kDotLanes <= columns.end; k += kDotLanes) {
      HWY_UNROLL(4)
      for (std::size_t n = 0; n < kRows; ++n) add(k, n, decoders[n].sixteen(shared, k));
    }
    if (k < columns.end) {
      HWY_UNROLL(4)
      for (std::size_t n = 0; n < kRows; ++n) {
        Lanes rest = twin_lanes(unscaled, row + n, k, columns.end - k, WeightRounding::kExact);
        if constexpr (Decoder::kUnit != 1) {
          rest = scaled_lanes(rest, hn::Set(kFloats, 1 / Decoder::kUnit));
        }
        add(k, n, rest);
      }
    }
    HWY_UNROLL(4)
    for (std::size_t m = 0; m < kM; ++m) {
      const float x_scale = task.x->scales[(m0 + m) * task.x->groups + columns.x_group];
      HWY_UNROLL(4)
      for (std::size_t n = 0; n < kRows; ++n) {
        const float factor = x_scale * scales.of(n, columns.w_group);
        if constexpr (Decoder::kUnit != 1) {
          sums[m][n] = scaled_lanes(sums[m][n], hn::Set(kFloats, Decoder::kUnit));
        }
        const Floats factors = hn::Set(kFloats, factor);
        HWY_UNROLL(4)
        for (std::size_t p = 0; p < kParts; ++p) {
          totals[m][n].part[p] =
              hn::Add(totals[m][n].part[p], hn::Mul(sums[m][n].part[p], factors));
        }
      }
    }
  }
  FourFloats folded[kM];
  HWY_UNROLL(4)
  for (std::size_t m = 0; m < kM; ++m) {
    folded[m] = fold_four(totals[m][0], totals[m][1], totals[m][2], totals[m][3]);
  }
  store_totals<kM>(task, m0, row, folded);
}

/// Calls body(std::integral_constant<kM>, m0) for all rows of x.
template <class Body>
HWY_INLINE void for_rows_of_x(std::size_t rows, const Body& body) {
  std::size_t m = 0;
  for (; m + 2 <= rows; m += 2) body(std::integral_constant<std::size_t, 2>(), m);
  if (m < rows) body(std::integral_constant<std::size_t, 1>(), m);
}

/// Codes of w under scales that are all 1.
struct Unscaled {
  explicit Unscaled(const CodedMatrix& w)
      : matrix(w), ones(w.scale_cols, 1.0F), zeros(w.scale_cols, 0) {
    matrix.first_row = 0;
    matrix.block_rows = w.rows;
    if (!w.scales.empty()) {
      matrix.scales = ones;
      return;
    }
    matrix.scale_codes = zeros.data();
    ones.assign(256, 1.0F);
    matrix.scale_values = ones.data();
    table = e2m1_table(matrix, WeightRounding::kExact);
  }
  CodedMatrix matrix;
  std::vector<float> ones, table;
  std::vector<std::uint8_t> zeros;
};

/// True if segments begin where vectors do.
bool is_aligned(const QuantizedTask& task) {
  return has_regular_groups(task.w) &&
         std::ranges::all_of(task.columns, [](const ScaledColumns& columns) {
           return columns.begin % kDotLanes == 0;
         });
}

}  // namespace

void run_quantized_matmul(const QuantizedTask& task, std::size_t begin, std::size_t end) {
  const std::size_t whole = begin + (end - begin) / kRows * kRows;
  if (task.x->code == formats::CodeKind::kInt8) {
    for (std::size_t row = begin; row < whole; row += kRows) {
      for_rows_of_x(task.x->rows, [&](auto n, std::size_t m0)
                                      HWY_ATTR { int8_rows<decltype(n)::value>(task, m0, row); });
    }
  } else if (is_aligned(task)) {
    const Unscaled unscaled(task.w);
    const auto run = [&](auto decoder) HWY_ATTR {
      using Decoder = decltype(decoder);
      const typename Decoder::Shared shared(unscaled.table.data());
      for (std::size_t row = begin; row < whole; row += kRows) {
        for_rows_of_x(task.x->rows, [&](auto n, std::size_t m0) HWY_ATTR {
          float_rows<Decoder, decltype(n)::value>(task, unscaled.matrix, shared, m0, row);
        });
      }
    };
    if (task.x->code == formats::CodeKind::kE4m3) {
      run(UnscaledE4m3());
    } else if (task.w.block_cols == 16) {
      run(UnscaledE2m1<E2m1Decoder<false, 4>>());
    } else {
      run(UnscaledE2m1<E2m1Decoder<false, 5>>());
    }
  } else {
    scalar::run_quantized_matmul(task, begin, whole);
  }
  scalar::run_quantized_matmul(task, whole, end);
}

#else
using scalar::run_quantized_matmul;
#endif
// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace ingot::inference
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ingot::inference {
namespace {
HWY_EXPORT(run_quantized_matmul);
}  // namespace

void run_quantized_matmul(const QuantizedTask& task, std::size_t begin, std::size_t end) {
  HWY_DYNAMIC_DISPATCH(run_quantized_matmul)(task, begin, end);
}

}  // namespace ingot::inference
#endif
