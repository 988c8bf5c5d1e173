#include "inference/model/attention/attention.h"

#include "formats/container/bfloat16.h"
#include "inference/base/matrix.h"
#include "inference/family/model_family.h"
#include "inference/model/attention/compressor.h"
#include "inference/model/attention/head_growth.h"
#include "inference/model/step/norm.h"
#include "inference/model/step/step.h"
#include "inference/parallel/comm.h"
#include "tests/inference/model/golden_file.h"
#include "tests/inference/model/runner.h"
#include "tests/support/edited_weights.h"
#include "tests/support/test.h"

namespace ingot::inference {

namespace {

constexpr float kScale = 0.3F;

Matrix random_matrix(std::size_t rows, std::size_t cols, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  Matrix matrix(rows, cols);
  for (float& value : matrix.values()) value = normal(random);
  return matrix;
}

/// Queries of several blocks, over two kinds of keys.
struct Problem {
  explicit Problem(std::size_t queries, std::size_t keys)
      : q(random_matrix(queries, 24, 1)),
        q_rope(random_matrix(queries, 8, 2)),
        k(random_matrix(keys, 24, 3)),
        k_rope(random_matrix(keys, 8, 4)),
        v(random_matrix(keys, 20, 5)) {}

  /// Rows [first, first + n).
  [[nodiscard]] Matrix run(std::size_t first, std::size_t n,
                           const std::function<std::size_t(std::size_t)>& visible,
                           std::size_t threads = 1, Profile profile = Profile::kF32) const {
    const ScorePart parts[] = {{{q.row(first).data(), n, 24, 24}, k.view()},
                               {{q_rope.row(first).data(), n, 8, 8}, k_rope.view()}};
    Matrix out(n, 20);
    attend(
        {profile, kScale, threads}, parts, v.view(),
        [&](std::size_t row) { return visible(first + row); }, out.view());
    return out;
  }

  [[nodiscard]] std::vector<double> wanted(std::size_t row, std::size_t seen) const {
    std::vector<double> scores(seen), out(20);
    double top = -INFINITY, sum = 0;
    for (std::size_t t = 0; t < seen; ++t) {
      double dot = 0;
      for (std::size_t i = 0; i < 24; ++i) dot += double{q.row(row)[i]} * double{k.row(t)[i]};
      for (std::size_t i = 0; i < 8; ++i) {
        dot += double{q_rope.row(row)[i]} * double{k_rope.row(t)[i]};
      }
      scores[t] = dot * double{kScale};
      top = std::max(top, scores[t]);
    }
    for (double& score : scores) sum += score = std::exp(score - top);
    for (std::size_t t = 0; t < seen; ++t) {
      for (std::size_t i = 0; i < out.size(); ++i) out[i] += scores[t] / sum * double{v.row(t)[i]};
    }
    return out;
  }

