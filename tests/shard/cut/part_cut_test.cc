#include "shard/cut/part_cut.h"

#include "tests/support/test.h"

namespace ingot::shard {
namespace {

using namespace formats;
using ingot::testing::expect_error;
using ::testing::ElementsAre;

using Bytes = std::vector<std::byte>;
using Matrices = std::vector<std::uint32_t>;

constexpr std::array<std::uint64_t, 2> kNoGroup = {0, 0};

TensorCut rows(std::uint32_t n, std::uint32_t sections = 1) {
  return {.axis = Axis::kRows,
          .owner = Owner::kTp,
          .n = n,
          .sections = formats::Sections::equal(sections)};
}
TensorCut rows(std::uint32_t n, const std::vector<std::uint64_t>& lengths) {
  TensorCut cut = rows(n);
  cut.sections = *formats::Sections::of_lengths(lengths);
  return cut;
}
TensorCut cols(std::uint32_t n) {
  return {.axis = Axis::kCols, .owner = Owner::kTp, .n = n};
}

std::uint64_t product(const Shape& shape) {
  return std::accumulate(shape.begin(), shape.end(), std::uint64_t{1}, std::multiplies<>());
}

Bytes random_bytes(std::uint64_t n, std::uint32_t seed) {
  std::mt19937 random(seed);
  Bytes bytes(n);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random() & 0xFF);
  return bytes;
}

/// How a part is to be cut, in terms of its own dimensions.
struct NaiveCut {
  int axis = -1;
  std::uint32_t n = 1, sections = 1;
  Matrices matrices;                        ///< empty: all
  std::vector<std::uint64_t> lengths = {};  ///< of sections; empty: `sections` equal ones
};

/// One slice, element by element by its indices in the whole.
Bytes naive_slice(const Bytes& whole, const Shape& shape, std::size_t width, const NaiveCut& cut,
                  std::uint32_t slice) {
  Bytes out;
  Shape index(shape.size(), 0);
  for (std::uint64_t element = 0; element < product(shape); ++element) {
    std::uint64_t rest = element;
    for (std::size_t d = shape.size(); d-- > 0;) {
      index[d] = rest % shape[d];
      rest /= shape[d];
    }
    if (!cut.matrices.empty() && std::ranges::find(cut.matrices, index[0]) == cut.matrices.end())
      continue;
    if (cut.axis >= 0) {
      const auto d = static_cast<std::size_t>(cut.axis);
      std::uint64_t section = shape[d] / cut.sections;
      std::uint64_t within = index[d] % section;
      if (!cut.lengths.empty()) {
        within = index[d];
        std::size_t i = 0;
        while (within >= cut.lengths[i]) within -= cut.lengths[i++];
        section = cut.lengths[i];
      }
      const std::uint64_t first = slice * (section / cut.n);
      if (within < first || within >= first + section / cut.n) continue;
    }
    const auto at = whole.begin() + static_cast<std::ptrdiff_t>(element * width);
    out.insert(out.end(), at, at + static_cast<std::ptrdiff_t>(width));
  }
  return out;
}

/// Deals the whole, `step` bytes at a time, and checks that runs come in order.
std::vector<Bytes> scatter(const PartCut& part, const Bytes& whole, std::uint64_t step) {
  const std::uint32_t n = part.kind() == PartCut::Kind::kCut ? part.n_slices() : 1;
  std::vector<Bytes> slices(n, Bytes(part.slice_bytes(), std::byte{0xEE}));
  std::uint64_t last = 0;
  for (std::uint64_t offset = 0; offset < whole.size(); offset += step) {
    const std::uint64_t n_bytes = std::min<std::uint64_t>(step, whole.size() - offset);
    part.for_each_run(offset, n_bytes, [&](const PartCut::Run& run) {
      EXPECT_GE(run.whole_offset, std::max(last, offset));
      EXPECT_GT(run.n_bytes, 0U);
      EXPECT_LE(run.whole_offset + run.n_bytes, offset + n_bytes);
      last = run.whole_offset + run.n_bytes;
      Bytes& slice = slices.at(run.slice);
      ASSERT_LE(run.slice_offset + run.n_bytes, slice.size());
      std::copy_n(whole.begin() + static_cast<std::ptrdiff_t>(run.whole_offset), run.n_bytes,
                  slice.begin() + static_cast<std::ptrdiff_t>(run.slice_offset));
    });
  }
  return slices;
}

Bytes gather(const PartCut& part, const std::vector<Bytes>& slices, std::uint64_t step) {
  Bytes whole(part.whole_bytes(), std::byte{0});
  for (std::uint64_t offset = 0; offset < whole.size(); offset += step) {
    part.gather(offset, std::span(whole).subspan(offset, std::min(step, whole.size() - offset)),
                [&](std::uint32_t slice, std::uint64_t from, std::span<std::byte> out) {
                  std::copy_n(slices.at(slice).begin() + static_cast<std::ptrdiff_t>(from),
                              out.size(), out.begin());
                });
  }
  return whole;
}

void expect_cut(const PartCut& part, const Shape& shape, std::size_t width, const NaiveCut& cut) {
  const Bytes whole = random_bytes(product(shape) * width, 11);
  ASSERT_EQ(part.whole_shape(), shape);
  ASSERT_EQ(part.whole_bytes(), whole.size());
  ASSERT_EQ(part.axis(), cut.axis);
  const std::uint32_t n = cut.axis < 0 ? 1 : cut.n;
  std::vector<Bytes> expected;
  for (std::uint32_t slice = 0; slice < n; ++slice) {
    expected.push_back(naive_slice(whole, shape, width, cut, slice));
    ASSERT_EQ(part.slice_bytes(), expected.back().size());
    ASSERT_EQ(product(part.slice_shape()) * width, expected.back().size());
  }
  for (const std::uint64_t step : {whole.size(), std::size_t{1}, std::size_t{7}, std::size_t{64}}) {
    ASSERT_EQ(scatter(part, whole, step), expected) << "in steps of " << step;
    if (cut.matrices.empty()) {
      ASSERT_EQ(gather(part, expected, step), whole) << "in steps of " << step;
    }
  }

  for (std::uint64_t offset = 0; offset < whole.size(); ++offset) {
    const auto run = part.run_at(offset, 5);
    bool is_visited = false;
    part.for_each_run(offset, std::min<std::uint64_t>(5, whole.size() - offset),
                      [&](const PartCut::Run& first) {
                        if (first.whole_offset != offset) return;
                        is_visited = true;
                        ASSERT_TRUE(run.has_value());
                        EXPECT_EQ(run->whole_offset, offset);
                        EXPECT_EQ(run->slice, first.slice);
                        EXPECT_EQ(run->slice_offset, first.slice_offset);
                        EXPECT_EQ(run->n_bytes, first.n_bytes);
                      });
    ASSERT_EQ(run.has_value(), is_visited) << offset;
  }
}

TEST(PartCut, CutsRowsIntoConsecutiveBlocks) {
  const PartCut part(Part::kWeight, DType::kBf16, {6, 5}, SchemeId::kBf16, {6, 5}, kNoGroup,
                     rows(3));
  EXPECT_EQ(part.kind(), PartCut::Kind::kCut);
  EXPECT_EQ(part.n_slices(), 3U);
  EXPECT_THAT(part.slice_shape(), ElementsAre(2, 5));
  EXPECT_EQ(part.slice_offset(2), 4U);
  expect_cut(part, {6, 5}, 2, {.axis = 0, .n = 3});
}

TEST(PartCut, CutsColumnsInRowOrder) {
  const PartCut part(Part::kWeight, DType::kF32, {5, 8}, SchemeId::kF32, {5, 8}, kNoGroup, cols(4));
  EXPECT_THAT(part.slice_shape(), ElementsAre(5, 2));
  EXPECT_EQ(part.slice_offset(3), 6U);
  expect_cut(part, {5, 8}, 4, {.axis = 1, .n = 4});
}

TEST(PartCut, RunsOfARowCutAreWholeSlices) {
  const PartCut part(Part::kWeight, DType::kBf16, {6, 5}, SchemeId::kBf16, {6, 5}, kNoGroup,
                     rows(3));
  std::vector<std::uint64_t> lengths;
  part.for_each_run(0, 60, [&](const PartCut::Run& run) { lengths.push_back(run.n_bytes); });
  EXPECT_THAT(lengths, ElementsAre(20, 20, 20));
}

TEST(PartCut, CutsGateAndUpOfAStackEach) {
  const Shape shape = {3, 8, 2};  // of each matrix 4 rows gate, 4 rows up
  const PartCut part(Part::kWeight, DType::kBf16, shape, SchemeId::kBf16, shape, kNoGroup,
                     rows(2, 2));
  EXPECT_THAT(part.slice_shape(), ElementsAre(3, 4, 2));
  EXPECT_EQ(part.sections().count(), 2U);
  EXPECT_EQ(part.slice_offset(1), 2U) << "within the section";
  expect_cut(part, shape, 2, {.axis = 1, .n = 2, .sections = 2});
}

TEST(PartCut, SectionsAreOfTheSideThatIsCut) {
  const Shape shape = {3, 8, 12};
  TensorCut cut = cols(2);
  cut.sections = formats::Sections::equal(2);
  const PartCut part(Part::kWeight, DType::kBf16, shape, SchemeId::kBf16, shape, kNoGroup, cut);
  EXPECT_EQ(part.sections().count(), 2U);
  expect_cut(part, shape, 2, {.axis = 2, .n = 2, .sections = 2});
}

TEST(PartCut, CutsSectionsOfUnequalLengthsEach) {
  // Queries and keys of 4 rows, values of 8; and Mamba's five sections.
  for (const std::vector<std::uint64_t>& lengths :
       {std::vector<std::uint64_t>{4, 4, 8}, {8, 8, 2, 2, 4}, {2, 14}, {6}}) {
    const std::uint64_t total = std::accumulate(lengths.begin(), lengths.end(), std::uint64_t{0});
    for (const Shape& shape : {Shape{total, 3}, {total}, {total, 1, 5}}) {
      const PartCut part(Part::kWeight, DType::kBf16, shape, SchemeId::kBf16, shape, kNoGroup,
                         rows(2, lengths));
      EXPECT_EQ(part.axis(), 0);
      EXPECT_EQ(part.slice_offset(1), lengths[0] / 2);
      expect_cut(part, shape, 2, {.axis = 0, .n = 2, .lengths = lengths});
      expect_cut(PartCut(DType::kBf16, shape, 0, 2, part.sections()), shape, 2,
                 {.axis = 0, .n = 2, .lengths = lengths});
    }
  }
  const Shape stack = {4, 12, 3};
  expect_cut(
      PartCut(Part::kWeight, DType::kF32, stack, SchemeId::kF32, stack, kNoGroup, rows(2, {4, 8}))
          .of_matrices({1, 3}),
      stack, 4, {.axis = 1, .n = 2, .matrices = {1, 3}, .lengths = {4, 8}});
}

TEST(PartCut, CutsScalesOfSectionsWithTheirRows) {
  const Shape weight = {1024, 256};
  const Shape grid = {8, 2};
  const PartCut part(Part::kScale, DType::kF32, grid, SchemeId::kFp8Block, weight, {128, 128},
                     rows(2, {256, 256, 512}));
  expect_cut(part, grid, 4, {.axis = 0, .n = 2, .lengths = {2, 2, 4}});
}

TEST(PartCut, DealsSomeMatricesOfAStack) {
  const Shape shape = {5, 8, 6};
  for (const Matrices& held : {Matrices{0}, {4}, {1, 2}, {0, 2, 4}, {0, 1, 2, 3, 4}}) {
    const PartCut by_rows =
        PartCut(Part::kWeight, DType::kF32, shape, SchemeId::kF32, shape, kNoGroup, rows(2, 2))
            .of_matrices(held);
    EXPECT_EQ(by_rows.slice_shape(), (Shape{held.size(), 4, 6}));
    expect_cut(by_rows, shape, 4, {.axis = 1, .n = 2, .sections = 2, .matrices = held});
    const PartCut by_cols =
        PartCut(Part::kWeight, DType::kI8, shape, SchemeId::kRaw, shape, kNoGroup, cols(3))
            .of_matrices(held);
    expect_cut(by_cols, shape, 1, {.axis = 2, .n = 3, .matrices = held});
    const PartCut whole =
        PartCut(Part::kWeight, DType::kBf16, shape, SchemeId::kBf16, shape, kNoGroup, {})
            .of_matrices(held);
    EXPECT_EQ(whole.kind(), PartCut::Kind::kWhole);
    expect_cut(whole, shape, 2, {.matrices = held});
  }
}

TEST(PartCut, ANumberForTheWholeStackStaysWhole) {
  for (const Shape& shape : {Shape{}, Shape{1}}) {
    const PartCut part =
        PartCut(Part::kGlobal, DType::kF32, shape, SchemeId::kNvfp4, {4, 8, 32}, {1, 16}, rows(2))
            .of_matrices({1, 3});
    EXPECT_EQ(part.kind(), PartCut::Kind::kWhole);
    EXPECT_EQ(part.slice_shape(), shape);
    EXPECT_EQ(part.slice_bytes(), 4U);
  }
}

TEST(PartCut, ANumberPerMatrixGoesWithIt) {
  for (const Part kind : {Part::kInputScale, Part::kScale}) {
    const PartCut part =
        PartCut(kind, DType::kBf16, {4}, SchemeId::kFp8Tensor, {4, 8, 32}, {8, 32}, {})
            .of_matrices({1, 3});
    EXPECT_EQ(part.slice_shape(), (Shape{2}));
    expect_cut(part, {4}, 2, {.matrices = {1, 3}});
  }
}

TEST(PartCut, CutsTensorsOfOneDimension) {
  const PartCut part(Part::kWeight, DType::kBf16, {12}, SchemeId::kBf16, {12}, kNoGroup, rows(4));
  expect_cut(part, {12}, 2, {.axis = 0, .n = 4});
}

struct QuantizedPart {
  Part part;
  DType dtype;
  SchemeId scheme;
  Shape weight;
  std::array<std::uint64_t, 2> group;
  Shape shape;
  int rows_axis, cols_axis;  ///< dimension of the part that each cut goes along; -1: whole
};

TEST(PartCut, CutsPartsWithTheirWeight) {
  const std::vector<QuantizedPart> parts = {
      // Blocks: both ways.
      {Part::kWeight, DType::kF8E4M3, SchemeId::kFp8Block, {32, 64}, {4, 8}, {32, 64}, 0, 1},
      {Part::kScale, DType::kF32, SchemeId::kFp8Block, {32, 64}, {4, 8}, {8, 8}, 0, 1},
      {Part::kScale, DType::kF32, SchemeId::kInt8Block, {32, 64}, {8, 16}, {4, 4}, 0, 1},
      {Part::kScale, DType::kF32, SchemeId::kFp8Block, {3, 16, 32}, {4, 8}, {3, 4, 4}, 1, 2},
      // Codes of 4 bits, two in a byte; a scale per group of columns.
      {Part::kWeight, DType::kU8, SchemeId::kNvfp4, {8, 64}, {1, 16}, {8, 32}, 0, 1},
      {Part::kScale, DType::kF8E4M3, SchemeId::kNvfp4, {8, 64}, {1, 16}, {8, 4}, 0, 1},
      {Part::kGlobal, DType::kF32, SchemeId::kNvfp4, {8, 64}, {1, 16}, {}, -1, -1},
      {Part::kGlobal, DType::kF32, SchemeId::kNvfp4, {8, 64}, {1, 16}, {1}, -1, -1},
      {Part::kInputScale, DType::kF32, SchemeId::kNvfp4, {8, 64}, {1, 16}, {}, -1, -1},
      {Part::kWeight, DType::kU8, SchemeId::kMxfp4, {8, 128}, {1, 32}, {8, 64}, 0, 1},
      {Part::kScale, DType::kU8, SchemeId::kMxfp4, {8, 128}, {1, 32}, {8, 4}, 0, 1},
      {Part::kScale, DType::kF8E8M0, SchemeId::kMxfp8, {8, 128}, {1, 32}, {8, 4}, 0, 1},
      // INT4: eight codes of a row in a word, zero points of eight rows.
      {Part::kWeight, DType::kI32, SchemeId::kInt4Group, {32, 128}, {1, 32}, {32, 16}, 0, 1},
      {Part::kScale, DType::kBf16, SchemeId::kInt4Group, {32, 128}, {1, 32}, {32, 4}, 0, 1},
      {Part::kScale, DType::kBf16, SchemeId::kInt4Group, {32, 128}, {1, 0}, {32, 1}, 0, -1},
      {Part::kZeroPoint, DType::kI32, SchemeId::kInt4Group, {32, 128}, {1, 32}, {4, 4}, 0, 1},
      {Part::kDimensions, DType::kI32, SchemeId::kInt4Group, {32, 128}, {1, 32}, {2}, -1, -1},
      // A number per row.
      {Part::kScale, DType::kF32, SchemeId::kInt8Channel, {8, 64}, {1, 64}, {8, 1}, 0, -1},
      {Part::kScale, DType::kBf16, SchemeId::kFp8Channel, {8, 64}, {1, 64}, {8}, 0, -1},
      {Part::kScale, DType::kF32, SchemeId::kFp8Channel, {3, 8, 64}, {1, 64}, {3, 8, 1}, 1, -1},
      {Part::kScale, DType::kF32, SchemeId::kFp8Channel, {3, 8, 64}, {1, 64}, {3, 8}, 1, -1},
      {Part::kOffset, DType::kF32, SchemeId::kInt8Channel, {8, 64}, {1, 64}, {8, 1}, 0, -1},
      {Part::kDeqScale, DType::kI64, SchemeId::kInt8Channel, {8, 64}, {1, 64}, {8}, 0, -1},
      {Part::kQuantBias, DType::kI32, SchemeId::kInt8Channel, {8, 64}, {1, 64}, {8}, 0, -1},
      // A number per matrix.
      {Part::kScale, DType::kF32, SchemeId::kFp8Tensor, {8, 64}, {8, 64}, {}, -1, -1},
      {Part::kScale, DType::kF32, SchemeId::kFp8Tensor, {3, 8, 64}, {8, 64}, {3, 1, 1}, -1, -1},
      {Part::kInputOffset, DType::kI8, SchemeId::kInt8Channel, {8, 64}, {1, 64}, {1}, -1, -1},
  };
  for (const QuantizedPart& part : parts) {
    SCOPED_TRACE(::testing::Message()
                 << "part " << static_cast<int>(part.part) << " of "
                 << formats::scheme_facts(part.scheme).name << formats::shape_text(part.shape));
    const std::size_t width = formats::dtype_bits(part.dtype) / 8;
    for (const std::uint32_t n : {2U, 4U}) {
      const PartCut by_rows(part.part, part.dtype, part.shape, part.scheme, part.weight, part.group,
                            rows(n));
      expect_cut(by_rows, part.shape, width, {.axis = part.rows_axis, .n = n});
      const PartCut by_cols(part.part, part.dtype, part.shape, part.scheme, part.weight, part.group,
                            cols(n));
      expect_cut(by_cols, part.shape, width, {.axis = part.cols_axis, .n = n});
      EXPECT_EQ(by_cols.n_slices(), n);
    }
  }
}

TEST(PartCut, ElementsKeepTheirScale) {
  // Weight [2, 16, 32]: 8 rows of gate, 8 of up; blocks of 4 x 8. Each scale is its own index.
  const Shape weight = {2, 16, 32};
  const Shape grid = {2, 4, 4};
  for (const TensorCut& cut : {rows(2, 2), cols(2), cols(4)}) {
    const bool along_rows = cut.axis == Axis::kRows;
    const PartCut codes(Part::kWeight, DType::kF8E4M3, weight, SchemeId::kFp8Block, weight, {4, 8},
                        cut);
    const PartCut scales(Part::kScale, DType::kU8, grid, SchemeId::kFp8Block, weight, {4, 8}, cut);
    Bytes indices(32);
    for (std::size_t i = 0; i < indices.size(); ++i) indices[i] = static_cast<std::byte>(i);
    const std::vector<Bytes> slices = scatter(scales, indices, 32);
    const Shape slice = codes.slice_shape();
    const Shape slice_grid = scales.slice_shape();
    EXPECT_EQ(slice_grid, (Shape{slice[0], slice[1] / 4, slice[2] / 8}));
    for (std::uint32_t s = 0; s < cut.n; ++s) {
      for (std::uint64_t m = 0; m < slice[0]; ++m) {
        for (std::uint64_t r = 0; r < slice[1]; ++r) {
          for (std::uint64_t c = 0; c < slice[2]; ++c) {
            // Gate rows of a slice come first; its up rows are 8 rows further down in the whole.
            const std::uint64_t whole_row = along_rows ? r / 4 * 8 + s * 4 + r % 4 : r;
            const std::uint64_t whole_col = along_rows ? c : s * slice[2] + c;
            const std::uint64_t at = (m * slice_grid[1] + r / 4) * slice_grid[2] + c / 8;
            ASSERT_EQ(std::to_integer<std::uint64_t>(slices[s][at]),
                      (m * 4 + whole_row / 4) * 4 + whole_col / 8);
          }
        }
      }
    }
  }
}

TEST(PartCut, CountsQuantBiasOnceOverRanks) {
  const PartCut part(Part::kQuantBias, DType::kI32, {8}, SchemeId::kInt8Channel, {8, 64}, {1, 64},
                     cols(4));
  EXPECT_EQ(part.kind(), PartCut::Kind::kFirstOnly);
  EXPECT_EQ(part.n_slices(), 4U);
  EXPECT_THAT(part.slice_shape(), ElementsAre(8));
  EXPECT_EQ(part.slice_bytes(), 32U);
  EXPECT_EQ(part.axis(), -1);
  EXPECT_EQ(part.slice_offset(3), 0U);
  part.for_each_run(4, 20, [](const PartCut::Run& run) {
    EXPECT_EQ(run.slice, 0U);
    EXPECT_EQ(run.slice_offset, 4U);
    EXPECT_EQ(run.whole_offset, 4U);
    EXPECT_EQ(run.n_bytes, 20U);
  });
  const PartCut alone(Part::kQuantBias, DType::kI32, {8}, SchemeId::kInt8Channel, {8, 64}, {1, 64},
                      cols(1));
  EXPECT_EQ(alone.kind(), PartCut::Kind::kWhole);
}

TEST(PartCut, UnitsAreThoseOfTheScheme) {
  const auto unit = [](Part part, SchemeId scheme, std::array<std::uint64_t, 2> group) {
    return part_unit(part, scheme, {256, 512}, group);
  };
  EXPECT_THAT(unit(Part::kWeight, SchemeId::kFp8Block, {128, 128}), ElementsAre(1, 1));
  EXPECT_THAT(unit(Part::kScale, SchemeId::kFp8Block, {128, 64}), ElementsAre(128, 64));
  EXPECT_THAT(unit(Part::kScale, SchemeId::kNvfp4, {1, 16}), ElementsAre(1, 16));
  EXPECT_THAT(unit(Part::kScale, SchemeId::kInt8Channel, {1, 512}), ElementsAre(1, 0));
  EXPECT_THAT(unit(Part::kScale, SchemeId::kFp8Channel, {1, 512}), ElementsAre(1, 0));
  EXPECT_THAT(unit(Part::kScale, SchemeId::kFp8Tensor, {256, 512}), ElementsAre(0, 0));
  EXPECT_THAT(unit(Part::kScale, SchemeId::kFp8Block, {256, 1024}), ElementsAre(0, 0));
  EXPECT_THAT(unit(Part::kOffset, SchemeId::kInt8Channel, {1, 512}), ElementsAre(1, 0));
  EXPECT_THAT(unit(Part::kGlobal, SchemeId::kNvfp4, {1, 16}), ElementsAre(0, 0));
  EXPECT_THAT(unit(Part::kQuantBias, SchemeId::kInt8Channel, {1, 512}), ElementsAre(1, 0));
}

TEST(PartCut, RefusesToTearBlocks) {
  const auto torn = [](const Shape& grid, const Shape& weight, const TensorCut& cut) {
    expect_error(ErrorCode::kInternal, {}, [&] {
      PartCut(Part::kScale, DType::kF32, grid, SchemeId::kFp8Block, weight, {128, 128}, cut);
    });
  };
  torn({3, 2}, {384, 256}, rows(2));     // 192 rows each
  torn({2, 2}, {256, 256}, rows(2, 2));  // sections of one block
  torn({4, 2}, {512, 256}, rows(2, {128, 384}));
  torn({1, 2, 2}, {1, 256, 256}, cols(4));  // 64 columns each
  torn({3, 3}, {300, 300}, rows(7));        // not even rows
}

TEST(PartCut, ReadsTheSameCutFromARecord) {
  const Shape shape = {5, 8, 6};
  expect_cut(PartCut(DType::kBf16, shape, 1, 2, Sections::equal(2)), shape, 2,
             {.axis = 1, .n = 2, .sections = 2});
  expect_cut(PartCut(DType::kBf16, shape, 2, 3, Sections()), shape, 2, {.axis = 2, .n = 3});
  expect_cut(PartCut(DType::kBf16, shape, -1, 3, Sections()), shape, 2, {});
  expect_cut(PartCut(DType::kBf16, shape, 1, 4, Sections()).of_matrices({1, 4}), shape, 2,
             {.axis = 1, .n = 4, .matrices = {1, 4}});
  EXPECT_EQ(PartCut(DType::kBf16, shape, -1, 3, Sections()).n_slices(), 3U);
  EXPECT_EQ(PartCut(DType::kBf16, shape, 1, 1, Sections()).kind(), PartCut::Kind::kWhole);
}

// ModelOpt's scales of blocks: a 1 behind the rows, and one behind the columns.
TEST(PartCut, CutsSpreadScalesAsTheirGrid) {
  const Shape weight = {512, 1024}, spread = {4, 1, 8, 1}, grid = {4, 8};
  for (const TensorCut& cut : {rows(2), cols(2)}) {
    const PartCut of_spread(Part::kScale, DType::kF32, spread, SchemeId::kFp8Block, weight,
                            {128, 128}, cut);
    const PartCut of_grid(Part::kScale, DType::kF32, grid, SchemeId::kFp8Block, weight, {128, 128},
                          cut);
    const Shape slice = of_grid.slice_shape();
    EXPECT_EQ(of_spread.slice_shape(), (Shape{slice[0], 1, slice[1], 1}));
    std::vector<std::uint64_t> spread_runs, grid_runs;
    const auto note = [](std::vector<std::uint64_t>& to) {
      return [&to](const PartCut::Run& run) {
        to.insert(to.end(), {run.slice, run.slice_offset, run.whole_offset, run.n_bytes});
      };
    };
    of_spread.for_each_run(0, 128, note(spread_runs));
    of_grid.for_each_run(0, 128, note(grid_runs));
    EXPECT_EQ(spread_runs, grid_runs);
  }
}

TEST(PartCut, RefusesCutsThatCannotBe) {
  const auto refused = [](DType dtype, const Shape& whole, int axis, std::uint32_t n,
                          std::size_t sections) {
    expect_error(ErrorCode::kInternal, {},
                 [&] { PartCut(dtype, whole, axis, n, Sections::equal(sections)); });
  };
  refused(DType::kBf16, {8, 6}, 2, 2, 1);
  refused(DType::kBf16, {8, 6}, -2, 2, 1);
  refused(DType::kBf16, {8, 6}, 0, 3, 1);
  refused(DType::kBf16, {8, 6}, 0, 4, 4);
  refused(DType::kBf16, {8, 6}, 0, 0, 1);
  refused(DType::kF4, {4, 2}, 1, 2, 1);  // half a byte each
  refused(DType::kBf16, {0x1'0000'0000, 0x1'0000'0000}, 0, 2, 1);
  refused(DType::kBf16, {8}, 0, 0xFFFF'FFFF, Sections::kMax);
}

TEST(PartCut, RefusesMatricesThatAreNotThere) {
  const PartCut part(DType::kBf16, {4, 8, 6}, 1, 2, Sections());
  for (const Matrices& held : {Matrices{}, {4}, {2, 1}, {1, 1}})
    expect_error(ErrorCode::kInternal, {}, [&] { static_cast<void>(part.of_matrices(held)); });
}

TEST(PartCut, EmptyPartsHaveNoRuns) {
  const PartCut part(Part::kWeight, DType::kBf16, {0, 8}, SchemeId::kBf16, {0, 8}, kNoGroup,
                     rows(2));
  EXPECT_EQ(part.slice_bytes(), 0U);
  part.for_each_run(0, 0, [](const PartCut::Run&) { FAIL(); });
}

}  // namespace
}  // namespace ingot::shard
