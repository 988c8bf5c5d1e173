// Entries of compressors against a plain reference in FP64, on weights of a small checkpoint.

#include "inference/model/attention/compressor.h"

#include <cmath>
#include <filesystem>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "inference/base/matrix.h"
#include "inference/family/model_family.h"
#include "inference/parallel/comm.h"
#include "tests/inference/model/runner.h"

namespace ingot::testing {
namespace {

using namespace inference;

constexpr std::size_t kTokens = 300;

struct Compressed {
  std::size_t layer;
  CompressorSpec spec;
};

void PrintTo(const Compressed& row, std::ostream* out) {
  *out << "every" << row.spec.ratio;
}

class CompressorEntries : public ::testing::TestWithParam<Compressed> {
 protected:
  CompressorEntries()
      : source_(shard::open_source(std::filesystem::path(INGOT_SOURCE_DIR) /
                                   "tests/golden/families/deepseek_v4")),
        spec_(model_spec(source_)),
        weights_(source_, Profile::kF32, 1),
        width_(spec_.layers[GetParam().layer].find<CompressedSpec>()->head_dim),
        prefix_("layers." + std::to_string(GetParam().layer) + ".attn.compressor."),
        x_(kTokens, spec_.hidden) {
    std::mt19937 random(7);
    std::normal_distribution<float> normal;
    for (float& value : x_.values()) value = normal(random);
  }

  [[nodiscard]] std::vector<double> decoded(const std::string& name, std::size_t rows,
                                            std::size_t cols) const {
    const auto values = weights_.vector(prefix_ + name, {rows, cols});
    return {values.begin(), values.end()};
  }

  [[nodiscard]] const RopeSpec& rope() const {
    return spec_.layers[GetParam().layer].find<CompressedSpec>()->rope;
  }

  /// What tokens give, straight from the definition: entry w of all tokens.
  [[nodiscard]] std::vector<double> reference(std::size_t window) const {
    const auto& [ratio, overlap] = GetParam().spec;
    const std::size_t outputs = (overlap ? 2 : 1) * width_, hidden = spec_.hidden;
    const auto values = decoded("wkv.weight", outputs, hidden);
    const auto gates = decoded("wgate.weight", outputs, hidden);
    const auto ape = decoded("ape", ratio, outputs);
    const auto norm = weights_.vector(prefix_ + "norm.weight", {width_});
    const auto product = [&](const std::vector<double>& matrix, std::size_t row, std::size_t t) {
      double sum = 0;
      for (std::size_t k = 0; k < hidden; ++k) sum += matrix[row * hidden + k] * x_.row(t)[k];
      return sum;
    };
    std::vector<double> entry(width_);
    double squares = 0;
    for (std::size_t c = 0; c < width_; ++c) {
      double weight = 0, sum = 0;
      const auto add = [&](std::size_t which, std::size_t column) {
        for (std::size_t i = 0; i < ratio; ++i) {
          const std::size_t t = which * ratio + i;
          const double e = std::exp(product(gates, column, t) + ape[i * outputs + column]);
          weight += e;
          sum += e * product(values, column, t);
        }
      };
      if (overlap && window > 0) add(window - 1, c);
      add(window, overlap ? width_ + c : c);
      entry[c] = sum / weight;
      squares += entry[c] * entry[c];
    }
    const double root = std::sqrt(squares / static_cast<double>(width_) + spec_.norm.eps);
    for (std::size_t c = 0; c < width_; ++c) entry[c] *= norm[c] / root;
    const RopeSpec& rope = this->rope();
    for (std::size_t i = 0; i < rope.dim / 2; ++i) {
      double& a = entry[width_ - rope.dim + 2 * i];
      double& b = entry[width_ - rope.dim + 2 * i + 1];
      const double angle = static_cast<double>(window * ratio) * rope.freqs[i];
      const double turned = a * std::cos(angle) - b * std::sin(angle);
      b = b * std::cos(angle) + a * std::sin(angle);
      a = turned;
    }
    return entry;
  }

  formats::Checkpoint source_;
  ModelSpec spec_;
  WeightStore weights_;
  std::size_t width_;
  std::string prefix_;
  Matrix x_;
};

TEST_P(CompressorEntries, AgreeWithThePlainReference) {
  OneRank comm;
  const StepContext context{.spec = spec_, .comm = comm};
  const CompressorSpec spec = GetParam().spec;
  const BlockWeights weights(weights_, static_cast<std::uint32_t>(GetParam().layer));
  const Compressor compressor(weights, context, /*is_of_indexer=*/false, spec, width_);
  std::vector<float> state(window_values(spec, width_));
  std::size_t at = 0, n_entries = 0;
  for (const std::size_t count : {1U, 100U, 27U, 130U, 42U}) {
    std::vector<Row> rows;
    Matrix part(count, spec_.hidden);
    for (std::size_t i = 0; i < count; ++i) {
      rows.push_back({.position = static_cast<std::uint32_t>(at + i)});
      std::ranges::copy(x_.row(at + i), part.row(i).begin());
    }
    at += count;
    const StepRows grouped(rows);
    const Matrix entries = compressor.entries(context, rope(), grouped.runs[0],
                                              compressor.project(context, grouped, part), state);
    for (std::size_t i = 0; i < entries.rows(); ++i, ++n_entries) {
      const std::vector<double> wanted = reference(n_entries);
      for (std::size_t c = 0; c < width_; ++c) {
        EXPECT_NEAR(entries.row(i)[c], wanted[c], 2e-5) << "entry " << n_entries << ", " << c;
      }
    }
  }
  EXPECT_EQ(at, kTokens);
  EXPECT_EQ(n_entries, kTokens / spec.ratio);
}

INSTANTIATE_TEST_SUITE_P(Layers, CompressorEntries,
                         ::testing::Values(Compressed{1, {.ratio = 4, .overlap = true}},
                                           Compressed{2, {.ratio = 128, .overlap = false}}),
                         ::testing::PrintToStringParamName());

}  // namespace
}  // namespace ingot::testing
