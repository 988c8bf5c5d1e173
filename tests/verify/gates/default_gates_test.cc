#include <gtest/gtest.h>

#include "verify/report/report.h"

namespace ingot::verify {
namespace {

// The gate of a metric that judges values of this group by default.
std::optional<double> limit_of(std::string_view metric, std::string_view group,
                               std::string_view search = "") {
  Report report;
  report.output.kind = std::string(group);
  report.weights = WeightsReport{.tensors = {{.name = "w", .to = std::string(group)}}};
  report.layers = LayersReport{.layers = {LayerAgreement{}}};
  report.greedy = GreedyReport{.prompts = std::vector<GreedyPrompt>(1)};
  for (const GateResult& result : judge(report, default_thresholds(search))) {
    if (result.gate.metric == metric) return result.gate.limit;
  }
  return std::nullopt;
}

TEST(DefaultGates, WeightsHaveTheFloorOfTheirScheme) {
  EXPECT_EQ(limit_of("weights.cosine", "bf16"), 0.99999);
  EXPECT_EQ(limit_of("weights.cosine", "int8-channel"), 0.9995);
  EXPECT_EQ(limit_of("weights.cosine", "int8-block"), 0.9995);
  EXPECT_EQ(limit_of("weights.cosine", "fp8-block"), 0.9995);
  EXPECT_EQ(limit_of("weights.cosine", "fp8-tensor"), 0.9995);
  EXPECT_EQ(limit_of("weights.cosine", "mxfp8"), 0.9995);
  EXPECT_EQ(limit_of("weights.cosine", "mxfp4"), 0.991);
  EXPECT_EQ(limit_of("weights.cosine", "raw"), std::nullopt);
}

TEST(DefaultGates, Nvfp4GateFollowsItsSearch) {
  EXPECT_EQ(limit_of("weights.cosine", "nvfp4"), 0.995);
  EXPECT_EQ(limit_of("weights.cosine", "nvfp4", "amax"), 0.995);
  EXPECT_EQ(limit_of("weights.cosine", "nvfp4", "4over6"), 0.9955);
  EXPECT_EQ(limit_of("weights.cosine", "nvfp4", "mse"), 0.9965);
  EXPECT_EQ(limit_of("weights.cosine", "nvfp4", "weighted"), 0.992);
}

TEST(DefaultGates, NoSchemeMayHaveFaults) {
  for (const char* scheme : {"bf16", "nvfp4", "raw"}) {
    EXPECT_EQ(limit_of("weights.misrounded", scheme), 0);
    EXPECT_EQ(limit_of("weights.narrowed", scheme), 0);
    EXPECT_EQ(limit_of("weights.nonfinite", scheme), 0);
    EXPECT_EQ(limit_of("weights.changed", scheme), 0);
    EXPECT_EQ(limit_of("weights.scale_error", scheme), 0.05);
  }
}

TEST(DefaultGates, LayersHaveTheFloorOfTheirKind) {
  EXPECT_EQ(limit_of("layers.cosine", "plain"), 0.9995);
  EXPECT_EQ(limit_of("layers.cosine", "int8"), 0.999);
  EXPECT_EQ(limit_of("layers.cosine", "fp8"), 0.999);
  EXPECT_EQ(limit_of("layers.cosine", "nvfp4-experts"), 0.997);
  EXPECT_EQ(limit_of("layers.cosine", "fp4"), 0.994);
}

TEST(DefaultGates, FourBitAnswersHaveNoDefaultGate) {
  for (const char* kind : {"plain", "int8", "fp8", "nvfp4-experts", "fp4"}) {
    EXPECT_EQ(limit_of("outputs.kl", kind), std::nullopt);
    EXPECT_EQ(limit_of("outputs.perplexity", kind), std::nullopt);
  }
  EXPECT_EQ(limit_of("greedy.different", "fp8"), 0);
  EXPECT_EQ(limit_of("greedy.inconclusive", "plain"), 0.5);
  EXPECT_EQ(limit_of("greedy.different", "fp4"), std::nullopt);
  EXPECT_EQ(limit_of("greedy.inconclusive", "nvfp4-experts"), std::nullopt);
}

}  // namespace
}  // namespace ingot::verify
