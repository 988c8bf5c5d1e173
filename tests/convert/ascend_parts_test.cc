#include <bit>
#include <cmath>
#include <cstring>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "convert/run/actions.h"
#include "tests/support/expect_error.h"

namespace ingot::convert {
namespace {

using formats::Part;
using ingot::testing::expect_error;

template <typename T>
std::vector<T> numbers(const std::vector<std::byte>& bytes) {
  std::vector<T> values(bytes.size() / sizeof(T));
  if (!values.empty()) std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

// docs/formats.md, "Test vectors": the row [1, -0.5] and inputs from -1 to 3.
class AscendVector : public ::testing::Test {
 protected:
  const std::vector<float> row_scales_ = {1.0F / 127.0F};
  const std::vector<std::int64_t> row_sums_ = {127 - 64};
  const AscendInputs inputs_{.input = asymmetric_input_scale({.min = -1, .max = 3}),
                             .row_scales = row_scales_,
                             .row_sums = row_sums_};
};

TEST_F(AscendVector, ScalesInputBy4Over255WithOffset) {
  EXPECT_THAT(numbers<float>(ascend_part(Part::kInputScale, inputs_)),
              ::testing::ElementsAre(4.0F / 255.0F));
  EXPECT_THAT(numbers<float>(ascend_part(Part::kInputOffset, inputs_)),
              ::testing::ElementsAre(-64.0F));
}

TEST_F(AscendVector, TheBiasIs4032) {
  EXPECT_THAT(numbers<std::int32_t>(ascend_part(Part::kQuantBias, inputs_)),
              ::testing::ElementsAre(4032));
}

TEST_F(AscendVector, TheProductOfTheScalesIs1_2351397e_4) {
  const auto products = numbers<float>(ascend_part(Part::kDeqScale, inputs_));
  ASSERT_EQ(products.size(), 1U);
  EXPECT_EQ(products[0], (4.0F / 255.0F) * (1.0F / 127.0F));
  EXPECT_NEAR(products[0], 1.2351397e-4, 1e-11);
}

// What an engine computes from them for the input [1, -1].
TEST_F(AscendVector, TheyGiveTheProductOfInputAndWeight) {
  const float scale = numbers<float>(ascend_part(Part::kInputScale, inputs_)).front();
  const float offset = numbers<float>(ascend_part(Part::kInputOffset, inputs_)).front();
  const auto code = [&](float x) { return std::nearbyint(x / scale + offset); };
  EXPECT_EQ(code(1), 0);
  EXPECT_EQ(code(-1), -128);
  const int sum = static_cast<int>(code(1)) * 127 + static_cast<int>(code(-1)) * -64 +
                  numbers<std::int32_t>(ascend_part(Part::kQuantBias, inputs_)).front();
  EXPECT_EQ(sum, 12224);
  EXPECT_NEAR(
      static_cast<float>(sum) * numbers<float>(ascend_part(Part::kDeqScale, inputs_)).front(),
      1.50984, 1e-5);
}

TEST(AscendParts, HaveOneNumberPerRow) {
  const std::vector<float> scales = {1, 2, 4};
  const std::vector<std::int64_t> sums = {5, -7, 0};
  const AscendInputs inputs{
      .input = {.scale = 0.5F, .offset = 3}, .row_scales = scales, .row_sums = sums};
  EXPECT_THAT(numbers<float>(ascend_part(Part::kDeqScale, inputs)),
              ::testing::ElementsAre(0.5F, 1.0F, 2.0F));
  EXPECT_THAT(numbers<std::int32_t>(ascend_part(Part::kQuantBias, inputs)),
              ::testing::ElementsAre(-15, 21, 0));
}

TEST(AscendParts, ABiasBeyond32BitsIsRefused) {
  const std::vector<float> scales = {1};
  const std::vector<std::int64_t> fits = {16'777'215}, too_large = {16'777'217};
  const InputScale input{.scale = 1, .offset = -128};
  EXPECT_THAT(numbers<std::int32_t>(ascend_part(
                  Part::kQuantBias, {.input = input, .row_scales = scales, .row_sums = fits})),
              ::testing::ElementsAre(2'147'483'520));
  expect_error(ErrorCode::kUnsupported, {"quant_bias", "32 bits"}, [&] {
    ascend_part(Part::kQuantBias, {.input = input, .row_scales = scales, .row_sums = too_large});
  });
}

}  // namespace
}  // namespace ingot::convert
