// Kernels per target beside memcpy of the same traffic (a copy that reads as many bytes as the
// kernel reads and writes, halved). One thread. Run pinned: taskset -c 0 kernels_bench
// --benchmark_repetitions=5
//
// Shapes: 128 x 1024 codes (384 KiB in and out: L2) and 32768 x 7168 (705 MB: RAM).

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include <benchmark/benchmark.h>

#ifndef HWY_WANT_AVX3_DL
#define HWY_WANT_AVX3_DL
#endif
#include <hwy/highway.h>
#include <hwy/targets.h>

#include "formats/base/aligned_buffer.h"
#include "quantize/kernels/fp8_cast.h"
#include "quantize/kernels/plain_cast.h"
#include "quantize/scheme.h"

namespace ingot::quantize {
namespace {

enum class Scales { kPowersOfTwo, kGeneral };

struct Extent {
  const char* name;
  std::size_t rows, cols;
};
constexpr Extent kL2{"L2", 128, 1024};
constexpr Extent kRam{"RAM", 32768, 7168};

void fill_bytes(std::byte* data, std::size_t n) {
  std::mt19937_64 random(1);
  for (std::size_t i = 0; i + 8 <= n; i += 8) {
    // No NaN codes, and no exponent of all ones in any wider type.
    const std::uint64_t word = random() & 0xBFBFBFBFBFBFBFBFU;
    std::memcpy(data + i, &word, sizeof word);
  }
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

void report(benchmark::State& state, std::size_t in_bytes, std::size_t out_bytes) {
  const auto rate = [&](std::size_t n_bytes) {
    return benchmark::Counter(static_cast<double>(n_bytes),
                              benchmark::Counter::kIsIterationInvariantRate);
  };
  state.counters["in_bytes/s"] = rate(in_bytes);
  state.counters["out_bytes/s"] = rate(out_bytes);
  state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(in_bytes + out_bytes));
}

void run_memcpy(benchmark::State& state, Extent extent, std::size_t in_size, std::size_t out_size) {
  const std::size_t n_bytes = extent.rows * extent.cols * (in_size + out_size) / 2;
  const AlignedBuffer from(n_bytes);
  const AlignedBuffer to(n_bytes);
  fill_bytes(from.data(), n_bytes);
  std::memset(to.data(), 1, n_bytes);
  for (auto _ : state) {
    std::memcpy(to.data(), from.data(), n_bytes);
    benchmark::ClobberMemory();
  }
  report(state, n_bytes, n_bytes);
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
  const EncodedRows in{.weight = codes.data(),
                       .rows = extent.rows,
                       .cols = extent.cols,
                       .scales = scales,
                       .rows_per_matrix = extent.rows,
                       .scale_cols = extent.cols / 128,
                       .block_rows = block_rows,
                       .block_cols = 128};
  for (auto _ : state) {
    benchmark::DoNotOptimize(cast(in, words.span()));
    benchmark::ClobberMemory();
  }
  report(state, n, 2 * n);
}

template <typename Cast>
void run_plain(benchmark::State& state, Extent extent, std::size_t in_size, Cast cast) {
  const std::size_t n = extent.rows * extent.cols;
  const AlignedBuffer from(in_size * n);
  const AlignedBuffer to(2 * n);
  fill_bytes(from.data(), in_size * n);
  std::memset(to.data(), 1, 2 * n);
  for (auto _ : state) {
    cast(from.data(), n, to.data());
    benchmark::ClobberMemory();
  }
  report(state, in_size * n, 2 * n);
}

template <typename Body>
void add(const std::string& name, Body body) {
  benchmark::RegisterBenchmark(name.c_str(), body);
}

void add_all() {
  for (const Extent extent : {kL2, kRam}) {
    const std::string where = std::string("/") + extent.name;
    add("memcpy_as_fp8_to_bf16" + where, [=](benchmark::State& s) { run_memcpy(s, extent, 1, 2); });
    for (const std::int64_t target : hwy::SupportedAndGeneratedTargets()) {
      const std::string on = where + "/" + hwy::TargetName(target);
      add("fp8_to_bf16" + on, [=](benchmark::State& s) {
        const OnTarget guard(target);
        run_fp8(s, extent, 128, Scales::kGeneral, cast_fp8_block_to_bf16);
      });
    }
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
    add("memcpy_as_f32_to_bf16" + where, [=](benchmark::State& s) { run_memcpy(s, extent, 4, 2); });
    add("f32_to_bf16" + best,
        [=](benchmark::State& s) { run_plain(s, extent, 4, cast_f32_to_bf16); });
    add("f16_to_bf16" + best,
        [=](benchmark::State& s) { run_plain(s, extent, 2, cast_f16_to_bf16); });
  }
}

}  // namespace
}  // namespace ingot::quantize

int main(int argc, char** argv) {
  ingot::quantize::add_all();
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}
