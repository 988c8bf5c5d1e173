// Matrix products of the runtime, in one run: matrix-vector products compared with reading the same
// memory, products of many rows with OpenBLAS, medians of the ratios of each round.
//
//   OPENBLAS_CORETYPE=Cooperlake inference_kernels_bench [--rounds N] [--threads T] [--only WORD]
//   [--clock cpu]
//
// Weights are 512 MiB of codes, cut into matrices of 2048 x 7168 (an expert's gate) that follow
// each other, so that nothing is read from a cache.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <fmt/core.h>
#ifdef INGOT_BENCH_OPENBLAS
#include <cblas.h>
#endif

#include "bench/bandwidth.h"
#include "bench/timing.h"
#include "formats/base/aligned_buffer.h"
#include "formats/base/parallel.h"
#include "formats/container/float8.h"
#include "formats/storage/block_scales.h"
#include "formats/storage/encoding.h"
#include "inference/kernels/matmul.h"
#include "inference/kernels/quantized/quantized_matmul.h"
#include "quantize/scheme.h"

namespace ingot::inference {
namespace {

using formats::SchemeId;

constexpr std::size_t kRows = 2048, kCols = 7168;

bench::Clock g_clock;

volatile std::uint64_t g_sink;

void read_all(const AlignedBuffer& memory, std::size_t threads) {
  const std::size_t chunk = memory.size() / (8 * threads);
  parallel_for(8 * threads, threads, [&](std::size_t i) {
    g_sink = bench::sum_of_words(memory.data() + i * chunk, chunk);
  });
}

std::vector<float> normal_values(std::size_t n) {
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  std::vector<float> values(n);
  for (float& value : values) value = normal(random);
  return values;
}

/// Normal weights under a scheme, of kRows x kCols.
class Encoded {
 public:
  explicit Encoded(SchemeId id) : scheme_(id) {
    const formats::SchemeFacts& facts = formats::scheme_facts(id);
    const quantize::Scheme& scheme = *quantize::find_scheme(id);
    const std::vector<float> values = normal_values(kRows * kCols);
    codes_.resize(kRows * kCols * facts.code_bits / 8);
    const auto group = formats::scale_group(id, {kRows, kCols});
    quantize::EncodeInput in{
        .values = {.data = values.data(), .rows = kRows, .cols = kCols, .stride = kCols},
        .block_rows = group[0],
        .block_cols = group[1],
        .options = {.search = quantize::ScaleSearch::kAmax}};
    if (scheme.global != nullptr) in.global = scheme.global(6, in.options, false);
    quantize::EncodeOutput out{.weight = codes_.data(), .weight_stride = codes_.size() / kRows};
    if (facts.quantized) {
      block_rows_ = group[0];
      block_cols_ = group[1];
      scale_cols_ = (kCols + block_cols_ - 1) / block_cols_;
      out.scale_stride = scale_cols_ * formats::dtype_bits(facts.scale_dtype) / 8;
      scales_.resize((kRows + block_rows_ - 1) / block_rows_ * out.scale_stride);
      out.scales = scales_.data();
    }
    scheme.encode(in, out);
    if (const std::size_t width = formats::dtype_bits(facts.scale_dtype) / 8;
        facts.quantized && width > 1) {
      widened_.resize(scales_.size() / width);
      formats::widen_scales(facts.scale_dtype, scales_, std::nullopt, widened_);
    }
    for (std::size_t i = 0; i < 256; ++i) {
      table_.push_back(formats::kE4m3Values[i & 0x7FU] * in.global);
    }
  }

  /// The matrix with its codes elsewhere.
  [[nodiscard]] CodedMatrix at(const std::byte* codes) const {
    CodedMatrix w{.scheme = scheme_,
                  .codes = codes,
                  .rows = kRows,
                  .cols = kCols,
                  .row_bytes = codes_.size() / kRows,
                  .scale_cols = scale_cols_,
                  .block_rows = block_rows_,
                  .block_cols = block_cols_};
    if (scales_.empty()) return w;
    if (!widened_.empty()) {
      w.scales = widened_;
    } else {
      w.scale_codes = reinterpret_cast<const std::uint8_t*>(scales_.data());
      w.scale_values = table_.data();
    }
    return w;
  }
  /// Fills memory with copies of the codes and returns their number.
  std::size_t fill(const AlignedBuffer& memory) const {
    const std::size_t n = memory.size() / codes_.size();
    for (std::size_t i = 0; i < n; ++i) {
      std::memcpy(memory.data() + i * codes_.size(), codes_.data(), codes_.size());
    }
    return n;
  }
  /// Bytes that a product reads: scales count as well where they are held per few codes.
  [[nodiscard]] std::size_t n_bytes() const { return codes_.size() + scales_.size(); }
  [[nodiscard]] std::size_t code_bytes() const { return codes_.size(); }
  [[nodiscard]] SchemeId scheme() const { return scheme_; }

