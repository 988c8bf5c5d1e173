#include <memory>

#include <gtest/gtest.h>

#include "convert/recipe/statistics.h"
#include "tests/slicing/sliced.h"
#include "tests/support/temp_dir.h"
#include "verify/calibrate/calibrate.h"
#include "verify/gates/gate.h"
#include "verify/outputs/prompts.h"
#include "verify/verification.h"

// Every way to write the example's weights passes all levels by the default gates, whole and in
// slices. Static inputs are calibrated.

namespace ingot::testing {
namespace {

namespace fs = std::filesystem;

// Once per process.
const std::shared_ptr<const convert::ActivationScales>& calibrated() {
  static const auto scales = [] {
    // Conversions look at the file again.
    static const TempDir directory;
    const verify::ComparedCheckpoint example = verify::open_compared(tiny_v32(), {});
    const auto tokenizer = verify::open_tokenizer(example.model);
    auto documents =
        verify::read_documents(fs::path(INGOT_SOURCE_DIR) / "tests/golden/tiny-v32/val_docs.json",
                               example.model, *tokenizer);
    documents.resize(40);
    const fs::path file = directory / "scales.safetensors";
    verify::calibrate(example.model, documents, file, {});
    return std::make_shared<const convert::ActivationScales>(convert::ActivationScales::read(file));
  }();
  return scales;
}

std::string failures(const verify::Report& report) {
  std::string text;
  for (const std::string& level : report.not_run) text += level + "\n";
  for (const verify::GateResult& result : report.gates) {
    if (result.passed) continue;
    text += fmt::format("{}[{}] {} beyond {} at {}\n", result.gate.metric, result.gate.group,
                        result.worst, result.gate.limit, result.subject);
  }
  return text;
}

class EveryLevel : public ::testing::TestWithParam<Target> {
 protected:
  void convert(Conversion conversion) {
    GetParam().apply(conversion.recipe);
    if (GetParam().storage->activations == formats::Activations::kStatic) {
      conversion.recipe.choices.input_scale.reset();
      conversion.recipe.choices.activation_scales = calibrated();
    }
    conversion.run();
  }

  void expect_passed() const {
    const verify::Report report = verify::verify_pair(tiny_v32(), directory_ / "output",
                                                      {.levels = verify::parse_levels("all")});
    EXPECT_TRUE(report.passed()) << failures(report);
    EXPECT_TRUE(report.layers && report.greedy && report.weights && report.structure);
  }

  TempDir directory_;
};

TEST_P(EveryLevel, IsPassedByAWholeConversion) {
  convert(Conversion(tiny_v32(), directory_ / "output"));
  expect_passed();
}

TEST_P(EveryLevel, IsPassedByRankSlices) {
  convert(slicing(tiny_v32(), directory_ / "output", {.tp = 1, .ep = 4}));
  expect_passed();
}

INSTANTIATE_TEST_SUITE_P(EveryTarget, EveryLevel, ::testing::ValuesIn(all_targets()),
                         [](const auto& row) { return test_name(row.param.name()); });

}  // namespace
}  // namespace ingot::testing
