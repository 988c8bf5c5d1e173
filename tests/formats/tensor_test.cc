#include "formats/container/tensor.h"

#include <limits>

#include <gtest/gtest.h>

namespace ingot::formats {
namespace {

constexpr std::uint64_t k32 = std::uint64_t{1} << 32;

TEST(Tensor, ShapeTextListsDimensionsOutermostFirst) {
  EXPECT_EQ(shape_text({7168, 2048}), "[7168, 2048]");
  EXPECT_EQ(shape_text({3}), "[3]");
  EXPECT_EQ(shape_text({}), "[]");
}

TEST(Tensor, ElementCountIsTheProductOrNothing) {
  EXPECT_EQ(element_count({}), 1U);
  EXPECT_EQ(element_count({7168, 2048}), 14'680'064U);
  EXPECT_EQ(element_count({5, 0, 7}), 0U);
  EXPECT_EQ(element_count({k32, k32 - 1}), k32 * (k32 - 1));
  EXPECT_EQ(element_count({k32, k32}), std::nullopt);
  // The official reader multiplies from the left and refuses an overflow before it meets the 0.
  EXPECT_EQ(element_count({k32, k32, 0}), std::nullopt);
  EXPECT_EQ(element_count({0, k32, k32}), 0U);
}

TEST(Tensor, ByteCountFollowsTheBitsOfEveryDtype) {
  for (const DTypeFacts& row : kDTypes) {
    EXPECT_EQ(byte_count(row.dtype, {3, 8}), 3U * row.bits) << row.name;
    EXPECT_EQ(byte_count(row.dtype, {0}), 0U) << row.name;
  }
  EXPECT_EQ(byte_count(DType::kF32, {}), 4U);
  EXPECT_EQ(byte_count(DType::kF4, {2}), 1U);
  EXPECT_EQ(byte_count(DType::kF6E2M3, {4}), 3U);
}

TEST(Tensor, ByteCountRefusesPartialBytesAndOverflow) {
  EXPECT_EQ(byte_count(DType::kF4, {3}), std::nullopt);
  EXPECT_EQ(byte_count(DType::kF4, {}), std::nullopt);
  EXPECT_EQ(byte_count(DType::kF6E3M2, {2}), std::nullopt);
  EXPECT_EQ(byte_count(DType::kF64, {k32, k32 / 8}), std::nullopt);
  EXPECT_EQ(byte_count(DType::kU8, {std::numeric_limits<std::uint64_t>::max()}), std::nullopt);
}

TEST(Tensor, MatrixViewStepsByItsStride) {
  std::uint8_t data[] = {0, 1, 2, 3, 4, 5};
  const MatrixView<std::uint8_t> view{.data = data, .rows = 2, .cols = 2, .stride = 3};
  EXPECT_EQ(view.row(1)[0], 3);
  EXPECT_EQ(view.row(1)[1], 4);
}

}  // namespace
}  // namespace ingot::formats
