#include <gtest/gtest.h>

#include "tests/support/expect_error.h"
#include "verify/gates/gate.h"

namespace ingot::verify {
namespace {

using ingot::testing::expect_error;

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
  refused("layer.cosine>=0.9", "'layer.cosine' is not something that can be gated");
  refused("weights.cosine[nvfp5]>=0.9", "'nvfp5' is not a group");
  refused("weights.cosine[fp4]>=0.9", "'fp4' is not a group");
  refused("layers.cosine[bf16]>=0.9", "'bf16' is not a group");
  refused("structure.errors[int8]<=0", "'int8' is not a group");
  refused("weights.cosine[]>=0.9", "empty group");
  refused("weights.cosine]>=0.9", "']' without '['");
  refused("", "neither >= nor <=");
}

}  // namespace
}  // namespace ingot::verify
