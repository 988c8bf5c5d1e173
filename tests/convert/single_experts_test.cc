#include "formats/checkpoint/single_experts.h"

#include <gtest/gtest.h>

#include "check/check.h"
#include "tests/convert/conversion.h"
#include "tests/convert/output_tensors.h"
#include "tests/support/expect_error.h"
#include "tests/support/temp_dir.h"

namespace ingot::convert {
namespace {

using formats::Checkpoint;
using formats::SchemeId;
using ingot::testing::OutputTensors;
using ingot::testing::read_output;
using ingot::testing::TempDir;

std::filesystem::path fixture(const std::string& name) {
  return std::filesystem::path(INGOT_SOURCE_DIR) / "tests/golden/families" / name;
}

/// Converts the fixture with its experts one by one.
void convert_separated(const std::string& name, std::optional<SchemeId> to,
                       const std::filesystem::path& output) {
  const Checkpoint source = formats::with_single_experts(Checkpoint::open(fixture(name), {}), {});
  Recipe recipe;
  recipe.to = to;
  ingot::testing::resolve(recipe, source);
  execute(ingot::testing::plan_for(source, recipe), output, {});
}

TEST(SingleExperts, AreTheBytesOfTheStack) {
  const TempDir directory;
  convert_separated("qwen3_5_moe", std::nullopt, directory / "out");
  const OutputTensors stacked = read_output(fixture("qwen3_5_moe"));
  const OutputTensors single = read_output(directory / "out");
  std::size_t n_stacks = 0;
  for (const auto& [name, tensor] : stacked) {
    if (name.find(".experts.") == name.npos) {
      EXPECT_EQ(single.at(name), tensor) << name;
      continue;
    }
    ++n_stacks;
    EXPECT_FALSE(single.contains(name));
    const std::string base = name.substr(0, name.rfind('.') + 1);
    std::string bytes;
    for (int expert = 0; expert < 6; ++expert) {
      const std::string module = base + std::to_string(expert);
      if (name.ends_with("down_proj")) {
        EXPECT_EQ(single.at(module + ".down_proj.weight").shape, (formats::Shape{72, 32}));
        bytes += single.at(module + ".down_proj.weight").bytes;
      } else {
        EXPECT_EQ(single.at(module + ".gate_proj.weight").shape, (formats::Shape{32, 72}));
        bytes += single.at(module + ".gate_proj.weight").bytes;
        bytes += single.at(module + ".up_proj.weight").bytes;
      }
    }
    EXPECT_EQ(bytes, tensor.bytes) << name;
  }
  EXPECT_EQ(n_stacks, 8U);
}

TEST(SingleExperts, AreQuantizedAsAnyOther) {
  for (const SchemeId scheme :
       {SchemeId::kFp8Block, SchemeId::kFp8Channel, SchemeId::kFp8Tensor, SchemeId::kInt8Channel}) {
    const TempDir directory;
    convert_separated("qwen3_5_moe", scheme, directory / "out");
    for (const check::Finding& finding : check::check_checkpoint(directory / "out", {}).findings)
      EXPECT_EQ(finding.severity, check::Severity::kWarning) << finding.message;
    const Checkpoint output = Checkpoint::open(directory / "out", {});
    for (const formats::LogicalTensor& tensor : output.tensors()) {
      if (!is_routed_expert(tensor.rule->role)) continue;
      EXPECT_EQ(tensor.encoding.scheme, scheme) << tensor.name;
    }
  }
}

TEST(SingleExperts, AreNotInInputMajorStacks) {
  EXPECT_FALSE(formats::can_separate(Checkpoint::open(fixture("llama4"), {})));
  ingot::testing::expect_error(
      ErrorCode::kUnsupported, {"down_proj", "output-major", "--experts"},
      [] { formats::with_single_experts(Checkpoint::open(fixture("llama4"), {}), {}); });
}

TEST(SingleExperts, AreNotInQuantizedStacks) {
  const TempDir directory;
  ingot::testing::Conversion conversion(fixture("qwen3_5_moe"), directory / "out");
  conversion.recipe.to = SchemeId::kFp8Block;
  conversion.run();
  const Checkpoint stacked = Checkpoint::open(directory / "out", {});
  EXPECT_TRUE(formats::holds_stacks(stacked));
  EXPECT_FALSE(formats::can_separate(stacked));
}

}  // namespace
}  // namespace ingot::convert
