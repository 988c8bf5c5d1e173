#include "inference/model/step/hyper_connection.h"

#include "tests/support/test.h"

namespace ingot::inference {

namespace {

std::vector<float> normal_values(std::size_t n, unsigned seed, float factor = 1) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(n);
  for (float& value : values) value = factor * normal(random);
  return values;
}

Matrix matrix_of(std::size_t rows, std::size_t cols, std::vector<float> values) {
  Matrix matrix(rows, cols);
  std::ranges::copy(values, matrix.values().begin());
  return matrix;
}

constexpr std::size_t kHidden = 20, kRows = 5;

/// Everything in FP64, from the formulas of the header.
struct Plain {
  std::vector<double> pre, post, mix;

  Plain(const HyperSpec& spec, const HyperWeights& weights, std::span<const float> row) {
    const std::size_t n = spec.streams;
    double squares = 0;
    for (const float x : row) squares += double{x} * double{x};
    const double root = std::sqrt(squares / static_cast<double>(row.size()) + spec.norm_eps);
    const auto logit = [&](std::size_t o, std::size_t scale) {
      double sum = 0;
      for (std::size_t i = 0; i < row.size(); ++i) {
        sum += double{weights.fn[o * row.size() + i]} * double{row[i]} / root;
      }
      return sum * double{weights.scale[scale]} + double{weights.base[o]};
    };
    for (std::size_t i = 0; i < n; ++i) {
      pre.push_back(1 / (1 + std::exp(-logit(i, 0))) + double{spec.eps});
    }
    if (weights.scale.size() == 1) return;
    for (std::size_t i = 0; i < n; ++i) post.push_back(2 / (1 + std::exp(-logit(n + i, 1))));
    mix.resize(n * n);
    for (std::size_t i = 0; i < n; ++i) {
      double sum = 0;
      for (std::size_t j = 0; j < n; ++j) {
        sum += mix[i * n + j] = std::exp(logit(2 * n + i * n + j, 2));
      }
      for (std::size_t j = 0; j < n; ++j) mix[i * n + j] = mix[i * n + j] / sum + double{spec.eps};
    }
    for (std::size_t round = 0; round < 2 * spec.rounds - 1; ++round) {
      const bool columns = round % 2 == 0;
      for (std::size_t a = 0; a < n; ++a) {
        double sum = 0;
        for (std::size_t b = 0; b < n; ++b) sum += columns ? mix[b * n + a] : mix[a * n + b];
        for (std::size_t b = 0; b < n; ++b) {
          (columns ? mix[b * n + a] : mix[a * n + b]) /= sum + double{spec.eps};
        }
      }
    }
  }
};

struct HyperConnectionTest : ::testing::TestWithParam<std::size_t> {
  HyperSpec spec{.streams = GetParam(), .rounds = 20, .eps = 1e-6F, .norm_eps = 1e-6F};
  std::size_t n = GetParam();
  HyperWeights weights{.fn = normal_values((2 + n) * n * n * kHidden, 1, 0.2F),
                       .base = normal_values((2 + n) * n, 2),
                       .scale = {0.7F, 1.3F, 0.9F}};
  Matrix streams = matrix_of(kRows, n* kHidden, normal_values(kRows* n* kHidden, 3, 2));
  Matrix output = matrix_of(kRows, kHidden, normal_values(kRows* kHidden, 4));
};

TEST_P(HyperConnectionTest, BlockReadsAndWritesAsTheFormulasSay) {
  const HyperInput input = hyper_input(Profile::kF32, spec, weights, streams, 2);
  Matrix after = streams;
  hyper_output(Profile::kF32, input, output, after);
  for (std::size_t r = 0; r < kRows; ++r) {
    const Plain plain(spec, weights, streams.row(r));
    for (std::size_t c = 0; c < kHidden; ++c) {
      double collapsed = 0;
      for (std::size_t i = 0; i < n; ++i) {
        collapsed += plain.pre[i] * double{streams.row(r)[i * kHidden + c]};
      }
      EXPECT_NEAR(input.collapsed.row(r)[c], collapsed, 2e-5);
      for (std::size_t j = 0; j < n; ++j) {
        double wanted = plain.post[j] * double{output.row(r)[c]};
        for (std::size_t i = 0; i < n; ++i) {
          wanted += plain.mix[i * n + j] * double{streams.row(r)[i * kHidden + c]};
        }
        EXPECT_NEAR(after.row(r)[j * kHidden + c], wanted, 2e-5);
      }
    }
  }
}

TEST_P(HyperConnectionTest, ColumnsOfTheMixSumToOneAndRowsApproachIt) {
  const auto row_error = [&](std::size_t rounds) {
    HyperSpec some = spec;
    some.rounds = rounds;
    const HyperInput input = hyper_input(Profile::kF32, some, weights, streams, 1);
    float most = 0;
    for (std::size_t r = 0; r < kRows; ++r) {
      for (std::size_t a = 0; a < n; ++a) {
        float row = 0, column = 0;
        for (std::size_t b = 0; b < n; ++b) {
          row += input.mix.row(r)[a * n + b];
          column += input.mix.row(r)[b * n + a];
        }
        EXPECT_NEAR(column, 1, 1e-4);
        most = std::max(most, std::abs(row - 1));
      }
    }
    return most;
  };
  const float early = row_error(1), late = row_error(200);
  EXPECT_LE(late, 1e-4F);
  EXPECT_GE(early, n == 1 ? 0.0F : 10 * late);
}

TEST_P(HyperConnectionTest, ARowDependsOnItselfAlone) {
  const HyperInput all = hyper_input(Profile::kF32, spec, weights, streams, 3);
  for (std::size_t r = 0; r < kRows; ++r) {
    Matrix one(1, streams.cols());
    std::ranges::copy(streams.row(r), one.row(0).begin());
    const HyperInput alone = hyper_input(Profile::kF32, spec, weights, one, 1);
    EXPECT_EQ(0, std::memcmp(alone.collapsed.row(0).data(), all.collapsed.row(r).data(),
                             kHidden * sizeof(float)));
    EXPECT_EQ(0,
              std::memcmp(alone.mix.row(0).data(), all.mix.row(r).data(), n * n * sizeof(float)));
  }
}

TEST_P(HyperConnectionTest, HeadIsLearnedOrTheMean) {
  const HyperWeights head{
      .fn = normal_values(n * n * kHidden, 5, 0.2F), .base = normal_values(n, 6), .scale = {1.1F}};
  HyperSpec mean = spec;
  mean.learned_head = false;
  const Matrix learned = hyper_head(Profile::kF32, spec, head, streams, 1);
  const Matrix averaged = hyper_head(Profile::kF32, mean, {}, streams, 1);
  for (std::size_t r = 0; r < kRows; ++r) {
    const Plain plain(spec, head, streams.row(r));
    for (std::size_t c = 0; c < kHidden; ++c) {
      double wanted = 0, sum = 0;
      for (std::size_t i = 0; i < n; ++i) {
        wanted += plain.pre[i] * double{streams.row(r)[i * kHidden + c]};
        sum += double{streams.row(r)[i * kHidden + c]};
      }
      EXPECT_NEAR(learned.row(r)[c], wanted, 2e-5);
      EXPECT_NEAR(averaged.row(r)[c], sum / static_cast<double>(n), 1e-5);
    }
  }
}

TEST_P(HyperConnectionTest, AnEmbeddingIsInEveryStream) {
  const Matrix copies = hyper_streams(spec, output);
  for (std::size_t i = 0; i < n; ++i) {
    EXPECT_EQ(copies.row(2)[i * kHidden + 7], output.row(2)[7]);
  }
}

INSTANTIATE_TEST_SUITE_P(Streams, HyperConnectionTest, ::testing::Values(1, 2, 4));

// The output of a block is added to each stream, times a weight of its own.
TEST(HyperConnection, UnmixedStreamsStay) {
  const HyperSpec spec{.streams = 3, .mixes = false, .magnitude = 1.5F};
  const std::size_t n = spec.streams, width = n * kHidden;
  const HyperWeights weights{.fn = normal_values(2 * n * width, 1, 0.1F),
                             .base = normal_values(2 * n, 2),
                             .scale = {0.7F, 0.4F}};
  Matrix streams = matrix_of(kRows, width, normal_values(kRows * width, 3));
  const Matrix before = streams;
  const HyperInput input = hyper_input(Profile::kF32, spec, weights, streams, 1);
  const std::vector<float> ones(kRows * kHidden, 1.0F);
  hyper_output(Profile::kF32, input, matrix_of(kRows, kHidden, ones), streams);
  for (std::size_t r = 0; r < kRows; ++r) {
    const auto row = before.row(r);
    double squares = 0;
    for (const float x : row) squares += double{x} * double{x};
    const double root = std::sqrt(squares / static_cast<double>(width) + double{spec.norm_eps});
    for (std::size_t c = 0; c < width; ++c) {
      const std::size_t output = n + c / kHidden;
      double logit = 0;
      for (std::size_t i = 0; i < width; ++i)
        logit += double{weights.fn[output * width + i]} * double{row[i]} / root;
      logit = logit * double{weights.scale[1]} + double{weights.base[output]};
      const double post = 1.5 / (1 + std::exp(-logit)) + double{spec.eps};
      EXPECT_NEAR(streams.row(r)[c], double{row[c]} + post, 1e-5);
    }
  }
}

}  // namespace

}  // namespace ingot::inference
