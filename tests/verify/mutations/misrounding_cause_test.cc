#include <algorithm>
#include <cmath>
#include <functional>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "formats/container/bfloat16.h"
#include "formats/container/float8.h"
#include "tests/support/contains_pattern.h"
#include "tests/support/temp_dir.h"
#include "tests/verify/mutations/edited_weights.h"
#include "tests/verify/mutations/good_conversions.h"
#include "verify/compared_checkpoint.h"
#include "verify/weights/weight_check.h"

// What a report says of why values are misrounded.

namespace ingot::testing {
namespace {

using ::testing::HasSubstr;

const std::string kUp = "model.layers.2.mlp.experts.3.up_proj";

std::string cause_of(Good good, const std::function<void(const Pair&)>& damage) {
  const TempDir directory;
  const Pair pair = copy_of_good(good, directory.path());
  damage(pair);
  const verify::ComparedCheckpoint before = verify::open_compared(pair.source, {});
  const verify::ComparedCheckpoint after = verify::open_compared(pair.output, {});
  for (const verify::TensorWeights& tensor :
       verify::compare_weights(before.model, after.model, {}).tensors) {
    if (tensor.name != kUp + ".weight") continue;
    EXPECT_GT(tensor.sums.misrounded, 0U);
    return tensor.cause;
  }
  ADD_FAILURE() << "no such tensor";
  return {};
}

void edit_scale(const Pair& pair, const char* name, const std::function<float(float)>& change) {
  edit_tensor(pair.output, kUp + name, [&](EditedTensor& scale) { scale.map<float>(change); });
}

float bf16(float value) {
  return formats::float_from_bf16(formats::bf16_from_float(value));
}

// As llm-compressor computes for a BF16 model: scale = amax / 127.5, and the quotient, in BF16.
void quantize_in_bf16(const Pair& pair) {
  const EditedWeights source(pair.source);
  const EditedTensor& fp8 = source.read(kUp + ".weight");
  const EditedTensor& blocks = source.read(kUp + ".weight_scale_inv");
  EditedWeights output(pair.output);
  EditedTensor& codes = output.at(kUp + ".weight");
  EditedTensor& scales = output.at(kUp + ".weight_scale");
  const std::size_t cols = codes.shape[1];
  for (std::size_t row = 0; row < codes.shape[0]; ++row) {
    std::vector<float> values(cols);
    float amax = 0;
    for (std::size_t col = 0; col < cols; ++col) {
      values[col] = formats::kE4m3Values[fp8.get<std::uint8_t>(row * cols + col)] *
                    blocks.get<float>(row / 128 * blocks.shape[1] + col / 128);
      amax = std::max(amax, std::fabs(values[col]));
    }
    const float scale = bf16(amax / 127.5F);
    scales.set<float>(row, scale);
    for (std::size_t col = 0; col < cols; ++col) {
      const float code = std::nearbyint(bf16(values[col] / scale));
      codes.set<std::int8_t>(row * cols + col,
                             static_cast<std::int8_t>(std::clamp(code, -128.0F, 127.0F)));
    }
  }
  output.save();
}

TEST(MisroundingCause, NamesArithmeticInBf16) {
  EXPECT_THAT(cause_of(Good::kInt8, quantize_in_bf16), HasSubstr("BF16 arithmetic"));
}

TEST(MisroundingCause, NamesTheNeighboursScale) {
  EXPECT_THAT(cause_of(Good::kInt8,
                       [](const Pair& pair) {
                         edit_tensor(pair.output, kUp + ".weight_scale", [](EditedTensor& scale) {
                           std::rotate(scale.bytes.begin(), scale.bytes.begin() + 4,
                                       scale.bytes.end());
                         });
                       }),
              HasSubstr("neighbouring row"));
}

TEST(MisroundingCause, NamesTheNeighbouringBlock) {
  const auto rotate = [](const Pair& pair) {
    edit_tensor(pair.output, kUp + ".weight_scale", [](EditedTensor& scale) {
      const auto cols = static_cast<std::ptrdiff_t>(scale.shape[1]);
      for (auto row = scale.bytes.begin(); row != scale.bytes.end(); row += cols)
        std::rotate(row, row + 1, row + cols);
    });
  };
  EXPECT_THAT(cause_of(Good::kNvfp4Ct, rotate), HasSubstr("neighbouring block"));
}

TEST(MisroundingCause, NamesAReciprocal) {
  const auto invert = [](float scale) { return 1 / scale; };
  EXPECT_THAT(
      cause_of(Good::kInt8, [&](const Pair& pair) { edit_scale(pair, ".weight_scale", invert); }),
      HasSubstr("reciprocal of the scale"));
  EXPECT_THAT(cause_of(Good::kNvfp4Ct,
                       [&](const Pair& pair) { edit_scale(pair, ".weight_global_scale", invert); }),
              HasSubstr("reciprocal of the global scale"));
}

TEST(MisroundingCause, NamesASharedGlobal) {
  const auto part = [](const Pair& pair) {
    edit_scale(pair, ".weight_scale_2", [](float global) { return global * 1.37F; });
  };
  EXPECT_THAT(cause_of(Good::kNvfp4Modelopt, part),
              ::testing::AllOf(HasSubstr("shared with"), HasSubstr("experts.3.gate_proj")));
}

TEST(MisroundingCause, NamesAFactor) {
  const auto grow = [](float scale) { return scale * 1.01F; };
  EXPECT_THAT(
      cause_of(Good::kInt8, [&](const Pair& pair) { edit_scale(pair, ".weight_scale", grow); }),
      ContainsPattern("1\\.0(1|0999.|1000.) times"));
}

TEST(MisroundingCause, IsSilentWhereNoneExplainsTheFigures) {
  EXPECT_EQ(cause_of(Good::kInt8,
                     [](const Pair& pair) {
                       edit_tensor(pair.output, kUp + ".weight", [](EditedTensor& codes) {
                         for (std::size_t i = 0; i < codes.bytes.size(); i += 7)
                           codes.set<std::int8_t>(i, static_cast<std::int8_t>(i % 127));
                       });
                     }),
            "");
}

}  // namespace
}  // namespace ingot::testing
