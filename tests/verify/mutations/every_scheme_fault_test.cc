#include <algorithm>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/convert/targets.h"
#include "tests/support/temp_dir.h"
#include "tests/verify/mutations/edited_weights.h"
#include "tests/verify/mutations/good_conversions.h"
#include "tests/verify/mutations/verdict.h"

// The faults that separate best, in every scheme: scales a little off or in another's place, and
// one code. The model is random and its scales are no powers of two: where the values of a source
// lie on the grid of the output, a factor moves all of them and none beyond half a step.

namespace ingot::testing {
namespace {

constexpr const char* kModule = "model.layers.1.mlp.experts.1.up_proj";

class FaultInScheme : public ::testing::TestWithParam<Target> {
 protected:
  void SetUp() override {
    Conversion conversion(synth_model(), directory_ / "output");
    GetParam().apply(conversion.recipe);
    conversion.run();
    forget_the_conversion(conversion.output);
  }

  // Changes the parts of the module that hold codes, or those that hold block scales.
  void change(bool scales, const std::function<void(EditedTensor&)>& body) const {
    EditedWeights weights(directory_ / "output");
    std::size_t n_changed = 0;
    for (const std::string& name : weights.names(std::string(kModule) + ".weight")) {
      const bool is_scale = name.ends_with(".weight_scale") || name.ends_with(".weight_scale_inv");
      const bool is_code = name.ends_with(".weight") || name.ends_with(".weight_packed");
      if (scales ? !is_scale : !is_code) continue;
      body(weights.at(name));
      ++n_changed;
    }
    ASSERT_EQ(n_changed, 1U);
    weights.save();
  }

  void expect_rejected() const {
    const Verdict verdict = judge_default(synth_model(), directory_ / "output");
    EXPECT_FALSE(verdict.passed) << "nobody noticed";
    EXPECT_THAT(verdict.text, ::testing::HasSubstr(kModule));
  }

  TempDir directory_;
};

// 1.01 times an F32 scale; of eight bits, the next larger one.
TEST_P(FaultInScheme, IsSeenInScalesThatAreALittleOff) {
  change(true, [](EditedTensor& scale) {
    if (scale.dtype == formats::DType::kF32) {
      scale.map<float>([](float value) { return value * 1.01F; });
    } else {
      scale.map<std::uint8_t>(
          [](std::uint8_t code) { return static_cast<std::uint8_t>(code + 1); });
    }
  });
  expect_rejected();
}

// The second lowest bit of a byte: two steps of INT8, more of the others.
TEST_P(FaultInScheme, IsSeenInOneBitOfACode) {
  change(false, [](EditedTensor& codes) {
    codes.set<std::uint8_t>(321, codes.get<std::uint8_t>(321) ^ 2U);
  });
  expect_rejected();
}

INSTANTIATE_TEST_SUITE_P(EveryScheme, FaultInScheme, ::testing::ValuesIn(scheme_targets()),
                         [](const auto& row) { return test_name(row.param.name()); });

class NeighbourInScheme : public FaultInScheme {};

// Four places on: four rows, or blocks of a row.
TEST_P(NeighbourInScheme, IsSeenWhereItsScaleIsTaken) {
  change(true, [](EditedTensor& scale) {
    const auto n_bytes = scale.dtype == formats::DType::kF32 ? 16 : 4;
    std::rotate(scale.bytes.begin(), scale.bytes.begin() + n_bytes, scale.bytes.end());
  });
  expect_rejected();
}

// Those that have many scales in so small a weight.
std::vector<Target> finely_scaled() {
  std::vector<Target> targets = scheme_targets();
  std::erase_if(targets, [](const Target& target) {
    const formats::SchemeId scheme = target.spelling->scheme;
    return scheme == formats::SchemeId::kFp8Block || scheme == formats::SchemeId::kFp8Tensor ||
           scheme == formats::SchemeId::kInt8Block;
  });
  return targets;
}

INSTANTIATE_TEST_SUITE_P(EveryScheme, NeighbourInScheme, ::testing::ValuesIn(finely_scaled()),
                         [](const auto& row) { return test_name(row.param.name()); });

}  // namespace
}  // namespace ingot::testing
