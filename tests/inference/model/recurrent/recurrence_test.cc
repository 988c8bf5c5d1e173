#include "inference/model/recurrent/recurrence.h"

#include "inference/base/matrix.h"
#include "inference/kernels/vector_math.h"
#include "inference/model/attention/pooled_window.h"
#include "inference/model/step/recent_rows.h"
#include "inference/model/step/short_convolution.h"
#include "tests/support/test.h"

namespace ingot::inference {

namespace {

constexpr std::size_t kTokens = 9, kKeys = 19, kValues = 13;

Matrix normals(std::size_t rows, std::size_t cols, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  Matrix matrix(rows, cols);
  for (float& value : matrix.values()) value = normal(random);
  return matrix;
}

Matrix between(std::size_t rows, std::size_t cols, unsigned seed, float low, float high) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<float> values(low, high);
  Matrix matrix(rows, cols);
  for (float& value : matrix.values()) value = values(random);
  return matrix;
}

// The state as a product of matrices: S_t = (I - beta k k^T) diag(a) S_(t-1) + beta k v^T.
void expect_delta_rule(bool per_key) {
  Matrix q = normals(kTokens, kKeys, 1), k = normals(kTokens, kKeys, 2);
  const Matrix v = normals(kTokens, kValues, 3), beta = between(kTokens, 1, 4, 0, 1);
  const Matrix decay = between(kTokens, per_key ? kKeys : 1, 5, 0.3F, 1);
  for (std::size_t t = 0; t < kTokens; ++t) l2_normalize(k.row(t), 1e-6F);
  std::vector<float> state(kKeys * kValues), out(kValues);
  std::vector<double> plain(kKeys * kValues);
  for (std::size_t t = 0; t < kTokens; ++t) {
    delta_rule_token(q.row(t), k.row(t), v.row(t), decay.row(t), beta.row(t)[0], state, out);
    std::vector<double> next(plain.size());
    const double b = beta.row(t)[0];
    for (std::size_t i = 0; i < kKeys; ++i) {
      for (std::size_t j = 0; j < kValues; ++j) {
        double sum = b * double{k.row(t)[i]} * double{v.row(t)[j]};
        for (std::size_t m = 0; m < kKeys; ++m) {
          const double entry = (i == m ? 1 : 0) - b * double{k.row(t)[i]} * double{k.row(t)[m]};
          sum += entry * double{decay.row(t)[per_key ? m : 0]} * plain[m * kValues + j];
        }
        next[i * kValues + j] = sum;
      }
    }
    plain = next;
    for (std::size_t j = 0; j < kValues; ++j) {
      double wanted = 0;
      for (std::size_t i = 0; i < kKeys; ++i) wanted += double{q.row(t)[i]} * next[i * kValues + j];
      EXPECT_NEAR(out[j], wanted, 2e-5) << "token " << t;
    }
  }
}

TEST(Recurrence, DeltaRuleWithADecayPerKey) {
  expect_delta_rule(true);
}

TEST(Recurrence, DeltaRuleWithOneDecay) {
  expect_delta_rule(false);
}

// out_t = sum over s <= t of (product of decays after s) step_s (c_t . b_s) x_s + skip x_t.
TEST(Recurrence, StateSpaceIsASumOverThePast) {
  const Matrix x = normals(kTokens, kValues, 1), b = normals(kTokens, kKeys, 2);
  const Matrix c = normals(kTokens, kKeys, 3), decay = between(kTokens, 1, 4, 0.2F, 1);
  const Matrix step = between(kTokens, 1, 5, 0, 1);
  std::vector<float> state(kValues * kKeys), out(kValues);
  for (std::size_t t = 0; t < kTokens; ++t) {
    state_space_token(x.row(t), b.row(t), c.row(t), decay.row(t)[0], step.row(t)[0], 0.7F, state,
                      out);
    for (std::size_t p = 0; p < kValues; ++p) {
      double wanted = 0.7F * double{x.row(t)[p]}, kept = 1;
      for (std::size_t s = t + 1; s-- > 0;) {
        double product = 0;
        for (std::size_t i = 0; i < kKeys; ++i)
          product += double{c.row(t)[i]} * double{b.row(s)[i]};
        wanted += kept * double{step.row(s)[0]} * product * double{x.row(s)[p]};
        kept *= double{decay.row(s)[0]};
      }
      EXPECT_NEAR(out[p], wanted, 2e-5) << "token " << t;
    }
  }
}

TEST(Recurrence, ConvolutionReachesBackKTokens) {
  constexpr std::size_t kTaps = 4;
  const Matrix weights = normals(kValues, kTaps, 1), x = normals(kTokens + kTaps - 1, kValues, 2);
  const Matrix bias = normals(1, kValues, 3);
  for (const bool biased : {false, true}) {
    Matrix out(kTokens, kValues);
    convolve(weights.view(), biased ? bias.row(0) : std::span<const float>(), x.view(), out.view());
    for (std::size_t t = 0; t < kTokens; ++t) {
      for (std::size_t c = 0; c < kValues; ++c) {
        double wanted = biased ? double{bias.row(0)[c]} : 0;
        for (std::size_t back = 0; back < kTaps; ++back) {
          wanted +=
              double{weights.row(c)[kTaps - 1 - back]} * double{x.row(t + kTaps - 1 - back)[c]};
        }
        EXPECT_NEAR(out.row(t)[c], wanted, 1e-5);
      }
    }
  }
}

TEST(RecentRows, AreThoseBeforeThePosition) {
  std::vector<float> memory(3 * kValues);
  const Matrix x = normals(kTokens, kValues, 1);
  for (const std::size_t chunk : {1U, 2U, 5U, 9U}) {
    std::ranges::fill(memory, 99.0F);  // old contents
    RecentRows recent(memory, kValues);
    for (std::size_t first = 0; first < kTokens; first += chunk) {
      const std::size_t n = std::min(chunk, kTokens - first);
      const Matrix joined = recent.followed_by(first, 3, x.block(first, n, 0, kValues));
      ASSERT_EQ(joined.rows(), 3 + n);
      for (std::size_t r = 0; r < joined.rows(); ++r) {
        const bool is_token = first + r >= 3;
        EXPECT_EQ(joined.row(r)[5], is_token ? x.row(first + r - 3)[5] : 0.0F);
      }
      recent.keep(first, x.block(first, n, 0, kValues));
    }
  }
}

TEST(Recurrence, SoftplusIsItsArgumentFarRight) {
  EXPECT_FLOAT_EQ(softplus_f32(0), std::log(2.0F));
  EXPECT_FLOAT_EQ(softplus_f32(-15), 3.0590228e-7F);
  EXPECT_EQ(softplus_f32(21), 21);
  EXPECT_EQ(softplus_f32(-200), 0);
}

TEST(PooledWindow, EveryColumnHasItsSoftmax) {
  const Matrix early = normals(3, kValues, 1), early_logits = normals(3, kValues, 2);
  const Matrix late = normals(5, kValues, 3);
  Matrix late_logits = normals(5, kValues, 4);
  late_logits.row(2)[0] = 90;  // beyond the range of e^x in FP32
  std::vector<float> out(kValues);
  const WindowPart parts[] = {{early.view(), early_logits.view()},
                              {late.view(), late_logits.view()}};
  pool_window(parts, out);
  for (std::size_t c = 0; c < kValues; ++c) {
    double sum = 0, wanted = 0;
    for (const WindowPart& part : parts) {
      for (std::size_t r = 0; r < part.values.rows; ++r) {
        const double e = std::exp(double{part.logits.row(r)[c]});
        sum += e;
        wanted += e * double{part.values.row(r)[c]};
      }
    }
    EXPECT_NEAR(out[c], wanted / sum, 1e-5);
  }
}

// One channel as a sum over all tokens before: each is kept by the product of the decays since.
TEST(Recurrence, ScansAChannelWithDecaysOfItsOwn) {
  constexpr std::size_t kState = 7;
  const Matrix x = normals(kTokens, 1, 21), b = normals(kTokens, kState, 22);
  const Matrix c = normals(kTokens, kState, 23), step = between(kTokens, 1, 24, 0.1F, 1);
  const Matrix rate = between(1, kState, 25, 0.2F, 2);
  std::vector<float> state(kState);
  for (std::size_t t = 0; t < kTokens; ++t) {
    const float is =
        scan_token(x.row(t)[0], b.row(t), c.row(t), rate.row(0), step.row(t)[0], 0.7F, state);
    double wanted = 0.7 * double{x.row(t)[0]};
    for (std::size_t n = 0; n < kState; ++n) {
      double since = 0;
      for (std::size_t u = t + 1; u-- > 0; since += double{step.row(u)[0]}) {
        wanted += std::exp(-double{rate.row(0)[n]} * since) * double{step.row(u)[0]} *
                  double{b.row(u)[n]} * double{x.row(u)[0]} * double{c.row(t)[n]};
      }
    }
    EXPECT_NEAR(is, wanted, 1e-5) << t;
  }
}

// Linear attention: value u counts by its score, and by the decay for each token since.
TEST(Recurrence, DecayingStatesScoreAllTokensBefore) {
  const Matrix q = normals(kTokens, kKeys, 31), k = normals(kTokens, kKeys, 32);
  const Matrix v = normals(kTokens, kValues, 33);
  constexpr float kDecay = 0.8F;
  std::vector<float> state(kKeys * kValues), out(kValues);
  for (std::size_t t = 0; t < kTokens; ++t) {
    decaying_token(q.row(t), k.row(t), v.row(t), kDecay, state, out);
    for (std::size_t j = 0; j < kValues; ++j) {
      double wanted = 0;
      for (std::size_t u = 0; u <= t; ++u) {
        double score = 0;
        for (std::size_t i = 0; i < kKeys; ++i) score += double{q.row(t)[i]} * double{k.row(u)[i]};
        wanted +=
            std::pow(double{kDecay}, static_cast<double>(t - u)) * score * double{v.row(u)[j]};
      }
      EXPECT_NEAR(out[j], wanted, 1e-4) << t;
    }
  }
}

}  // namespace

}  // namespace ingot::inference