 private:
  SchemeId scheme_;
  std::vector<std::byte> codes_, scales_;
  std::vector<float> table_, widened_;  // scales of NVFP4's codes; those wider than a byte
  std::size_t block_rows_ = 0, block_cols_ = 0, scale_cols_ = 0;
};

struct Contest {
  std::string name;
  const Encoded* weights;
  /// One product of `rows` rows.
  std::function<void(const CodedMatrix& w, std::size_t rows, std::size_t threads)> multiply;
  double asked;  ///< of the bandwidth; 0: no demand
};

/// Activations, quantized in every way, and room for results.
struct Operands {
  Operands() : x(normal_values(kMostRows * kCols)), y(kMostRows * kRows) {}

  [[nodiscard]] MatrixView<const float> rows(std::size_t m) const {
    return {.data = x.data(), .rows = m, .cols = kCols, .stride = kCols};
  }
  [[nodiscard]] MatrixView<float> results(std::size_t m) {
    return {.data = y.data(), .rows = m, .cols = kRows, .stride = kRows};
  }

  static constexpr std::size_t kMostRows = 512;
  std::vector<float> x, y;
};

std::vector<Contest> contests(const std::vector<Encoded>& all, Operands& operands) {
  std::vector<Contest> out;
  for (const Encoded& weights : all) {
    const std::string name(formats::scheme_facts(weights.scheme()).name);
    const bool four_bits = formats::scheme_facts(weights.scheme()).code_bits == 4;
    const bool plain = weights.scheme() == SchemeId::kF32;
    const auto exact = [&operands](const CodedMatrix& w, std::size_t m, std::size_t threads) {
      matmul(operands.rows(m), w, WeightRounding::kExact, operands.results(m), threads);
    };
    out.push_back({name + ", f32", &weights, exact, plain ? 0 : four_bits ? 0.5 : 0.7});
    if (weights.scheme() == SchemeId::kFp8Block || weights.scheme() == SchemeId::kInt8Channel) {
      out.push_back({name + ", weights rounded to bf16", &weights,
                     [&operands](const CodedMatrix& w, std::size_t m, std::size_t threads) {
                       matmul(operands.rows(m), w, WeightRounding::kBf16, operands.results(m),
                              threads);
                     },
                     0});
      ActivationFormat format;
      if (weights.scheme() == SchemeId::kFp8Block) {
        format.code = formats::CodeKind::kE4m3;
        format.group = 128;
      }
      out.push_back({name + ", native", &weights,
                     [&operands, format](const CodedMatrix& w, std::size_t m, std::size_t threads) {
                       quantized_matmul(quantize_activations(operands.rows(m), format), w, {},
                                        operands.results(m), threads);
                     },
                     0.7});
    }
  }
  return out;
}

void run_matrix_vector(const std::vector<Contest>& all, const AlignedBuffer& memory,
                       std::size_t threads, int rounds) {
  std::vector<double> bandwidths;
  std::vector<std::vector<double>> speeds(all.size()), ratios(all.size());
  for (std::size_t i = 0; i < all.size(); ++i) {
    const Encoded& weights = *all[i].weights;
    const std::size_t n = weights.fill(memory);
    for (int round = 0; round < rounds; ++round) {
      const double bandwidth = static_cast<double>(memory.size()) /
                               bench::seconds_of(g_clock, [&] { read_all(memory, threads); });
      const double seconds = bench::seconds_of(g_clock, [&] {
        for (std::size_t j = 0; j < n; ++j) {
          all[i].multiply(weights.at(memory.data() + j * weights.code_bytes()), 1, threads);
        }
      });
      bandwidths.push_back(bandwidth);
      speeds[i].push_back(static_cast<double>(n * weights.n_bytes()) / seconds);
      ratios[i].push_back(speeds[i].back() / bandwidth);
    }
  }
  fmt::print("\nmatrix-vector, {} x {}, {} threads, medians of {} rounds\n", kRows, kCols, threads,
             rounds);
  fmt::print("  {:<40} {:6.1f} GB/s\n", "reading 512 MiB", bench::median(bandwidths) / 1e9);
  for (std::size_t i = 0; i < all.size(); ++i) {
    fmt::print("  {:<40} {:6.1f} GB/s  {:5.2f} of reading{}\n", all[i].name,
               bench::median(speeds[i]) / 1e9, bench::median(ratios[i]),
               all[i].asked == 0 ? std::string() : fmt::format(" (asked: {})", all[i].asked));
  }
}

/// The same product by OpenBLAS, on FP32 weights; 0 without it.
class Reference {
 public:
  double flops_per_second(Operands& operands, std::size_t m, std::size_t threads) {
#ifdef INGOT_BENCH_OPENBLAS
    if (weights_.empty()) weights_ = normal_values(kRows * kCols);
    openblas_set_num_threads(static_cast<int>(threads));
    const double seconds = bench::seconds_of(g_clock, [&] {
      cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, static_cast<int>(m),
                  static_cast<int>(kRows), static_cast<int>(kCols), 1, operands.x.data(),
                  static_cast<int>(kCols), weights_.data(), static_cast<int>(kCols), 0,
                  operands.y.data(), static_cast<int>(kRows));
    });
    return 2.0 * static_cast<double>(m * kRows * kCols) / seconds;
#else
    (void)operands;
    (void)m;
    (void)threads;
    return 0;
#endif
  }
  static std::string name() {
#ifdef INGOT_BENCH_OPENBLAS
    return std::string("sgemm of OpenBLAS, ") + openblas_get_corename();
#else
    return "no OpenBLAS";
#endif
  }

