#include "shard/align/align_blocks.h"
#include "shard/cut/part_cut.h"
#include "tests/support/test.h"

// Over many widths and numbers of ranks: wherever a cut is accepted, the scales of the slices are
// those that slices of that size need.

namespace ingot::shard {
namespace {

using namespace formats;

constexpr std::uint64_t kStep = 64;
constexpr std::uint64_t kLargest = 20000;
constexpr std::uint32_t kMostRanks = 32;

std::uint64_t up(std::uint64_t a, std::uint64_t b) {
  return (a + b - 1) / b;
}

const Width kHidden = Width::parse("hidden_size");
const Width kIntermediate = Width::parse("intermediate_size");

/// A feed-forward weight of N x K, cut along one side of the dense width.
struct OneWeight {
  OneWeight(std::uint64_t n, std::uint64_t k, Axis axis, std::uint32_t ranks) {
    const bool along_rows = axis == Axis::kRows;
    rule.role = along_rows ? formats::Role::kDenseUp : formats::Role::kDenseDown;
    rule.shape = {&(along_rows ? kIntermediate : kHidden), &(along_rows ? kHidden : kIntermediate)};
    config.intermediate_size = along_rows ? n : k;
    config.hidden_size = along_rows ? k : n;
    tensor.shape = {n, k};
    tensor.rule = &rule;
    to_fit = {.tensor = &tensor,
              .scheme = SchemeId::kFp8Block,
              .group = {128, 128},
              .cut = {.axis = axis, .owner = Owner::kTp, .n = ranks}};
  }
  OneWeight(const OneWeight&) = delete;

  [[nodiscard]] Alignments fit(TpFit how) const {
    Slicing slicing;
    slicing.fit = how;
    return align_blocks({&to_fit, 1}, config, slicing);
  }

  formats::TensorRule rule;
  formats::LogicalTensor tensor;
  formats::ModelConfig config;
  TensorToAlign to_fit;
};

/// Weight and block after the changes of a fit.
struct Cuttable {
  Shape weight;
  std::array<std::uint64_t, 2> block;
};

Cuttable changed(const OneWeight& weight, const Alignments& fits) {
  const Alignment& fit = fits.tensors.at(0);
  Cuttable result = {.weight = weight.tensor.shape, .block = weight.to_fit.group};
  for (std::size_t side = 0; side < 2; ++side) {
    if (fit.padded[side] != 0) result.weight[side] = fit.padded[side];
    if (fit.block[side] != 0) result.block[side] = fit.block[side];
  }
  return result;
}

/// The planned scales: those of all slices together are as many as the slices need one by one.
void expect_scales_add_up(const Cuttable& after, const TensorCut& cut) {
  const std::size_t side = cut.axis == Axis::kRows ? 0 : 1;
  const Shape grid = {up(after.weight[0], after.block[0]), up(after.weight[1], after.block[1])};
  const PartCut codes(Part::kWeight, DType::kF8E4M3, after.weight, SchemeId::kFp8Block,
                      after.weight, after.block, cut);
  const PartCut scales(Part::kScale, DType::kF32, grid, SchemeId::kFp8Block, after.weight,
                       after.block, cut);
  std::uint64_t needed = 0;
  for (std::uint32_t part = 0; part < cut.n; ++part)
    needed += up(after.weight[side] / cut.n, after.block[side]);
  ASSERT_EQ(scales.slice_shape()[side] * cut.n, needed);
  ASSERT_EQ(scales.slice_shape()[1 - side], grid[1 - side]);
  ASSERT_EQ(codes.slice_shape()[side] * cut.n, after.weight[side]);
  ASSERT_EQ(scales.slice_shape()[side], up(codes.slice_shape()[side], after.block[side]));
}

bool is_accepted(const OneWeight& weight, TpFit how, Alignments& fits) {
  try {
    fits = weight.fit(how);
    return true;
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUnsupported) << error.what();
    return false;
  }
}

void check(std::uint64_t n, std::uint64_t k, Axis axis, std::uint32_t ranks) {
  SCOPED_TRACE(::testing::Message()
               << n << " x " << k << ", " << ranks << " ranks, axis " << static_cast<int>(axis));
  const OneWeight weight(n, k, axis, ranks);
  const std::uint64_t width = axis == Axis::kRows ? n : k;
  const bool divides = width % ranks == 0;
  const bool is_aligned = divides && (ranks == 1 || width / ranks % 128 == 0);
  Alignments fits;
  ASSERT_EQ(is_accepted(weight, TpFit::kRefuse, fits), is_aligned);
  if (is_aligned) {
    ASSERT_EQ(fits.tensors.at(0), Alignment{});
    expect_scales_add_up(changed(weight, fits), weight.to_fit.cut);
  }
  ASSERT_EQ(is_accepted(weight, TpFit::kRetile, fits), divides);
  if (divides) {
    const Cuttable after = changed(weight, fits);
    ASSERT_EQ(after.weight, weight.tensor.shape);
    ASSERT_EQ(128 % after.block[0], 0U);
    ASSERT_EQ(128 % after.block[1], 0U);
    expect_scales_add_up(after, weight.to_fit.cut);
  }
  ASSERT_TRUE(is_accepted(weight, TpFit::kPad, fits));
  const Cuttable padded = changed(weight, fits);
  const std::size_t side = axis == Axis::kRows ? 0 : 1;
  ASSERT_EQ(padded.weight[1 - side], weight.tensor.shape[1 - side]);
  ASSERT_EQ(padded.weight[side], is_aligned ? width : up(width, ranks * 128ULL) * ranks * 128ULL);
  ASSERT_EQ(fits.widths.intermediate, is_aligned ? 0 : padded.weight[side]);
  expect_scales_add_up(padded, weight.to_fit.cut);
  ASSERT_EQ(is_accepted(weight, TpFit::kBf16, fits), divides);
  if (!divides) return;
  ASSERT_EQ(fits.tensors.at(0).to_bf16, !is_aligned);
}

TEST(AlignedGrid, ScalesOfSlicesAddUpForEveryWidth) {
  for (std::uint64_t width = kStep; width <= kLargest; width += kStep) {
    for (std::uint32_t ranks = 1; ranks <= kMostRanks; ++ranks) {
      check(width, 7168, Axis::kRows, ranks);
      check(7168, width, Axis::kCols, ranks);
      if (HasFatalFailure()) return;
    }
  }
}

// Which cuts are accepted does not depend on the other side, as is shown here for all of them.
TEST(AlignedGrid, ScalesOfSlicesAddUpExhaustively) {
  for (std::uint64_t n = kStep; n <= kLargest; n += kStep) {
    for (std::uint64_t k = kStep; k <= kLargest; k += kStep) {
      for (std::uint32_t ranks = 1; ranks <= kMostRanks; ++ranks) {
        for (const Axis axis : {Axis::kRows, Axis::kCols}) {
          const std::uint64_t width = axis == Axis::kRows ? n : k;
          if (width % ranks != 0 || (ranks > 1 && width / ranks % 128 != 0)) continue;
          const OneWeight weight(n, k, axis, ranks);
          expect_scales_add_up(changed(weight, weight.fit(TpFit::kRefuse)), weight.to_fit.cut);
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

}  // namespace
}  // namespace ingot::shard