  Matrix q, q_rope, k, k_rope, v;
};

std::size_t causal(std::size_t row) {
  return row + 31;
}
std::size_t ragged(std::size_t row) {
  return row * 37 % 100 + 1;
}

float bf16(float value) {
  return formats::float_from_bf16(formats::bf16_from_float(value));
}

bool same_bits(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size_bytes()) == 0;
}

TEST(Attend, AgreesWithDoubleOverSeveralBlocksOfQueries) {
  const Problem problem(70, 100);
  for (const auto& visible : {causal, ragged}) {
    const Matrix out = problem.run(0, 70, visible);
    for (std::size_t row = 0; row < 70; ++row) {
      const auto wanted = problem.wanted(row, visible(row));
      for (std::size_t i = 0; i < wanted.size(); ++i) {
        EXPECT_NEAR(out.row(row)[i], wanted[i], 3e-6) << row;
      }
    }
  }
}

TEST(Attend, QueryDependsOnWhatItSeesOnly) {
  const Problem problem(70, 100);
  Problem other = problem;
  for (const auto& visible : {causal, ragged}) {
    const Matrix all = problem.run(0, 70, visible);
    EXPECT_TRUE(same_bits(problem.run(0, 70, visible, 2).values(), all.values())) << "threads";
    for (const std::size_t row : {0U, 1U, 31U, 32U, 69U}) {
      const Matrix alone = problem.run(row, 1, visible);
      EXPECT_TRUE(same_bits(alone.values(), all.row(row))) << row;
      other = problem;
      for (std::size_t t = visible(row); t < 100; ++t) {
        std::ranges::fill(other.k.row(t), 1e6F);
        std::ranges::fill(other.v.row(t), -1e30F);
      }
      EXPECT_TRUE(same_bits(other.run(row, 1, visible).values(), all.row(row))) << row;
    }
  }
}

TEST(Attend, WindowsHaveTheBitsOfTheirKeysAlone) {
  const Problem problem(70, 100);
  const auto from = [](std::size_t row) { return row + 31 - std::min<std::size_t>(row + 31, 20); };
  const ScorePart parts[] = {{problem.q.view(), problem.k.view()}};
  Matrix out(70, 20);
  AttentionNumbers numbers{Profile::kF32, kScale, 1};
  numbers.from = from;
  attend(numbers, parts, problem.v.view(), causal, out.view());
  for (std::size_t row = 0; row < 70; ++row) {
    const std::size_t first = from(row), n = causal(row) - first;
    const ScorePart alone[] = {
        {{problem.q.row(row).data(), 1, 24, 24}, {problem.k.row(first).data(), n, 24, 24}}};
    Matrix own(1, 20);
    attend(
        {Profile::kF32, kScale, 1}, alone, {problem.v.row(first).data(), n, 20, 20},
        [&](std::size_t) { return n; }, own.view());
    EXPECT_TRUE(same_bits(own.values(), out.row(row))) << row;
  }
}

// The key that is d before the last one that a query sees has the logit d of its row.
TEST(Attend, AddsLogitsByDistance) {
  const Problem problem(70, 100);
  const Matrix logits = random_matrix(70, 9, 6);
  Matrix out(70, 20);
  const ScorePart parts[] = {{problem.q.view(), problem.k.view()}};
  AttentionNumbers numbers{Profile::kF32, kScale, 1};
  numbers.by_distance = logits.view();
  const auto from = [](std::size_t row) { return row / 3; };
  for (const bool has_window : {false, true}) {
    if (has_window) numbers.from = from;
    attend(numbers, parts, problem.v.view(), causal, out.view());
    for (std::size_t row = 0; row < 70; ++row) {
      const std::size_t first = has_window ? from(row) : 0, last = causal(row) - 1;
      std::vector<double> wanted(20);
      double sum = 0;
      for (std::size_t t = first; t <= last; ++t) {
        double score = 0;
        for (std::size_t i = 0; i < 24; ++i)
          score += double{problem.q.row(row)[i]} * double{problem.k.row(t)[i]};
        score = score * double{kScale} + (last - t < 9 ? double{logits.row(row)[last - t]} : 0.0);
        sum += std::exp(score);
        for (std::size_t i = 0; i < 20; ++i)
          wanted[i] += std::exp(score) * double{problem.v.row(t)[i]};
      }
      for (std::size_t i = 0; i < 20; ++i) EXPECT_NEAR(out.row(row)[i], wanted[i] / sum, 3e-6);
    }
  }
}

TEST(Growth, IsSmoothWhereTheSpecSaysSo) {
  const std::vector<std::uint32_t> positions = {0, 15, 31, 47, 127};
  const GrowthSpec steps{.beta = 0.5F, .length = 32, .offset = 1};
  GrowthSpec smooth = steps;
  smooth.is_smooth = true;
  Matrix by_steps(5, 1), smoothly(5, 1);
  std::ranges::fill(by_steps.values(), 2.0F);
  std::ranges::fill(smoothly.values(), 2.0F);
  grow_queries(Profile::kF32, steps, positions, by_steps);
  grow_queries(Profile::kF32, smooth, positions, smoothly);
  // 2 (1 + log(1 + k) / 2) of k whole lengths, and 2 (1 + log(n) / 2) of n lengths, at least one.
  const std::vector<double> wanted_steps = {2, 2, 2 + std::log(2), 2 + std::log(2),
                                            2 + std::log(5)};
  const std::vector<double> wanted = {2, 2, 2, 2 + std::log(1.5), 2 + std::log(4)};
  for (std::size_t i = 0; i < 5; ++i) {
    EXPECT_NEAR(by_steps.values()[i], wanted_steps[i], 1e-6) << i;
    EXPECT_NEAR(smoothly.values()[i], wanted[i], 1e-6) << i;
  }
}

TEST(HeadGrowth, IsALineInTheLogarithm) {
  const HeadGrowth growth({0.5F, -1.0F}, {1.0F, 3.0F});
  const std::vector<std::uint32_t> positions = {0, 1, 99};
  Matrix queries(3, 4), rounded(3, 4);
  std::ranges::fill(queries.values(), 2.0F);
  std::ranges::fill(rounded.values(), 2.0F);
  growth.apply(Profile::kF32, positions, queries);
  growth.apply(Profile::kBf16, positions, rounded);
  for (std::size_t r = 0; r < 3; ++r) {
    const double logarithm = std::log(positions[r] + 1.0);
    for (std::size_t c = 0; c < 4; ++c) {
      const double wanted = 2 * (c < 2 ? 0.5 * logarithm + 1 : 3 - logarithm);
      EXPECT_NEAR(queries.row(r)[c], wanted, 2e-6) << r << ' ' << c;
      const float line = bf16(static_cast<float>(logarithm)) * (c < 2 ? 0.5F : -1.0F);
      EXPECT_EQ(rounded.row(r)[c], bf16(2 * bf16(bf16(line) + (c < 2 ? 1.0F : 3.0F))));
    }
  }
  Matrix untouched(3, 4);
  std::ranges::fill(untouched.values(), 2.0F);
  HeadGrowth().apply(Profile::kF32, positions, untouched);
  EXPECT_TRUE(std::ranges::all_of(untouched.values(), [](float value) { return value == 2; }));
}

TEST(Attend, OneTokenGivesItsValue) {
  const Problem problem(3, 100);
  const Matrix out = problem.run(0, 3, [](std::size_t) { return std::size_t{1}; });
  for (std::size_t row = 0; row < 3; ++row) EXPECT_TRUE(same_bits(out.row(row), problem.v.row(0)));
}

TEST(Attend, LeavesWhatStandsBesideItsColumnsAlone) {
  const Problem problem(40, 100);
  Matrix wide(40, 50);
  std::ranges::fill(wide.values(), 7.0F);
  const ScorePart parts[] = {{problem.q.view(), problem.k.view()}};
  attend({Profile::kF32, kScale, 1}, parts, problem.v.view(), causal, wide.columns(10, 20));
  for (std::size_t row = 0; row < 40; ++row) {
    for (std::size_t c = 0; c < 50; ++c) {
      EXPECT_EQ(wide.row(row)[c] == 7.0F, c < 10 || c >= 30) << row << ' ' << c;
    }
  }
}

// 257 is no BF16 number; as 256 it weighs the same, and 1/2 is exact.
TEST(Attend, RoundsScoresToBf16) {
  Matrix q(1, 1), k(2, 1), v(2, 1), out(1, 1);
  q.values()[0] = 1;
  k.values()[0] = 256;
  k.values()[1] = 257;
  v.values()[0] = 8;
  const ScorePart parts[] = {{q.view(), k.view()}};
  const auto both = [](std::size_t) { return std::size_t{2}; };
  attend({Profile::kBf16, 1.0F, 1}, parts, v.view(), both, out.view());
  EXPECT_EQ(out.values()[0], 4.0F);
  attend({Profile::kF32, 1.0F, 1}, parts, v.view(), both, out.view());
  EXPECT_NEAR(out.values()[0], 8 / (1 + std::exp(1.0)), 1e-5);
}

// A third is 0.333984375 in BF16, and three of them are more than 1.
TEST(Attend, RoundsProbabilitiesAndResultsToBf16) {
  Matrix q(1, 1), k(3, 1), v(3, 2), out(1, 2);
  v.row(0)[0] = 1;
  for (std::size_t t = 0; t < 3; ++t) v.row(t)[1] = 3;
  const ScorePart parts[] = {{q.view(), k.view()}};
  const auto all = [](std::size_t) { return std::size_t{3}; };
  attend({Profile::kBf16, 1.0F, 1}, parts, v.view(), all, out.view());
  EXPECT_EQ(out.values()[0], 0.333984375F);
  EXPECT_EQ(out.values()[1], 3.0F) << "3.005859375 rounded";
  attend({Profile::kF32, 1.0F, 1}, parts, v.view(), all, out.view());
  EXPECT_EQ(out.values()[0], 1.0F / 3.0F);
}

Matrix random_matrix(std::size_t rows, std::size_t cols, float mean, float spread) {
  std::mt19937 random(static_cast<std::mt19937::result_type>(rows * 1000 + cols));
  std::normal_distribution<float> normal(mean, spread);
  Matrix matrix(rows, cols);
  for (float& value : matrix.values()) value = normal(random);
  return matrix;
}

std::vector<float> random_vector(std::size_t n) {
  const Matrix matrix = random_matrix(1, n, 1.0F, 0.5F);
  return {matrix.values().begin(), matrix.values().end()};
}

TEST(RmsNorm, AgreesWithDouble) {
  for (const float spread : {1.0F, 1e-3F}) {  // with the second eps is as large as the squares
    for (const std::size_t width : {1U, 7U, 128U, 300U}) {
      const Matrix x = random_matrix(5, width, 0.2F * spread, spread);
      const std::vector<float> weight = random_vector(width);
      Matrix y(x.rows(), width);
      rms_norm(Profile::kF32, x.view(), weight, 1e-6F, y.view());
      for (std::size_t r = 0; r < x.rows(); ++r) {
        double squares = 0;
        for (const float value : x.row(r)) squares += double{value} * double{value};
        const double factor = 1 / std::sqrt(squares / static_cast<double>(width) + 1e-6);
        for (std::size_t i = 0; i < width; ++i) {
          const double wanted = double{weight[i]} * double{x.row(r)[i]} * factor;
          EXPECT_NEAR(y.row(r)[i], wanted, 1e-6 * std::abs(wanted) + 1e-12) << width;
        }
      }
    }
  }
}

TEST(RmsNorm, LeavesOtherColumnsAlone) {
  Matrix x = random_matrix(3, 10, 0, 1);
  const Matrix before = x;
  const std::vector<float> weight(6, 1.0F);
  rms_norm(Profile::kF32, x.columns(2, 6), weight, 1e-6F, x.columns(2, 6));
  for (std::size_t r = 0; r < x.rows(); ++r) {
    for (const std::size_t c : {0U, 1U, 8U, 9U}) EXPECT_EQ(x.row(r)[c], before.row(r)[c]);
    double squares = 0;
    for (std::size_t c = 2; c < 8; ++c) squares += double{x.row(r)[c]} * double{x.row(r)[c]};
    EXPECT_NEAR(squares, 6, 1e-4);
  }
}

// The mean of these squares is 9 in any order of summation.
TEST(RmsNorm, RoundsValueAndProductInBf16) {
  Matrix x(1, 4), y(1, 4);
  const std::vector<float> values = {1, 1, 3, 5}, weight = {1.5F, 1.0078125F, 0.75F, 1.9921875F};
  std::copy(values.begin(), values.end(), x.values().begin());
  const float factor = 1.0F / 3.0F;
  rms_norm(Profile::kF32, x.view(), weight, 0.0F, y.view());
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(y.values()[i], weight[i] * (values[i] * factor));
  }
  for (const Profile profile : {Profile::kBf16, Profile::kNative}) {
    rms_norm(profile, x.view(), weight, 0.0F, y.view());
    for (std::size_t i = 0; i < 4; ++i) {
      EXPECT_EQ(y.values()[i], bf16(weight[i] * bf16(values[i] * factor))) << i;
    }
  }
  EXPECT_NE(y.values()[3], bf16(weight[3] * (values[3] * factor))) << "two roundings, not one";
}

