#include "inference/model/step/router.h"

#include "formats/container/bfloat16.h"
#include "inference/family/model_family.h"
#include "inference/model/step/norm.h"
#include "tests/support/test.h"

namespace ingot::inference {
namespace {

using formats::RopeConfig;
using ingot::testing::expect_error;
using ::testing::ElementsAre;

Routing route_all(const RouterSpec& spec, const std::vector<float>& logits,
                  const std::vector<float>& bias = {}) {
  const std::size_t rows = logits.size() / spec.experts;
  return route(spec, {logits.data(), rows, spec.experts, spec.experts}, bias);
}

/// Logits whose sigmoids are these.
std::vector<float> logits_of(const std::vector<double>& scores) {
  std::vector<float> logits;
  for (const double s : scores) logits.push_back(static_cast<float>(std::log(s / (1 - s))));
  return logits;
}

void expect_weights(const Routing& routing, const std::vector<double>& wanted) {
  ASSERT_EQ(routing.weights.size(), wanted.size());
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    EXPECT_NEAR(routing.weights[i], wanted[i], 2e-6) << i;
  }
}

RouterSpec sigmoid_router(std::size_t experts, std::size_t topk) {
  return {.experts = experts,
          .topk = topk,
          .score = GateScore::kSigmoid,
          .correction_bias = true,
          .normalize = true,
          .scale = 1.0F};
}

// The best logit is 2: 1.97 is nearer than 2% of it, 1.9 is not. Then 1.97 is the best, with 1.95.
TEST(Router, ThresholdsWeighByThoseNearTheBest) {
  const RouterSpec spec{.experts = 4, .topk = 2, .score = GateScore::kThresholds, .near = 0.02F};
  const Routing routing = route_all(spec, {1.97F, 1.9F, 2.0F, 1.95F});
  EXPECT_THAT(routing.experts, ElementsAre(0, 2));
  expect_weights(routing, {1 / (1 + std::exp(-0.02)), 1 / (1 + std::exp(-0.03))});
}

// Two chosen of three, and two shared ones: 0.9, 0.6 and 0.5, 0.25 of 2.25.
TEST(Router, WeighsSharedExpertsWithTheChosen) {
  RouterSpec spec = sigmoid_router(3, 2);
  spec.correction_bias = false;
  spec.weighed_shared = 2;
  spec.scale = 9;
  const std::vector<float> logits = logits_of({0.6, 0.1, 0.9, 0.5, 0.25, 0.1, 0.9, 0.6, 0.25, 0.5});
  const Routing routing = route(spec, {logits.data(), 2, 5, 5}, {});
  EXPECT_THAT(routing.experts, ElementsAre(0, 2, 1, 2));
  expect_weights(routing, {2.4, 3.6, 3.6, 2.4});
  ASSERT_EQ(routing.shared_weights.size(), 4U);
  for (std::size_t i = 0; i < 4; ++i)
    EXPECT_NEAR(routing.shared_weights[i], i == 0 || i == 3 ? 2 : 1, 2e-6) << i;
}

// The length of 0.3 and 0.4 is 0.5.
TEST(Router, DividesByTheLengthOfTheChosen) {
  RouterSpec spec = sigmoid_router(3, 2);
  spec.correction_bias = false;
  spec.by_length = true;
  expect_weights(route_all(spec, logits_of({0.3, 0.1, 0.4})), {0.6, 0.8});
}

// The worked example of the model reference, 6.1.
TEST(Router, FollowsTheWorkedExample) {
  RouterSpec spec = sigmoid_router(8, 3);
  spec.groups = 4;
  spec.topk_groups = 2;
  spec.scale = 2.5F;
  const Routing routing =
      route_all(spec, logits_of({.9, .1, .6, .5, .3, .2, .8, .05}), {0, 0, 0, .2F, 0, 0, -.5F, 0});
  EXPECT_EQ(routing.topk, 3U);
  EXPECT_THAT(routing.experts, ElementsAre(0, 2, 3));
  expect_weights(routing, {1.125, 0.75, 0.625});
}

TEST(Router, NeverPicksFromADroppedGroup) {
  RouterSpec spec = sigmoid_router(4, 2);
  spec.groups = 2;
  const Routing routing = route_all(spec, logits_of({.6, .5, .3, .3}), {-1, -1, -2, -2});
  EXPECT_THAT(routing.experts, ElementsAre(0, 1));
  expect_weights(routing, {.6 / 1.1, .5 / 1.1});
}

TEST(Router, KeepsTheBiasOutOfTheWeights) {
  const Routing routing = route_all(sigmoid_router(3, 2), logits_of({.2, .5, .4}), {5, 0, 0});
  EXPECT_THAT(routing.experts, ElementsAre(0, 1));
  expect_weights(routing, {.2 / .7, .5 / .7});
}

TEST(Router, TakesTheLowerExpertOfEqualScores) {
  EXPECT_THAT(route_all(sigmoid_router(6, 3), {1, 2, 1, 1, 1, 1}).experts, ElementsAre(0, 1, 2));
  EXPECT_THAT(route_all(sigmoid_router(6, 2), {0, 1, 3, 3, 3, 3}).experts, ElementsAre(2, 3));
}

TEST(Router, TakesTheLowerGroupOfEqualScores) {
  RouterSpec spec = sigmoid_router(8, 2);
  spec.groups = 4;
  spec.topk_groups = 2;
  EXPECT_THAT(route_all(spec, {0, 0, 2, 1, 1, 2, 2, 1}, std::vector<float>(8, 0.0F)).experts,
              ElementsAre(2, 5));
}

// Two good experts beat one very good one where there is a bias, and lose where there is none.
TEST(Router, CountsTokensNearATie) {
  const RouterSpec spec = sigmoid_router(4, 2);
  EXPECT_EQ(route_all(spec, logits_of({.6, .5, .4, .3})).n_near_ties, 0U);
  EXPECT_EQ(route_all(spec, logits_of({.5, .5, .4, .3})).n_near_ties, 0U) << "both are chosen";
  EXPECT_EQ(route_all(spec, logits_of({.6, .500002, .5, .3})).n_near_ties, 1U);
  EXPECT_EQ(route_all(spec, logits_of({.6, .50002, .5, .3})).n_near_ties, 0U);
  RouterSpec grouped = spec;
  grouped.groups = 2;
  const std::vector<double> groups = {.6, .1, .600001, .1};
  EXPECT_EQ(route_all(grouped, logits_of(groups), {0, 0, 0, 0}).n_near_ties, 1U);
}

TEST(NearTies, AreRelativeAndOfChoicesAlone) {
  EXPECT_TRUE(is_near_tie(1000.0F, 1000.009F));
  EXPECT_FALSE(is_near_tie(1.0F, 1.009F));
  const std::vector<float> values = {3, 5, 5, -std::numeric_limits<float>::infinity()};
  const std::vector<std::uint32_t> one = {1}, two = {1, 2}, three = {0, 1, 2};
  EXPECT_TRUE(is_near_tie(values, one));
  EXPECT_FALSE(is_near_tie(values, two));
  EXPECT_FALSE(is_near_tie(values, three)) << "nothing else could be chosen";
}

TEST(Router, JudgesGroupsByTwoBestWithBias) {
  RouterSpec spec = sigmoid_router(6, 1);
  spec.groups = 2;
  const std::vector<float> logits = logits_of({.9, .1, .1, .8, .7, .1});
  EXPECT_THAT(route_all(spec, logits, std::vector<float>(6, 0.0F)).experts, ElementsAre(3));
  EXPECT_THAT(route_all(spec, logits).experts, ElementsAre(0));
}

TEST(Router, ManagesGroupsOfOneExpert) {
  RouterSpec spec = sigmoid_router(4, 2);
  spec.groups = 4;
  spec.topk_groups = 2;
  EXPECT_THAT(route_all(spec, {1, 4, 3, 2}, std::vector<float>(4, 0.0F)).experts,
              ElementsAre(1, 2));
}

// DeepSeek-V2: probabilities over all experts, not normalized again.
TEST(Router, SecondGenerationWeighsWithScaledProbabilities) {
  const RouterSpec spec = {
      .experts = 4, .topk = 2, .score = GateScore::kSoftmax, .normalize = false, .scale = 16.0F};
  const Routing routing = route_all(spec, {0, 1, 2, -1});
  const double sum = 1 + std::exp(1.0) + std::exp(2.0) + std::exp(-1.0);
  EXPECT_THAT(routing.experts, ElementsAre(1, 2));
  EXPECT_NEAR(routing.weights[0], 16 * std::exp(1.0) / sum, 2e-5);
  EXPECT_NEAR(routing.weights[1], 16 * std::exp(2.0) / sum, 2e-5);
}

// Qwen3: the same probabilities, normalized over the chosen.
TEST(Router, NormalizesBeforeItScales) {
  const RouterSpec spec = {
      .experts = 4, .topk = 2, .score = GateScore::kSoftmax, .normalize = true, .scale = 3.0F};
  const Routing routing = route_all(spec, {0, 1, 2, -1});
  const double e = std::exp(1.0);
  expect_weights(routing, {3 / (1 + e), 3 * e / (1 + e)});
}

TEST(Router, TreatsEveryTokenAlone) {
  const RouterSpec spec = sigmoid_router(4, 2);
  const std::vector<float> a = {1, 2, 3, 4}, b = {4, -3, 2, 1};
  std::vector<float> both = a;
  both.insert(both.end(), b.begin(), b.end());
  const std::vector<float> bias = {0, .1F, .2F, 0};
  const Routing of_both = route_all(spec, both, bias), of_a = route_all(spec, a, bias),
                of_b = route_all(spec, b, bias);
  EXPECT_THAT(of_both.experts,
              ElementsAre(of_a.experts[0], of_a.experts[1], of_b.experts[0], of_b.experts[1]));
  EXPECT_THAT(of_both.weights,
              ElementsAre(of_a.weights[0], of_a.weights[1], of_b.weights[0], of_b.weights[1]));
}

TEST(Router, ChoosesNothingForNoTokens) {
  const Routing routing = route_all(sigmoid_router(4, 2), {});
  EXPECT_TRUE(routing.experts.empty());
  EXPECT_TRUE(routing.weights.empty());
}

TEST(Router, SurvivesScoresOfZero) {
  const float low = -std::numeric_limits<float>::max();
  const Routing routing = route_all(sigmoid_router(4, 2), {low, low, low, low});
  EXPECT_THAT(routing.experts, ElementsAre(0, 1));
  EXPECT_THAT(routing.weights, ElementsAre(0.0F, 0.0F));
}

TEST(Router, RefusesNan) {
  ingot::testing::expect_error(ErrorCode::kNonFinite, {"NaN"}, [] {
    route_all(sigmoid_router(4, 2), {0, 1, std::numeric_limits<float>::quiet_NaN(), 2});
  });
}

// Expected numbers are those of the model reference: tables of 4.4 and 4.5, appendix A1.

RopeConfig yarn(double theta, double factor, std::uint64_t length, double fast, double slow) {
  RopeConfig config;
  config.theta = theta;
  config.type = "yarn";
  config.factor = factor;
  config.original_max_position_embeddings = length;
  config.beta_fast = fast;
  config.beta_slow = slow;
  return config;
}

RopeConfig deepseek_v3(double mscale = 1.0) {
  RopeConfig config = yarn(10000, 40, 4096, 32, 1);
  config.mscale = config.mscale_all_dim = mscale;
  return config;
}

TEST(RopeSpec, HasTheFrequenciesOfDeepseekV3) {
  constexpr std::array kTable = {1.0,
                                 0.749894209,
                                 0.562341325,
                                 0.421696503,
                                 0.316227766,
                                 0.237137371,
                                 0.177827941,
                                 0.133352143,
                                 0.1,
                                 0.0749894209,
                                 0.0562341325,
                                 0.0390069266,
                                 0.0268793601,
                                 0.0183781462,
                                 0.0124479559,
                                 0.00833450895,
                                 0.0055,
                                 0.00356199749,
                                 0.0022493653,
                                 0.00137051364,
                                 0.000790569415,
                                 0.000414990398,
                                 0.000177827941,
                                 3.33380358e-05,
                                 2.5e-05,
                                 1.87473552e-05,
                                 1.40585331e-05,
                                 1.05424126e-05,
                                 7.90569415e-06,
                                 5.92843426e-06,
                                 4.44569853e-06,
                                 3.33380358e-06};
  const RopeSpec spec = rope_spec(deepseek_v3(), 64, true);
  ASSERT_EQ(spec.freqs.size(), kTable.size());
  EXPECT_EQ(spec.magnitude, 1.0F);
  for (std::size_t i = 0; i < kTable.size(); ++i) {
    EXPECT_NEAR(spec.freqs[i] / kTable[i], 1, 5e-7) << i;
  }
}

struct Ramp {
  double theta, factor;
  std::uint64_t length;
  double fast, slow;
  std::size_t low, high;
};

class RopeRamp : public ::testing::TestWithParam<Ramp> {};

TEST_P(RopeRamp, LiesBetweenLowAndHigh) {
  const Ramp& ramp = GetParam();
  const RopeSpec spec =
      rope_spec(yarn(ramp.theta, ramp.factor, ramp.length, ramp.fast, ramp.slow), 64, true);
  for (std::size_t i = 0; i < 32; ++i) {
    const double plain = std::pow(ramp.theta, -2.0 * static_cast<double>(i) / 64);
    const double stretched = plain / ramp.factor;
    const double up = (static_cast<double>(i) - static_cast<double>(ramp.low)) /
                      static_cast<double>(ramp.high - ramp.low);
    const double share = std::clamp(up, 0.0, 1.0);
    EXPECT_NEAR(spec.freqs[i] / (stretched * share + plain * (1 - share)), 1, 2e-6) << i;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Published, RopeRamp,
    ::testing::Values(Ramp{10000, 40, 4096, 32, 1, 10, 23}, Ramp{50000, 32, 4096, 1, 1, 19, 20},
                      Ramp{50000, 32, 4096, 32, 1, 8, 20}, Ramp{160000, 16, 65536, 32, 1, 15, 25}),
    [](const auto& ramp) { return fmt::format("From{}To{}", ramp.param.low, ramp.param.high); });

// With a length of 6 less than one turn fits at any frequency: both ends fall on pair 0.
TEST(RopeSpec, EqualEndsOfTheRampMakeAStep) {
  const RopeSpec spec = rope_spec(yarn(10000, 8, 6, 32, 1), 64, true);
  EXPECT_EQ(spec.freqs[0], 1.0F);
  for (std::size_t i = 1; i < 32; ++i) {
    const double plain = std::pow(10000, -2.0 * static_cast<double>(i) / 64);
    EXPECT_NEAR(spec.freqs[i] / (plain / 8), 1, 1e-6) << i;
  }
}

TEST(RopeSpec, WithoutScalingIsThePlainTable) {
  RopeConfig config;
  config.theta = 1e6;
  const RopeSpec spec = rope_spec(config, 16, false);
  for (std::size_t i = 0; i < 8; ++i) {
    EXPECT_NEAR(spec.freqs[i] / std::pow(1e6, -static_cast<double>(i) / 8), 1, 5e-7);
  }
  EXPECT_EQ(spec.magnitude, 1.0F);
  EXPECT_FALSE(spec.interleaved);
  EXPECT_EQ(yarn_softmax_factor(config), 1.0);
}

// Frequencies of transformers 5.19 (ROPE_INIT_FUNCTIONS) for 64 pairs of base 500000.
TEST(RopeSpec, Llama3StretchesLongWavesAlone) {
  RopeConfig config;
  config.theta = 500000;
  config.type = "llama3";
  config.factor = 8;
  config.original_max_position_embeddings = 8192;
  const RopeSpec mixed = rope_spec(config, 128, true, {.low = 1, .high = 4});
  for (const auto& [pair, wanted] : {std::pair{0, 1.0},
                                     {25, 0.005940730683505535},
                                     {28, 0.0032114461064338684},
                                     {29, 0.0021665706299245358},
                                     {30, 0.0013718936825171113},
                                     {31, 0.0008567514596506953},
                                     {32, 0.0005248460220173001},
                                     {35, 9.556212171446532e-05},
                                     {36, 7.784655463183299e-05},
                                     {40, 3.428102354519069e-05},
                                     {63, 3.068925877869333e-07}}) {
    EXPECT_NEAR(mixed.freqs[static_cast<std::size_t>(pair)] / wanted, 1, 1e-6) << pair;
  }
  EXPECT_EQ(mixed.magnitude, 1.0F);
  config.factor = 16;
  const RopeSpec step = rope_spec(config, 128, true, {.low = 1, .high = 1});
  for (const auto& [pair, wanted] : {std::pair{31, 0.0017360467463731766},
                                     {32, 0.001414213445968926},
                                     {35, 4.778106085723266e-05},
                                     {63, 1.5344629389346665e-07}}) {
    EXPECT_NEAR(step.freqs[static_cast<std::size_t>(pair)] / wanted, 1, 1e-6) << pair;
  }
  expect_error(ErrorCode::kCorrupt, {"'low_freq_factor' and 'high_freq_factor'"},
               [&] { rope_spec(config, 128, true, {.low = 4, .high = 1}); });
}

TEST(YarnSoftmaxFactor, IsTheSquareOfTheTable) {
  const auto factor = [](double scaling, double all_dim) {
    RopeConfig config = yarn(10000, scaling, 4096, 32, 1);
    config.mscale_all_dim = all_dim;
    return yarn_softmax_factor(config);
  };
  EXPECT_NEAR(factor(40, 1.0), 1.8738542071, 1e-9);
  EXPECT_NEAR(factor(40, 0.707), 1.5896261651, 1e-9);
  EXPECT_NEAR(factor(32, 1.0), 1.8132604340, 1e-9);
  EXPECT_NEAR(factor(64, 1.0), 2.0047397017, 1e-9);
  EXPECT_EQ(factor(1, 1.0), 1.0);
  EXPECT_EQ(factor(40, 0.0), 1.0) << "0 means: leave the softmax alone";
  EXPECT_EQ(yarn_softmax_factor(yarn(10000, 40, 4096, 32, 1)), 1.0) << "so does a missing one";
}

TEST(RopeMagnitude, IsTheQuotientOfBothScales) {
  RopeConfig config = yarn(10000, 40, 4096, 32, 1);
  EXPECT_NEAR(rope_spec(config, 64, false).magnitude, 1.3688879454, 1e-6);
  config.mscale = 0.707;
  config.mscale_all_dim = 1.0;
  EXPECT_NEAR(rope_spec(config, 64, false).magnitude, 1.2608037774 / 1.3688879454, 1e-6);
  EXPECT_EQ(rope_spec(deepseek_v3(0.707), 64, true).magnitude, 1.0F);
}

std::vector<float> rotated(bool interleaved, std::uint32_t position) {
  std::vector<float> x(64);
  for (std::size_t j = 0; j < x.size(); ++j) x[j] = static_cast<float>(j + 1) / 64;
  const std::vector<std::uint32_t> positions = {1000, position};
  RopeAngles(Profile::kF32, rope_spec(deepseek_v3(), 64, interleaved), positions).rotate(1, x);
  return x;
}

TEST(Rope, RotatesInterleavedPairsInPlace) {
  const std::vector<float> y = rotated(true, 5);
  constexpr double kNear = 2e-7;
  EXPECT_NEAR(y[0], 0.0343986, kNear);
  EXPECT_NEAR(y[1], -0.0061187, kNear);
  EXPECT_NEAR(y[2], -0.0027824, kNear);
  EXPECT_NEAR(y[3], -0.0780754, kNear);
  EXPECT_NEAR(y[4], -0.1042814, kNear);  // third of transformers' order
  EXPECT_NEAR(y[5], -0.0633875, kNear);  // its [34]
  EXPECT_NEAR(y[20], 0.2198560, kNear);
  EXPECT_NEAR(y[21], 0.4212997, kNear);
  EXPECT_NEAR(y[22], 0.2798864, kNear);
  EXPECT_NEAR(y[23], 0.4375374, kNear);
  EXPECT_NEAR(y[62], 0.9843583, kNear);
  EXPECT_NEAR(y[63], 1.0000164, kNear);
}

TEST(Rope, RotatesHalfSplitPairsInPlace) {
  const std::vector<float> y = rotated(false, 5);
  constexpr double kNear = 2e-7;
  EXPECT_NEAR(y[0], 0.4988776, kNear);
  EXPECT_NEAR(y[1], 0.2777594, kNear);
  EXPECT_NEAR(y[2], -0.2214995, kNear);
  EXPECT_NEAR(y[10], -0.0213065, kNear);
  EXPECT_NEAR(y[11], 0.0507073, kNear);
  EXPECT_NEAR(y[32], 0.1312801, kNear);
  EXPECT_NEAR(y[33], -0.4539304, kNear);
  EXPECT_NEAR(y[34], -0.5022026, kNear);
  EXPECT_NEAR(y[63], 1.0000083, kNear);
}

TEST(Rope, PositionZeroChangesNothing) {
  for (const bool interleaved : {false, true}) {
    const std::vector<float> y = rotated(interleaved, 0);
    for (std::size_t j = 0; j < y.size(); ++j) EXPECT_EQ(y[j], static_cast<float>(j + 1) / 64);
  }
}

TEST(Rope, RoundsAnglesProductsAndSumsInBf16) {
  const auto bf16 = [](double value) {
    return formats::float_from_bf16(formats::bf16_from_float(static_cast<float>(value)));
  };
  const RopeSpec spec = rope_spec(deepseek_v3(), 64, true);
  const std::vector<std::uint32_t> positions = {301};
  std::vector<float> x(64);
  for (std::size_t j = 0; j < x.size(); ++j) x[j] = bf16(std::sin(static_cast<double>(j)));
  std::vector<float> y = x;
  RopeAngles(Profile::kBf16, spec, positions).rotate(0, y);
  for (std::size_t pair = 0; pair < 32; ++pair) {
    const double angle = double{301.0F * spec.freqs[pair]};
    const float cos = bf16(std::cos(angle)), sin = bf16(std::sin(angle));
    const float u = x[2 * pair], w = x[2 * pair + 1];
    EXPECT_EQ(y[2 * pair], bf16(double{bf16(u * cos) - bf16(w * sin)})) << pair;
    EXPECT_EQ(y[2 * pair + 1], bf16(double{bf16(w * cos) + bf16(u * sin)})) << pair;
  }
}

TEST(RopeSpec, RefusesWhatMakesNoTable) {
  RopeConfig dynamic;
  dynamic.type = "dynamic";
  expect_error(ErrorCode::kUnsupported, {"config.json", "dynamic", "default, linear, yarn, llama3"},
               [&] { rope_spec(dynamic, 64, true); });
  expect_error(ErrorCode::kUnsupported, {"dynamic"}, [&] { yarn_softmax_factor(dynamic); });
  for (const double factor : {0.0, 0.5, 1e7, std::nan("")}) {
    expect_error(ErrorCode::kCorrupt, {"config.json", "'factor'"},
                 [&] { rope_spec(yarn(10000, factor, 4096, 32, 1), 64, true); });
  }
  expect_error(ErrorCode::kCorrupt, {"original_max_position_embeddings"},
               [&] { rope_spec(yarn(10000, 40, 0, 32, 1), 64, true); });
  expect_error(ErrorCode::kCorrupt, {"beta_fast"},
               [&] { rope_spec(yarn(10000, 40, 4096, 0, 1), 64, true); });
  RopeConfig plain;
  expect_error(ErrorCode::kCorrupt, {"rotated slice of 0"}, [&] { rope_spec(plain, 0, true); });
  expect_error(ErrorCode::kCorrupt, {"rotated slice of 7"}, [&] { rope_spec(plain, 7, true); });
  plain.theta = 1;
  expect_error(ErrorCode::kCorrupt, {"rope_theta"}, [&] { rope_spec(plain, 64, true); });
}

}  // namespace
}  // namespace ingot::inference
