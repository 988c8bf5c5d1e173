#include <fstream>

#include <gtest/gtest.h>

#include "tests/support/expect_error.h"
#include "tests/support/temp_dir.h"
#include "verify/gates/gate.h"
#include "verify/gates/report.h"

namespace ingot::verify {

using namespace ingot::testing;

namespace {

Thresholds read(std::string_view yaml) {
  const TempDir directory;
  const auto path = directory / "gates.yaml";
  std::ofstream(path) << yaml;
  Thresholds thresholds;
  read_thresholds(path, thresholds);
  return thresholds;
}

TEST(ThresholdsYaml, HasLimitsBoundsGroupsAndTheGap) {
  const Thresholds thresholds = read(
      "# what we ship\n"
      "weights.cosine: {int8: 0.9999, nvfp4: 0.996}\n"
      "layers.cosine: \">= 0.999\"\n"
      "outputs.kl:\n"
      "  int8: 5e-5\n"
      "  nvfp4-experts: <= 5e-4\n"
      "greedy.gap: 0.5\n");
  const std::vector<Gate> expected = {
      {"weights.cosine", "int8", Bound::kAtLeast, 0.9999, "gates.yaml"},
      {"weights.cosine", "nvfp4", Bound::kAtLeast, 0.996, "gates.yaml"},
      {"layers.cosine", "", Bound::kAtLeast, 0.999, "gates.yaml"},
      {"outputs.kl", "int8", Bound::kAtMost, 5e-5, "gates.yaml"},
      {"outputs.kl", "nvfp4-experts", Bound::kAtMost, 5e-4, "gates.yaml"}};
  EXPECT_EQ(thresholds.gates, expected);
  EXPECT_EQ(thresholds.greedy_gap, 0.5);
}

TEST(ThresholdsYaml, NamesFileLineAndKeyOfFaults) {
  const auto refused = [](std::string_view yaml, std::initializer_list<std::string> fragments) {
    expect_error(ErrorCode::kInvalidArgument, fragments, [&] { read(yaml); });
  };
  refused("\nlayer.cosine: 1", {"gates.yaml", "line 2", "'layer.cosine'"});
  refused("layers.cosine: high", {"line 1", "layers.cosine: 'high' is not a number"});
  refused("layers.cosine: \"<= 1\"", {"layers.cosine", "write >="});
  refused("layers.cosine: [1]", {"layers.cosine is not a limit"});
  refused("layers.cosine:", {"layers.cosine is not a limit"});
  refused("layers.cosine: {}", {"layers.cosine has no groups"});
  refused("a: 1\nlayers.cosine: {fp8: 1}", {"line 1", "'a'"});
  refused("layers.cosine:\n  fp8: 1\n  nvfp5: 1", {"line 3", "layers.cosine[nvfp5]"});
  refused("layers.cosine: {fp8: {x: 1}}", {"layers.cosine[fp8] is not a limit"});
  refused("layers.cosine: 1\nlayers.cosine: 1", {"line 2", "'layers.cosine' is there twice"});
  refused("layers.cosine: {fp8: 1, fp8: 1}", {"'fp8' is there twice"});
  refused("greedy.gap: -1", {"greedy.gap is negative"});
  refused("greedy.gap: x", {"greedy.gap: 'x' is not a number"});
  refused("- layers.cosine", {"is not a map"});
  refused("layers.cosine: {", {"gates.yaml", "is not YAML"});
  refused("layers.cosine: 1\n---\nlayers.cosine: 1", {"more than one YAML document"});
  refused("", {"holds no thresholds"});
  refused("layers.cosine: &a 1", {"line 1", "anchors"});
}

TEST(ThresholdsYaml, AFileThatIsNotThereIsNamed) {
  Thresholds thresholds;
  expect_error(ErrorCode::kNotFound, {"absent.yaml"},
               [&] { read_thresholds("absent.yaml", thresholds); });
}

Gate parsed(std::string_view text) {
  Thresholds thresholds;
  add_requirement(text, thresholds);
  return thresholds.gates.at(0);
}

TEST(Requirement, HasMetricGroupAndLimit) {
  EXPECT_EQ(parsed("layers.cosine>=0.999"),
            (Gate{"layers.cosine", "", Bound::kAtLeast, 0.999, "--require"}));
  EXPECT_EQ(parsed("weights.cosine[nvfp4] >= 0.996"),
            (Gate{"weights.cosine", "nvfp4", Bound::kAtLeast, 0.996, "--require"}));
  EXPECT_EQ(parsed("outputs.kl<=5e-5"),
            (Gate{"outputs.kl", "", Bound::kAtMost, 5e-5, "--require"}));
  EXPECT_EQ(parsed("weights.sqnr[int8]>=40").group, "int8");
}

TEST(Requirement, SaysWhatIsNotUnderstood) {
  const auto refused = [](std::string_view text, const std::string& fragment) {
    expect_error(ErrorCode::kInvalidArgument, {std::string(text), fragment}, [&] { parsed(text); });
  };
  refused("layers.cosine", "neither >= nor <=");
  refused("layers.cosine>0.9", "neither >= nor <=");
  refused("layers.cosine=0.9", "neither >= nor <=");
  refused("layers.cosine>=", "is not a number");
  refused("layers.cosine>=0.9x", "'0.9x' is not a number");
  refused("layers.cosine>=nan", "is not a number");
  refused("layers.cosine<=0.9", "write >=");
  refused("outputs.kl>=1", "write <=");
  refused("layer.cosine>=0.9", "metric 'layer.cosine' is none of");
  refused("weights.cosine[nvfp5]>=0.9", "'nvfp5' is not a group");
  refused("weights.cosine[4-bit]>=0.9", "'4-bit' is not a group");
  refused("layers.cosine[bf16]>=0.9", "'bf16' is not a group");
  refused("structure.errors[int8]<=0", "'int8' is not a group");
  refused("weights.cosine[]>=0.9", "empty group");
  refused("weights.cosine]>=0.9", "']' without '['");
  refused("", "neither >= nor <=");
}

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
  EXPECT_EQ(limit_of("weights.cosine", "fp8-block"), 0.998);
  EXPECT_EQ(limit_of("weights.cosine", "fp8-tensor"), 0.998);
  EXPECT_EQ(limit_of("weights.cosine", "mxfp8"), 0.998);
  EXPECT_EQ(limit_of("weights.cosine", "mxfp4"), 0.991);
  EXPECT_EQ(limit_of("weights.scale_error", "mxfp4"), 0.2);
  EXPECT_EQ(limit_of("weights.scale_error", "nvfp4"), 0.05);
  for (const char* scheme : {"fp8-block", "fp8-channel", "fp8-tensor", "mxfp8"})
    EXPECT_EQ(limit_of("weights.scale_error", scheme), 0.0589) << "above 1/17";
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
  EXPECT_EQ(limit_of("layers.cosine", "4-bit"), 0.994);
}

TEST(DefaultGates, FourBitAnswersHaveNoDefaultGate) {
  for (const char* kind : {"plain", "int8", "fp8", "nvfp4-experts", "4-bit"}) {
    EXPECT_EQ(limit_of("outputs.kl", kind), std::nullopt);
    EXPECT_EQ(limit_of("outputs.perplexity", kind), std::nullopt);
  }
  EXPECT_EQ(limit_of("greedy.different", "fp8"), 0);
  EXPECT_EQ(limit_of("greedy.inconclusive", "plain"), 0.5);
  EXPECT_EQ(limit_of("greedy.different", "4-bit"), std::nullopt);
  EXPECT_EQ(limit_of("greedy.inconclusive", "nvfp4-experts"), std::nullopt);
}

}  // namespace

}  // namespace ingot::verify