 private:
  std::vector<float> weights_;
};

void run_many_rows(const std::vector<Contest>& all, Operands& operands, const AlignedBuffer& memory,
                   std::size_t m, std::size_t threads, int rounds) {
  const double flops = 2.0 * static_cast<double>(m * kRows * kCols);
  Reference reference;
  std::vector<double> references;
  std::vector<std::vector<double>> speeds(all.size()), ratios(all.size());
  for (std::size_t i = 0; i < all.size(); ++i) {
    all[i].weights->fill(memory);
    const CodedMatrix w = all[i].weights->at(memory.data());
    for (int round = 0; round < rounds; ++round) {
      const double of_reference = reference.flops_per_second(operands, m, threads);
      references.push_back(of_reference);
      speeds[i].push_back(flops /
                          bench::seconds_of(g_clock, [&] { all[i].multiply(w, m, threads); }));
      ratios[i].push_back(of_reference > 0 ? speeds[i].back() / of_reference : 0);
    }
  }
  fmt::print("\n{} rows x ({} x {}), {} threads, medians of {} rounds\n", m, kRows, kCols, threads,
             rounds);
  fmt::print("  {:<40} {:6.1f} GFLOP/s\n", Reference::name(), bench::median(references) / 1e9);
  for (std::size_t i = 0; i < all.size(); ++i) {
    const bool asked = all[i].name.ends_with(", f32");
    fmt::print("  {:<40} {:6.1f} GFLOP/s  {:5.2f} of sgemm{}\n", all[i].name,
               bench::median(speeds[i]) / 1e9, bench::median(ratios[i]),
               asked ? " (asked: 0.7)" : "");
  }
}

}  // namespace
}  // namespace ingot::inference

int main(int argc, char** argv) {
  using namespace ingot::inference;
  int rounds = 9;
  std::string only;
  std::vector<std::size_t> thread_counts{1, 2};
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string flag = argv[i];
    if (flag == "--rounds") {
      rounds = std::max(1, std::atoi(argv[i + 1]));
    } else if (flag == "--threads") {
      thread_counts = {static_cast<std::size_t>(std::max(1, std::atoi(argv[i + 1])))};
    } else if (flag == "--clock") {
      g_clock.processors = std::string(argv[i + 1]) == "cpu";
    } else if (flag == "--only") {
      only = argv[i + 1];
    } else {
      fmt::print(stderr, "unknown option {}\n", flag);
      return 2;
    }
  }
  const ingot::AlignedBuffer memory(ingot::bench::kBandwidthBytes);
  std::vector<Encoded> weights;
  for (const SchemeId id : {SchemeId::kF32, SchemeId::kBf16, SchemeId::kFp8Block,
                            SchemeId::kInt8Channel, SchemeId::kNvfp4, SchemeId::kInt4Group}) {
    weights.emplace_back(id);
  }
  Operands operands;
  std::vector<Contest> all = contests(weights, operands);
  std::erase_if(all, [&](const Contest& c) { return c.name.find(only) == std::string::npos; });
  if (all.empty()) return 0;
  for (const std::size_t threads : thread_counts) {
    g_clock.threads = threads;
    run_matrix_vector(all, memory, threads, rounds);
    for (const std::size_t m : {std::size_t{128}, std::size_t{512}}) {
      run_many_rows(all, operands, memory, m, threads, rounds);
    }
  }
  return 0;
}