TEST(LayerNorm, AgreesWithDouble) {
  for (const float spread : {1.0F, 1e-3F}) {
    for (const std::size_t width : {2U, 7U, 128U}) {
      const Matrix x = random_matrix(5, width, 3 * spread, spread);
      const std::vector<float> weight = random_vector(width), bias = random_vector(width + 1);
      Matrix y(x.rows(), width);
      layer_norm(Profile::kF32, x.view(), weight, std::span(bias).first(width), 1e-6F, y.view());
      for (std::size_t r = 0; r < x.rows(); ++r) {
        double mean = 0, variance = 0;
        for (const float value : x.row(r)) mean += double{value} / static_cast<double>(width);
        for (const float value : x.row(r)) {
          variance += (double{value} - mean) * (double{value} - mean) / static_cast<double>(width);
        }
        for (std::size_t i = 0; i < width; ++i) {
          const double wanted =
              (double{x.row(r)[i]} - mean) / std::sqrt(variance + 1e-6) * double{weight[i]} +
              double{bias[i]};
          EXPECT_NEAR(y.row(r)[i], wanted, 1e-5) << width << ' ' << spread;
        }
      }
    }
  }
}

TEST(LayerNorm, RoundsOnceInBf16) {
  const Matrix x = random_matrix(4, 128, 1, 2);
  const std::vector<float> weight = random_vector(128), bias = random_vector(128);
  Matrix exact(4, 128), rounded(4, 128);
  layer_norm(Profile::kF32, x.view(), weight, bias, 1e-6F, exact.view());
  layer_norm(Profile::kBf16, x.view(), weight, bias, 1e-6F, rounded.view());
  for (std::size_t i = 0; i < exact.values().size(); ++i) {
    EXPECT_EQ(rounded.values()[i], bf16(exact.values()[i]));
  }
}

