#include <fstream>

#include <gtest/gtest.h>

#include "tests/support/expect_error.h"
#include "tests/support/temp_dir.h"
#include "verify/gates/gate.h"

namespace ingot::verify {
namespace {

using ingot::testing::expect_error;
using ingot::testing::TempDir;

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
}

TEST(ThresholdsYaml, AFileThatIsNotThereIsNamed) {
  Thresholds thresholds;
  expect_error(ErrorCode::kNotFound, {"absent.yaml"},
               [&] { read_thresholds("absent.yaml", thresholds); });
}

}  // namespace
}  // namespace ingot::verify
