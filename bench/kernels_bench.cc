// Kernels per target, compared with memcpy of the same traffic (a copy that reads as many bytes as
// the kernel reads and writes, halved). One thread. Run pinned: taskset -c 0 kernels_bench
// --benchmark_repetitions=5
//
// Shapes: 128 x 1024 codes (L2) and 32768 x 7168 codes, of which those through FP32 take an eighth
// (RAM). Values are normal.

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include <benchmark/benchmark.h>
#include <hwy/highway.h>
#include <hwy/targets.h>

#include "formats/base/aligned_buffer.h"
#include "quantize/kernels/fp8_cast.h"
#include "quantize/kernels/plain_cast.h"
#include "quantize/quality.h"
#include "quantize/rows.h"
#include "quantize/scheme.h"

namespace ingot::quantize {
namespace {

using formats::SchemeId;

enum class Scales { kPowersOfTwo, kGeneral };

struct Extent {
  const char* name;
  std::size_t rows, cols;
};
constexpr Extent kL2{"L2", 128, 1024};
constexpr Extent kRam{"RAM", 32768, 7168};
/// Four bytes per value instead of one.
constexpr Extent kFloatsInL2{"L2", 128, 512};
constexpr Extent kFloatsInRam{"RAM", 4096, 7168};

void fill_bytes(std::byte* data, std::size_t n) {
  std::mt19937_64 random(1);
  for (std::size_t i = 0; i + 8 <= n; i += 8) {
    // No NaN codes, and no exponent of all ones in any wider type.
    const std::uint64_t word = random() & 0xBFBFBFBFBFBFBFBFU;
    std::memcpy(data + i, &word, sizeof word);
  }
}

/// Normal values in the form of floats that BF16 can hold, a long sequence over and over.
void fill_values(float* values, std::size_t n) {
  std::mt19937 random(3);
  std::normal_distribution<float> normal(0, 0.02F);
  constexpr std::size_t kPeriod = 1000003;
  for (std::size_t i = 0; i < n; ++i)
    values[i] = i < kPeriod ? normal(random) : values[i - kPeriod];
  round_to_bf16({.data = values, .rows = 1, .cols = n, .stride = n});
}

/// Moments of inputs that have a third of their mean squares in common with all of their block, as
/// of 64 tokens.
std::vector<float> some_moments(std::size_t cols) {
  constexpr std::size_t kTokens = 64;
  std::vector<float> moments(cols * kMomentBlock), inputs(kMomentBlock);
  std::mt19937 random(4);
  std::normal_distribution<float> normal;
  for (std::size_t block = 0; block < cols / kMomentBlock; ++block) {
    for (std::size_t token = 0; token < kTokens; ++token) {
      const float common = 0.7F * normal(random);
      for (float& input : inputs) input = common + normal(random);
      for (std::size_t i = 0; i < kMomentBlock * kMomentBlock; ++i) {
        moments[block * kMomentBlock * kMomentBlock + i] +=
            inputs[i / kMomentBlock] * inputs[i % kMomentBlock] / kTokens;
      }
    }
  }
  return moments;
}

/// Restricts dispatch to one target while it lives.
class OnTarget {
 public:
  explicit OnTarget(std::int64_t target) { set(target); }
  ~OnTarget() { set(0); }
  OnTarget(const OnTarget&) = delete;
  OnTarget& operator=(const OnTarget&) = delete;