std::vector<float> random_values(std::size_t n) {
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  std::vector<float> values(n);
  for (float& value : values) value = normal(random);
  return values;
}

TEST(Hadamard, TakesTheFirstUnitVectorToEqualEntries) {
  std::vector<float> x(128, 0.0F);
  x[0] = 1.0F;
  hadamard(x);
  for (const float value : x) EXPECT_EQ(value, 0.0883883476F);
}

TEST(Hadamard, IsItsOwnInverse) {
  for (const std::size_t n : {1U, 2U, 32U, 128U}) {
    const std::vector<float> x = random_values(n);
    std::vector<float> y = x;
    hadamard(y);
    hadamard(y);
    for (std::size_t i = 0; i < n; ++i) EXPECT_NEAR(y[i], x[i], 2e-6) << n;
  }
}

// Sylvester's order: the sign is the parity of the common bits.
TEST(Hadamard, IsTheSumOverSignedEntries) {
  constexpr std::size_t kSize = 128;
  const std::vector<float> x = random_values(kSize);
  std::vector<float> y = x;
  hadamard(y);
  for (std::size_t b = 0; b < kSize; ++b) {
    double sum = 0;
    for (std::size_t a = 0; a < kSize; ++a) {
      sum += std::popcount(a & b) % 2 == 0 ? double{x[a]} : -double{x[a]};
    }
    EXPECT_NEAR(y[b], sum / std::sqrt(double{kSize}), 3e-6) << b;
  }
}

}  // namespace

}  // namespace ingot::inference

