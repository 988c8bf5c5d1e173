#include "verify/weights/stack_sides.h"

#include <cmath>
#include <cstring>
#include <fstream>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/support/temp_dir.h"
#include "tests/support/tiny_checkpoint.h"

namespace ingot::verify {
namespace {

using namespace ingot::testing;

constexpr std::uint64_t kExperts = 4, kWidth = 24, kHidden = 40;

/// Random stacks, [experts, outputs, inputs], whose channels of the hidden state are as strong as
/// `spread` makes them, in a model whose rows say `order`.
std::vector<StackSides> measured(double spread, const std::string& order) {
  std::mt19937_64 random(7);
  std::normal_distribution<double> normal;
  std::vector<double> channels(kHidden);
  for (double& channel : channels) channel = std::exp(spread * normal(random));
  // As files have it; a row that says the other order takes the same bytes for transposed ones.
  const auto stack = [&](std::uint64_t rows, std::uint64_t cols, bool hidden_is_rows) {
    std::string data;
    for (std::uint64_t i = 0; i < kExperts * rows * cols; ++i) {
      const std::uint64_t channel = hidden_is_rows ? i / cols % rows : i % cols;
      const auto value = static_cast<float>(channels[channel] * normal(random));
      data.append(reinterpret_cast<const char*>(&value), sizeof value);
    }
    return data;
  };
  TinyCheckpoint tiny;
  tiny.config = R"({"model_type": "odd", "hidden_size": 40, "num_hidden_layers": 1,
      "num_experts": 4, "moe_intermediate_size": 24})";
  tiny.files["model.safetensors"] = {{"layers.0.experts.gate_up_proj",
                                      "F32",
                                      {kExperts, 2 * kWidth, kHidden},
                                      stack(2 * kWidth, kHidden, false)},
                                     {"layers.0.experts.down_proj",
                                      "F32",
                                      {kExperts, kHidden, kWidth},
                                      stack(kHidden, kWidth, true)}};
  const TempDir dir;
  tiny.write(dir.path());
  std::ofstream(dir / "ingot-family.yaml")
      << "family: odd\ntensors:\n"
      << "- {name: \"layers.{layer}.experts.gate_up_proj\", role: experts-gate-up, stack: " << order
      << ", shape: [num_experts, 48, 40], present: stacked}\n"
      << "- {name: \"layers.{layer}.experts.down_proj\", role: experts-down, stack: " << order
      << ", shape: [num_experts, 40, 24], present: stacked}\n";
  return measure_stacks(formats::Checkpoint::open(dir.path()));
}

TEST(StackSides, AgreeWithARowThatIsRight) {
  for (const StackSides& sides : measured(0.5, "output-major")) {
    EXPECT_TRUE(sides.is_told) << stack_text(sides);
    EXPECT_TRUE(sides.is_as_row_says) << stack_text(sides);
    EXPECT_GT(sides.sure, 0.99);
    EXPECT_NE(stack_text(sides).find("values agree"), std::string::npos);
  }
}

TEST(StackSides, ContradictARowThatIsTransposed) {
  const std::vector<StackSides> found = measured(0.5, "input-major");
  EXPECT_EQ(found.size(), 2U);
  for (const StackSides& sides : found) {
    EXPECT_TRUE(sides.is_told) << stack_text(sides);
    EXPECT_FALSE(sides.is_as_row_says) << stack_text(sides);
    EXPECT_NE(stack_text(sides).find("transposed (9"), std::string::npos) << stack_text(sides);
  }
}

TEST(StackSides, TellNothingOfRandomNumbers) {
  for (const StackSides& sides : measured(0, "output-major")) {
    EXPECT_FALSE(sides.is_told) << stack_text(sides);
    EXPECT_LT(sides.sure, 0.999);
    EXPECT_NE(stack_text(sides).find("do not tell"), std::string::npos);
  }
}

}  // namespace
}  // namespace ingot::verify
