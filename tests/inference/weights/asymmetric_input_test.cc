#include <cmath>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "convert/recipe/statistics.h"
#include "tests/convert/plain_decode.h"
#include "tests/inference/weights/variants.h"
#include "tests/support/tiny_checkpoint.h"

// Ascend's static W8A8 with a range that is not symmetric: codes have an offset, which quant_bias
// takes away again, once.

namespace ingot::inference {
namespace {

using ingot::testing::all;
using ingot::testing::applied;
using ingot::testing::Conversion;
using ingot::testing::OutputTensors;
using ingot::testing::rows_of;
using ingot::testing::TempDir;

class AsymmetricInput : public ::testing::Test {
 protected:
  static constexpr std::size_t kRows = 4, kN = 256, kK = 640;
  const std::string name_ = "model.layers.0.mlp.down_proj.weight";

  // Every module's input reaches from -1 to 3.
  void SetUp() override {
    const formats::Checkpoint example = formats::Checkpoint::open(ingot::testing::tiny_v32());
    std::vector<ingot::testing::TinyTensor> ranges;
    const auto number = [](float value) {
      return std::string(reinterpret_cast<const char*>(&value), sizeof value);
    };
    for (const auto& tensor : example.tensors()) {
      const std::string module = ingot::testing::module_of(tensor.name);
      ranges.push_back({module + ".input_min", "F32", {1}, number(-1)});
      ranges.push_back({module + ".input_max", "F32", {1}, number(3)});
    }
    ingot::testing::write_bytes(directory_ / "ranges.safetensors",
                                ingot::testing::safetensors_bytes(ranges));
    Conversion conversion(ingot::testing::tiny_v32(), directory_ / "out");
    conversion.recipe.to = formats::SchemeId::kInt8Channel;
    conversion.recipe.choices.dialect = "modelslim";
    conversion.recipe.choices.activations = formats::Activations::kStatic;
    conversion.recipe.choices.activation_scales = std::make_shared<convert::ActivationScales>(
        convert::ActivationScales::read(directory_ / "ranges.safetensors"));
    conversion.run();
    x_ = ingot::testing::normal_values(kRows * kK, 3);
    for (float& value : x_) value += 1;  // some beyond the range
  }

  Linear part(const WeightStore& store, Range cols) const {
    return store.linear(name_, kN, kK, all(kN), cols);
  }

  // The model reference's formula, from the stored tensors.
  std::vector<double> expected() const {
    const OutputTensors stored = ingot::testing::read_output(directory_ / "out");
    const std::string module = ingot::testing::module_of(name_);
    const auto codes = stored.at(module + ".weight").as<std::int8_t>();
    const auto bias = stored.at(module + ".quant_bias").as<std::int32_t>();
    const auto deq = stored.at(module + ".deq_scale").as<float>();
    const float scale = stored.at(module + ".input_scale").as<float>().front();
    const float offset = stored.at(module + ".input_offset").as<float>().front();
    EXPECT_NE(offset, 0.0F);
    std::vector<double> y;
    for (std::size_t m = 0; m < kRows; ++m) {
      for (std::size_t n = 0; n < kN; ++n) {
        std::int64_t sum = bias[n];
        for (std::size_t k = 0; k < kK; ++k) {
          const float code = std::nearbyint(x_[m * kK + k] / scale) + offset;
          sum += static_cast<std::int64_t>(std::clamp(code, -128.0F, 127.0F)) * codes[n * kK + k];
        }
        y.push_back(static_cast<double>(sum) * double{deq[n]});
      }
    }
    return y;
  }

  TempDir directory_;
  std::vector<float> x_;
};

TEST_F(AsymmetricInput, IsTakenAwayByTheQuantBias) {
  const formats::Checkpoint source = formats::Checkpoint::open(directory_ / "out");
  const WeightStore store(source, Profile::kNative, 1);
  const auto y = applied(part(store, all(kK)), x_, kRows);
  const auto formula = expected();
  for (std::size_t i = 0; i < y.size(); ++i)
    ASSERT_NEAR(double{y[i]}, formula[i], std::abs(formula[i]) * 2e-7 + 1e-30) << i;
}

TEST_F(AsymmetricInput, IsSubtractedByTheFirstPartOnly) {
  const formats::Checkpoint source = formats::Checkpoint::open(directory_ / "out");
  const WeightStore store(source, Profile::kNative, 1);
  std::vector<double> sums(kRows * kN);
  for (const Range cols : {Range{.first = 0, .count = 208}, Range{.first = 208, .count = 432}}) {
    std::vector<float> x;
    for (std::size_t m = 0; m < kRows; ++m) {
      const auto first = x_.begin() + static_cast<std::ptrdiff_t>(m * kK + cols.first);
      x.insert(x.end(), first, first + static_cast<std::ptrdiff_t>(cols.count));
    }
    const auto y = applied(part(store, cols), x, kRows);
    for (std::size_t i = 0; i < y.size(); ++i) sums[i] += double{y[i]};
  }
  const auto formula = expected();
  double largest = 0;
  for (const double value : formula) largest = std::max(largest, std::abs(value));
  for (std::size_t i = 0; i < sums.size(); ++i)
    ASSERT_NEAR(sums[i], formula[i], largest * 1e-6) << i;
}

TEST_F(AsymmetricInput, ChangesNothingInOtherProfiles) {
  const formats::Checkpoint source = formats::Checkpoint::open(directory_ / "out");
  const WeightStore native(source, Profile::kNative, 1);
  const WeightStore f32(source, Profile::kF32, 1);
  const auto exact = applied(part(f32, all(kK)), x_, kRows);
  const auto quantized = applied(part(native, all(kK)), x_, kRows);
  // Inputs beyond the range are cut off, so only the bulk of the error is small.
  double error = 0, reference = 0;
  for (std::size_t i = 0; i < exact.size(); ++i) {
    error += std::pow(double{exact[i]} - double{quantized[i]}, 2);
    reference += std::pow(double{exact[i]}, 2);
  }
  EXPECT_LT(std::sqrt(error / reference), 0.2);
  EXPECT_NE(exact, quantized);
  // What the static parts take is held in profile native only.
  EXPECT_EQ(part(native, all(kK)).n_bytes(), part(f32, all(kK)).n_bytes() + 2 * 4 * kN);
}

TEST_F(AsymmetricInput, RefusesAFractionalOffset) {
  const formats::Checkpoint before = formats::Checkpoint::open(directory_ / "out");
  const auto& stored = before.stored();
  const auto offset = std::find_if(stored.begin(), stored.end(), [](const auto& tensor) {
    return tensor.name == "model.layers.0.mlp.down_proj.input_offset";
  });
  ASSERT_NE(offset, stored.end());
  const auto path = directory_ / "out" / before.files()[offset->file].name;
  std::string bytes = read_text_file(path, 1 << 28);
  const float half = 0.5F;
  std::memcpy(bytes.data() + offset->offset, &half, sizeof half);
  ingot::testing::write_bytes(path, bytes);
  const formats::Checkpoint source = formats::Checkpoint::open(directory_ / "out");
  const WeightStore store(source, Profile::kNative, 1);
  try {
    static_cast<void>(part(store, all(kK)));
    FAIL() << "was read";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kCorrupt);
    EXPECT_THAT(error.what(), ::testing::HasSubstr("input_offset is 0.5"));
    EXPECT_EQ(error.tensor(), name_);
  }
  const WeightStore bf16(source, Profile::kBf16, 1);
  EXPECT_EQ(part(bf16, all(kK)).rows(), kN);
}

}  // namespace
}  // namespace ingot::inference