// Entries of compressors against a plain reference in FP64, on weights of a small checkpoint.

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

  /// Computes entry `window` of all tokens, directly by the definition.
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

// The lightning indexer as part of the model: where it must change nothing, its choice between
// equals, and layers that share a choice.

using inference::AttentionForm;

constexpr std::size_t kTopk = 16;

class SparseAttention : public ::testing::Test {
 protected:
  SparseAttention()
      : copy_(INGOT_SOURCE_DIR "/examples/tiny-v32"),
        ids_(GoldenFile(INGOT_SOURCE_DIR "/tests/golden/tiny-v32/forward_fp8.safetensors")
                 .integers("prompt4.input_ids")) {
    ids_.resize(40);
    copy_.config({{"/index_topk", kTopk}});
  }

  [[nodiscard]] Recording with_topk(std::size_t topk, AttentionForm form) const {
    copy_.config({{"/index_topk", topk}});
    return run(OpenedModel(copy_.path(), f32_options(form)).model, ids_);
  }

  /// The model without an indexer: DeepSeek-V3, whose grammar does not know one.
  [[nodiscard]] static Recording dense(std::span<const std::int64_t> ids, AttentionForm form) {
    const EditedCopy copy(INGOT_SOURCE_DIR "/examples/tiny-v32");
    copy.config({{"/model_type", "deepseek_v3"}, {"/architectures", {"DeepseekV3ForCausalLM"}}});
    const std::vector<Pattern> indexer = {Pattern("*.indexer.*")};
    const OpenedModel opened(shard::open_source(copy.path(), {.open = {.allow_unknown = &indexer}}),
                             f32_options(form));
    EXPECT_EQ(opened.model.spec().indexer(), nullptr);
    return run(opened.model, ids);
  }