 private:
  static void set(std::int64_t target) {
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  }
};

void report(benchmark::State& state, std::size_t elements, std::size_t in_bytes,
            std::size_t out_bytes) {
  const auto rate = [&](std::size_t n) {
    return benchmark::Counter(static_cast<double>(n),
                              benchmark::Counter::kIsIterationInvariantRate);
  };
  state.counters["elements/s"] = rate(elements);
  state.counters["in_bytes/s"] = rate(in_bytes);
  state.counters["out_bytes/s"] = rate(out_bytes);
  state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(in_bytes + out_bytes));
}

void run_memcpy(benchmark::State& state, Extent extent, std::size_t in_bits, std::size_t out_bits) {
  const std::size_t elements = extent.rows * extent.cols;
  const std::size_t n_bytes = elements * (in_bits + out_bits) / 16;
  const AlignedBuffer from(n_bytes);
  const AlignedBuffer to(n_bytes);
  fill_bytes(from.data(), n_bytes);
  std::memset(to.data(), 1, n_bytes);
  for (auto _ : state) {
    std::memcpy(to.data(), from.data(), n_bytes);
    benchmark::ClobberMemory();
  }
  report(state, elements, n_bytes, n_bytes);
}

void run_fp8(benchmark::State& state, Extent extent, std::uint64_t block_rows, Scales kind,
             Transcode cast) {
  const std::size_t n = extent.rows * extent.cols;
  const AlignedBuffer codes(n);
  const AlignedBuffer words(2 * n);
  fill_bytes(codes.data(), n);
  std::memset(words.data(), 1, 2 * n);
  std::vector<float> scales(extent.rows / block_rows * (extent.cols / 128));
  std::mt19937 random(2);
  for (float& scale : scales) {
    const auto exponent = static_cast<std::uint32_t>(110 + random() % 8);
    const std::uint32_t fraction = kind == Scales::kGeneral ? random() & 0x7FFFFF : 0;
    scale = std::bit_cast<float>(exponent << 23 | fraction);
  }
  const CodedMatrix in{.scheme = SchemeId::kFp8Block,
                       .codes = codes.data(),
                       .rows = extent.rows,
                       .cols = extent.cols,
                       .row_bytes = extent.cols,
                       .scales = scales,
                       .rows_per_matrix = extent.rows,
                       .scale_cols = extent.cols / 128,
                       .block_rows = block_rows,
                       .block_cols = 128};
  for (auto _ : state) {
    benchmark::DoNotOptimize(cast(in, words.span()));
    benchmark::ClobberMemory();
  }
  report(state, n, n, 2 * n);
}

void run_plain(benchmark::State& state, Extent extent, std::size_t in_size, WordCast cast) {
  const std::size_t n = extent.rows * extent.cols;
  const AlignedBuffer from(in_size * n);
  const AlignedBuffer to(2 * n);
  fill_bytes(from.data(), in_size * n);
  std::memset(to.data(), 1, 2 * n);
  for (auto _ : state) {
    cast_words(cast, from.data(), n, to.data());
    benchmark::ClobberMemory();
  }
  report(state, n, in_size * n, 2 * n);
}

/// Groups of INT4, and what is chosen and known for them.
struct Groups {
  std::size_t cols = 128;
  bool has_zeros = false;    ///< zero points are chosen
  bool is_weighted = false;  ///< columns have weights
};

/// Values, and the same values under a scheme.
struct Coded {
  Coded(Extent size, SchemeId id, const EncodeOptions& options, const Groups& groups = {})
      : extent(size),
        scheme(*find_scheme(id)),
        code_bits(formats::scheme_facts(id).code_bits),
        values(size.rows * size.cols * sizeof(float)),
        codes(size.rows * size.cols * code_bits / 8) {
    const formats::SchemeFacts& facts = formats::scheme_facts(id);
    const std::size_t n = extent.rows * extent.cols;
    fill_values(reinterpret_cast<float*>(values.data()), n);
    std::memset(codes.data(), 1, codes.size());
    const auto group = formats::scale_group(id, {extent.rows, extent.cols}, {128, groups.cols});
    in.values = {.data = reinterpret_cast<const float*>(values.data()),
                 .rows = extent.rows,
                 .cols = extent.cols,
                 .stride = extent.cols};
    in.block_rows = group[0];
    in.block_cols = group[1];
    in.options = options;
    if (scheme.global != nullptr) in.global = scheme.global(amax(in.values), options, false);
    out.weight = codes.data();
    out.weight_stride = extent.cols * code_bits / 8;
    if (!facts.quantized) return;
    if (options.search == ScaleSearch::kHessian) {
      moments = factor_moments(some_moments(extent.cols), group[1] / kMomentBlock);
      in.moments = moments;
    }
    const std::size_t scale_rows = (extent.rows + group[0] - 1) / group[0];
    const std::size_t scale_cols = (extent.cols + group[1] - 1) / group[1];
    out.scale_stride = scale_cols * formats::dtype_bits(facts.scale_dtype) / 8;
    stored.resize(scale_rows * out.scale_stride);
    out.scales = stored.data();
    if (groups.has_zeros) {
      zeros.resize(scale_rows * scale_cols);
      out.zeros = zeros.data();
      out.zero_stride = scale_cols;
    }
    if (groups.is_weighted) {
      importance.resize(extent.cols);
      for (std::size_t c = 0; c < importance.size(); ++c)
        importance[c] = 0.1F + static_cast<float>(c * 37 % 101) * 0.02F;
      in.importance = importance;
    }
    // Any scales will do to decode with.
    effective.assign(scale_rows * scale_cols, 0.001F);
    rows.scales = effective;
    rows.rows_per_matrix = extent.rows;
    rows.scale_cols = scale_cols;
    rows.block_rows = group[0];
    rows.block_cols = group[1];
  }

