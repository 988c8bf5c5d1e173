#include "inference/model/attention/attend.h"

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "inference/base/matrix.h"

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

}  // namespace
}  // namespace ingot::inference