  /// Selections of a layer, by row.
  [[nodiscard]] static std::vector<std::vector<std::uint32_t>> of_layer(const Recording& recording,
                                                                        std::size_t layer) {
    std::vector<std::vector<std::uint32_t>> rows;
    for (const auto& [key, positions] : recording.selected) {
      if (key.first == layer) rows.push_back(positions);
    }
    return rows;
  }

  EditedCopy copy_;
  std::vector<std::int64_t> ids_;
};

TEST_F(SparseAttention, WithoutALimitEqualsDense) {
  for (const AttentionForm form : {AttentionForm::kNaive, AttentionForm::kAbsorbed}) {
    const Recording wanted = dense(ids_, form);
    for (const std::size_t topk : {ids_.size(), std::size_t{1024}}) {
      const Recording is = with_topk(topk, form);
      EXPECT_EQ(is.n_selected, 0U);
      EXPECT_TRUE(same_bits(is, wanted)) << topk;
    }
  }
}

TEST_F(SparseAttention, IsDenseForRowsWithinTopk) {
  const Recording wanted = dense(ids_, AttentionForm::kNaive);
  const Recording is = with_topk(kTopk, AttentionForm::kNaive);
  const std::size_t width = is.hidden.at(5).size() / ids_.size();
  const auto rows = [&](const Recording& recording, std::size_t first, std::size_t n) {
    return std::span(recording.hidden.at(5)).subspan(first * width, n * width);
  };
  EXPECT_TRUE(same_bits(rows(is, 0, kTopk), rows(wanted, 0, kTopk)));
  EXPECT_FALSE(same_bits(rows(is, kTopk, 1), rows(wanted, kTopk, 1)));
  EXPECT_EQ(is.n_selected, (ids_.size() - kTopk) * 5);
}

TEST_F(SparseAttention, TakesTopkOfWhatARowSees) {
  const Recording is = with_topk(kTopk, AttentionForm::kAuto);
  bool skips = false;
  for (const auto& [key, positions] : is.selected) {
    ASSERT_EQ(positions.size(), kTopk);
    EXPECT_TRUE(std::ranges::is_sorted(positions));
    EXPECT_EQ(std::ranges::adjacent_find(positions), positions.end());
    EXPECT_LE(positions.back(), key.second);
    skips = skips || positions.back() != positions.size() - 1;
  }
  EXPECT_TRUE(skips);
}