  [[nodiscard]] CodedMatrix encoded() const {
    CodedMatrix run = rows;
    run.scheme = scheme.id;
    run.codes = codes.data();
    run.rows = extent.rows;
    run.cols = extent.cols;
    run.row_bytes = extent.cols * code_bits / 8;
    return run;
  }
  [[nodiscard]] std::size_t elements() const { return extent.rows * extent.cols; }

  Extent extent;
  const Scheme& scheme;
  std::size_t code_bits;
  AlignedBuffer values, codes;
  std::vector<std::byte> stored;
  std::vector<float> effective, importance;
  std::vector<std::uint8_t> zeros;
  std::vector<MomentBlock> moments;
  EncodeInput in;
  EncodeOutput out;
  CodedMatrix rows;
};

void run_encode(benchmark::State& state, Extent extent, SchemeId id, const EncodeOptions& options,
                const Groups& groups = {}) {
  Coded coded(extent, id, options, groups);
  for (auto _ : state) {
    benchmark::DoNotOptimize(coded.scheme.encode(coded.in, coded.out));
    benchmark::ClobberMemory();
  }
  report(state, coded.elements(), coded.values.size(), coded.codes.size());
}

void run_decode(benchmark::State& state, Extent extent, SchemeId id) {
  Coded coded(extent, id, {});
  coded.scheme.encode(coded.in, coded.out);
  const AlignedBuffer floats(coded.values.size());
  std::memset(floats.data(), 1, floats.size());
  for (auto _ : state) {
    benchmark::DoNotOptimize(
        decode(coded.encoded(), {.data = reinterpret_cast<float*>(floats.data()),
                                 .rows = extent.rows,
                                 .cols = extent.cols,
                                 .stride = extent.cols}));
    benchmark::ClobberMemory();
  }
  report(state, coded.elements(), coded.codes.size(), coded.values.size());
}

void run_amax(benchmark::State& state, Extent extent) {
  const Coded coded(extent, SchemeId::kF32, {});
  for (auto _ : state) benchmark::DoNotOptimize(amax(coded.in.values));
  report(state, coded.elements(), coded.values.size(), 0);
}

void run_encoded_amax(benchmark::State& state, Extent extent, SchemeId id) {
  Coded coded(extent, id, {});
  coded.scheme.encode(coded.in, coded.out);
  for (auto _ : state) benchmark::DoNotOptimize(encoded_amax(coded.encoded()));
  report(state, coded.elements(), coded.codes.size(), 0);
}

void run_quality(benchmark::State& state, Extent extent, SchemeId id) {
  Coded coded(extent, id, {});
  std::vector<float> decoded(coded.elements());
  std::memcpy(decoded.data(), coded.values.data(), coded.values.size());
  round_to_bf16({.data = decoded.data(), .rows = 1, .cols = decoded.size(), .stride = 0});
  for (float& value : decoded) value *= 1.01F;
  const QualityRun run{.values = coded.in.values,
                       .decoded = {.data = decoded.data(),
                                   .rows = extent.rows,
                                   .cols = extent.cols,
                                   .stride = extent.cols},
                       .scales = coded.effective,
                       .block_rows = coded.in.block_rows,
                       .block_cols = coded.in.block_cols,
                       .half_top_step = half_top_step(id)};
  for (auto _ : state) benchmark::DoNotOptimize(measure_quality(run));
  report(state, coded.elements(), 2 * coded.values.size(), 0);
}

/// A conversion as it runs in a job, tile by tile: values of the source, a look for those that are
/// not finite, codes, and the error sums of the values that the codes decode to.
void run_conversion(benchmark::State& state, Extent extent, SchemeId from, SchemeId to,
                    const EncodeOptions& options) {
  constexpr std::size_t kTileValues = 32768;
  Coded source(extent, from, {.search = ScaleSearch::kAmax});
  source.scheme.encode(source.in, source.out);
  std::memcpy(source.effective.data(), source.stored.data(), source.stored.size());  // of fp8-block
  Coded target(extent, to, options);
  const std::size_t rows = std::max<std::size_t>(target.in.block_rows, 4);
  const std::size_t cols =
      std::min(extent.cols, target.in.block_rows > 1 ? kTileValues / rows : kTileValues);
  const AlignedBuffer room(rows * cols * sizeof(float)), back(rows * cols * sizeof(float));
  const formats::MatrixView<float> values{
      .data = reinterpret_cast<float*>(room.data()), .rows = rows, .cols = cols, .stride = cols};
  const formats::MatrixView<float> decoded{
      .data = reinterpret_cast<float*>(back.data()), .rows = rows, .cols = cols, .stride = cols};
  const std::size_t group_rows = target.in.block_rows;
  const std::size_t group_cols = std::min<std::size_t>(target.in.block_cols, cols);
  const std::size_t across = cols / group_cols;
  EncodeInput in = target.in;
  in.values = {.data = values.data, .rows = rows, .cols = cols, .stride = cols};
  in.keeps_values = formats::scheme_facts(from).quantized;
  QualitySums sums;
  for (auto _ : state) {
    for (std::size_t row = 0; row + rows <= extent.rows; row += rows) {
      for (std::size_t col = 0; col < extent.cols; col += cols) {
        decode(source.encoded().part(row, rows, col, cols), values);
        if (!in.keeps_values) benchmark::DoNotOptimize(first_nonfinite(in.values));
        EncodeOutput out = target.out;
        out.weight += row * out.weight_stride + col * target.code_bits / 8;
        out.scales += row / group_rows * out.scale_stride +
                      col / group_cols * (out.scale_stride * target.in.block_cols / extent.cols);
        benchmark::DoNotOptimize(target.scheme.encode(in, out));
        const std::span<const float> scales(target.effective.data(), rows / group_rows * across);
        decode({.scheme = target.scheme.id,
                .codes = out.weight,
                .rows = rows,
                .cols = cols,
                .row_bytes = out.weight_stride,
                .scales = scales,
                .rows_per_matrix = rows,
                .scale_cols = across,
                .block_rows = group_rows,
                .block_cols = group_cols},
               decoded);
        sums.add(measure_quality(
            {.values = in.values,
             .decoded = {.data = decoded.data, .rows = rows, .cols = cols, .stride = cols},
             .scales = scales,
             .block_rows = group_rows,
             .block_cols = group_cols,
             .half_top_step = half_top_step(target.scheme.id)}));
      }
    }
    benchmark::ClobberMemory();
  }
  benchmark::DoNotOptimize(sums);
  report(state, source.elements(), source.codes.size(), target.codes.size());
}

template <typename Body>
void add(const std::string& name, Body body) {
  benchmark::RegisterBenchmark(name.c_str(), body);
}

/// One per target that this processor and this build have.
template <typename Body>
void add_on_targets(const std::string& name, Body body) {
  for (const std::int64_t target : hwy::SupportedAndGeneratedTargets()) {
    add(name + "/" + hwy::TargetName(target), [=](benchmark::State& state) {
      const OnTarget guard(target);
      body(state);
    });
  }
}

void add_casts(Extent extent) {
  const std::string where = std::string("/") + extent.name;
  add("memcpy_as_fp8_to_bf16" + where, [=](benchmark::State& s) { run_memcpy(s, extent, 8, 16); });
  add_on_targets("fp8_to_bf16" + where, [=](benchmark::State& s) {
    run_fp8(s, extent, 128, Scales::kGeneral, cast_fp8_block_to_bf16);
  });
  const std::string best = where + "/best";
  add("fp8_to_bf16_powers_of_two" + best, [=](benchmark::State& s) {
    run_fp8(s, extent, 128, Scales::kPowersOfTwo, cast_fp8_block_to_bf16);
  });
  add("fp8_to_bf16_1x128" + best, [=](benchmark::State& s) {
    run_fp8(s, extent, 1, Scales::kGeneral, cast_fp8_block_to_bf16);
  });
  add("fp8_to_bf16" + where + "/scalar_twin", [=](benchmark::State& s) {
    run_fp8(s, extent, 128, Scales::kGeneral, scalar::cast_fp8_block_to_bf16);
  });
  add("memcpy_as_f32_to_bf16" + where, [=](benchmark::State& s) { run_memcpy(s, extent, 32, 16); });
  add("f32_to_bf16" + best,
      [=](benchmark::State& s) { run_plain(s, extent, 4, WordCast::kF32ToBf16); });
  add("f16_to_bf16" + best,
      [=](benchmark::State& s) { run_plain(s, extent, 2, WordCast::kF16ToBf16); });
}

/// Encoders and decoders of the whole table, through FP32.
void add_schemes(Extent extent) {
  const std::string where = std::string("/") + extent.name;
  for (const std::size_t bits : {4U, 8U, 16U, 32U}) {
    add("memcpy_as_f32_and_" + std::to_string(bits) + "_bits" + where,
        [=](benchmark::State& s) { run_memcpy(s, extent, 32, bits); });
  }
  for (const formats::SchemeFacts& facts : formats::schemes()) {
    if (find_scheme(facts.id) == nullptr) continue;
    const std::string name(facts.name);
    const SchemeId id = facts.id;
    add_on_targets("decode_" + name + where,
                   [=](benchmark::State& s) { run_decode(s, extent, id); });
    if (find_scheme(id)->searches.empty()) {
      add_on_targets("encode_" + name + where,
                     [=](benchmark::State& s) { run_encode(s, extent, id, {}); });
    }
    constexpr const char* kWords[] = {"amax", "4over6", "mse", "signed",
                                      "hessian"};  // of ScaleSearch
    for (const ScaleSearch search : find_scheme(id)->searches) {
      add_on_targets("encode_" + name + "_" + kWords[static_cast<std::size_t>(search)] + where,
                     [=](benchmark::State& s) { run_encode(s, extent, id, {.search = search}); });
    }
  }
  for (const std::size_t cols : {32U, 128U}) {
    for (const bool is_weighted : {false, true}) {
      for (const bool has_zeros : {false, true}) {
        add_on_targets("encode_int4-group_mse_g" + std::to_string(cols) +
                           (has_zeros ? "_zeros" : "") + (is_weighted ? "_weighted" : "") + where,
                       [=](benchmark::State& s) {
                         run_encode(s, extent, SchemeId::kInt4Group, {.search = ScaleSearch::kMse},
                                    {cols, has_zeros, is_weighted});
                       });
      }
    }
  }
  for (const SchemeId from : {SchemeId::kBf16, SchemeId::kFp8Block}) {
    for (const SchemeId to : {SchemeId::kFp8Block, SchemeId::kInt8Channel, SchemeId::kNvfp4}) {
      if (from == to) continue;
      for (const ScaleSearch search : {ScaleSearch::kAmax, ScaleSearch::kMse}) {
        add_on_targets(
            "convert_" + std::string(formats::scheme_facts(from).name) + "_to_" +
                std::string(formats::scheme_facts(to).name) +
                (search == ScaleSearch::kMse ? "_mse" : "_amax") + where,
            [=](benchmark::State& s) { run_conversion(s, extent, from, to, {.search = search}); });
      }
    }
  }
  add_on_targets("amax_f32" + where, [=](benchmark::State& s) { run_amax(s, extent); });
  for (const SchemeId id : {SchemeId::kFp8Block, SchemeId::kNvfp4, SchemeId::kBf16}) {
    add_on_targets("amax_" + std::string(formats::scheme_facts(id).name) + where,
                   [=](benchmark::State& s) { run_encoded_amax(s, extent, id); });
  }
  for (const SchemeId id : {SchemeId::kFp8Block, SchemeId::kNvfp4}) {
    add_on_targets("quality_" + std::string(formats::scheme_facts(id).name) + where,
                   [=](benchmark::State& s) { run_quality(s, extent, id); });
  }
}

}  // namespace
}  // namespace ingot::quantize

int main(int argc, char** argv) {
  using namespace ingot::quantize;
  for (const Extent extent : {kL2, kRam}) add_casts(extent);
  for (const Extent extent : {kFloatsInL2, kFloatsInRam}) add_schemes(extent);
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}