// Head weights of zero make every score exactly zero.
TEST_F(SparseAttention, TakesTheLowerPositionsOfEqualScores) {
  for (std::size_t layer = 0; layer < 5; ++layer) {
    copy_.fill_zero(fmt::format("model.layers.{}.self_attn.indexer.weights_proj.weight", layer));
  }
  std::vector<std::uint32_t> first(kTopk);
  std::iota(first.begin(), first.end(), 0U);
  for (const std::size_t chunk : {ids_.size(), std::size_t{1}}) {
    const Recording is = run(OpenedModel(copy_.path()).model, ids_, chunk);
    EXPECT_EQ(is.n_selected, (ids_.size() - kTopk) * 5);
    for (const auto& [key, positions] : is.selected) EXPECT_EQ(positions, first);
  }
}

TEST_F(SparseAttention, SharedLayersReuseTheLastChoice) {
  const Recording own = run(OpenedModel(copy_.path()).model, ids_);
  copy_.config({{"/indexer_types", {"full", "shared", "shared", "full", "shared"}}});
  for (const AttentionForm form : {AttentionForm::kNaive, AttentionForm::kAbsorbed}) {
    const Recording is = run(OpenedModel(copy_.path(), f32_options(form)).model, ids_);
    EXPECT_FALSE(of_layer(is, 0).empty());
    EXPECT_EQ(of_layer(is, 1), of_layer(is, 0));
    EXPECT_EQ(of_layer(is, 2), of_layer(is, 0));
    EXPECT_NE(of_layer(is, 3), of_layer(is, 0));
    EXPECT_EQ(of_layer(is, 4), of_layer(is, 3));
    if (form == AttentionForm::kNaive) {
      EXPECT_EQ(of_layer(is, 0), of_layer(own, 0));
    }
    EXPECT_TRUE(same_bits(is.hidden.at(0), own.hidden.at(0)));
    EXPECT_FALSE(same_bits(is.hidden.at(2), own.hidden.at(2)));
  }
}

TEST_F(SparseAttention, SharedLayersCacheNoIndexKeys) {
  const auto bytes = [&] { return cache_bytes_per_token(OpenedModel(copy_.path()).model); };
  const std::uint64_t all_own = bytes();
  copy_.config({{"/indexer_types", {"full", "shared", "shared", "full", "shared"}}});
  EXPECT_EQ(all_own - bytes(), 3U * 128 * sizeof(float));
}

TEST_F(SparseAttention, LayersMayBeSharedByARule) {
  copy_.config({{"/index_topk_freq", 2}, {"/index_skip_topk_offset", 1}});
  const Recording by_rule = run(OpenedModel(copy_.path()).model, ids_);
  copy_.config({{"/indexer_types", {"full", "shared", "full", "shared", "full"}}});
  EXPECT_TRUE(same_bits(run(OpenedModel(copy_.path()).model, ids_), by_rule));
  EXPECT_EQ(of_layer(by_rule, 1), of_layer(by_rule, 0));
  EXPECT_EQ(of_layer(by_rule, 3), of_layer(by_rule, 2));
  EXPECT_NE(of_layer(by_rule, 2), of_layer(by_rule, 0));
}

// A sequence that grows beyond topk step by step reads index keys from before it had to choose.
TEST_F(SparseAttention, ReadsKeysCachedBeforeItChose) {
  const Recording whole = with_topk(kTopk, AttentionForm::kAbsorbed);
  const Recording grown =
      run(OpenedModel(copy_.path(), f32_options(AttentionForm::kAbsorbed)).model, ids_, 9);
  EXPECT_EQ(grown.n_selected, whole.n_selected);
  EXPECT_TRUE(same_bits(grown, whole));
}

}  // namespace
}  // namespace ingot::testing
