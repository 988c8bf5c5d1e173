#include "verify/weights/element_run.h"

#include "formats/container/bfloat16.h"
#include "formats/container/float16.h"
#include "formats/container/float8.h"
#include "formats/storage/encoding.h"
#include "tests/quantize/coded_matrix.h"
#include "tests/quantize/each_target.h"
#include "tests/support/test.h"
#include "verify/weights/element_sums.h"
#include "verify/weights/weight_check.h"

namespace ingot::verify {

/// Every value that a code of a scheme can have, ascending, without repetition; of INT8 without
/// -128, which no encoder uses.
inline std::vector<double> code_values(formats::SchemeId scheme) {
  std::vector<double> values;
  switch (formats::scheme_facts(scheme).code) {
    case formats::CodeKind::kInt8:
      for (int code = -127; code <= 127; ++code) values.push_back(code);
      break;
    case formats::CodeKind::kE4m3:
      for (const float value : formats::kE4m3Values) values.push_back(static_cast<double>(value));
      break;
    case formats::CodeKind::kE2m1:
      values = {-6, -4, -3, -2, -1.5, -1, -0.5, 0, 0.5, 1, 1.5, 2, 3, 4, 6};
      break;
    case formats::CodeKind::kInt4:
      for (int code = -8; code <= 7; ++code) values.push_back(code);
      break;
    case formats::CodeKind::kPlain:
      for (std::uint32_t word = 0; word < 0x10000; ++word) {
        const auto bits = static_cast<std::uint16_t>(word);
        values.push_back(static_cast<double>(scheme == formats::SchemeId::kBf16
                                                 ? formats::float_from_bf16(bits)
                                                 : formats::float_from_f16(bits)));
      }
      break;
    default:  // only read
      break;
  }
  std::erase_if(values, [](double value) { return !std::isfinite(value); });
  std::sort(values.begin(), values.end());
  values.erase(std::unique(values.begin(), values.end()), values.end());
  return values;
}

enum class Verdict { kGood, kMisrounded, kSaturated };

/// By search: how far is code `index` x scale from the source, in steps to the neighbour on the
/// source's side? Beyond the last code a step is as long as the one before it. INT4's -7 is as far
/// as 7: encoders of symmetric scales stop there, though there is a -8.
inline Verdict judge(const std::vector<double>& codes, std::size_t index, double scale,
                     double source) {
  const double code = codes[index];
  const bool is_up = source > code * scale;
  const bool is_last = is_up ? code >= codes.back() : code <= -codes.back();
  const std::size_t from = is_up == is_last ? index - 1 : index;
  const double step = codes[from + 1] - codes[from];
  if (std::fabs(source - code * scale) <= (0.5 + 1e-4) * step * scale) return Verdict::kGood;
  return is_last ? Verdict::kSaturated : Verdict::kMisrounded;
}

namespace {

using formats::SchemeId;
using quantize::Coded;
using quantize::Matrix;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

ElementRun run_of(const Matrix& source, const Matrix& output, const quantize::CodedMatrix& stored,
                  SchemeId scheme) {
  return {.source = source.view(),
          .output = output.view(),
          .stored = stored,
          .grid = step_grid(scheme)};
}

ElementSums compare(const ElementRun& run) {
  ElementSums sums;
  compare_elements(run, sums);
  return sums;
}

ElementSums compare_plain(const Matrix& source, const Matrix& output) {
  const quantize::CodedMatrix stored{.rows = source.rows, .cols = source.cols};
  return compare(run_of(source, output, stored, SchemeId::kBf16));
}

/// Some values far off, some zero.
void disturb(Matrix& matrix) {
  for (std::size_t i = 0; i < matrix.values.size(); ++i) {
    if (i % 13 == 0) matrix.values[i] *= 1.07F;
    if (i % 29 == 0) matrix.values[i] = 0;
    if (i % 31 == 0) matrix.values[i] = -matrix.values[i];
  }
}

std::size_t nearest(const std::vector<double>& codes, double value) {
  std::size_t best = 0;
  for (std::size_t i = 1; i < codes.size(); ++i) {
    if (std::fabs(codes[i] - value) < std::fabs(codes[best] - value)) best = i;
  }
  return best;
}

/// The same in double, one value after the other, with a search through the codes.
void expect_naive(const Matrix& source, const Coded& coded, const Matrix& output,
                  const ElementSums& sums) {
  const std::vector<double> codes = code_values(coded.id);
  ElementSums naive;
  double errors = 0;
  for (std::size_t i = 0; i < source.values.size(); ++i) {
    const double s = source.values[i], o = output.values[i];
    const std::size_t block =
        i / source.cols / coded.block_rows * coded.scale_cols + i % source.cols / coded.block_cols;
    const double scale = static_cast<double>(coded.effective[block]);
    naive.exact += s == o ? 1 : 0;
    naive.zeroed += s != 0 && o == 0 ? 1 : 0;
    naive.error += o - s;
    errors += std::fabs(o - s);
    naive.error2 += (o - s) * (o - s);
    naive.source2 += s * s;
    naive.output2 += o * o;
    naive.product += s * o;
    naive.max_error = std::max(naive.max_error, std::fabs(o - s));
    if (s != 0) naive.max_relative = std::max(naive.max_relative, std::fabs(o - s) / std::fabs(s));
    const Verdict verdict = judge(codes, nearest(codes, o / scale), scale, s);
    naive.misrounded += verdict == Verdict::kMisrounded ? 1 : 0;
    naive.saturated += verdict == Verdict::kSaturated ? 1 : 0;
  }
  EXPECT_EQ(sums.elements, source.values.size());
  EXPECT_EQ(sums.exact, naive.exact);
  EXPECT_EQ(sums.zeroed, naive.zeroed);
  EXPECT_EQ(sums.misrounded, naive.misrounded);
  EXPECT_EQ(sums.saturated, naive.saturated);
  EXPECT_NEAR(sums.error, naive.error, 1e-6 * errors);
  EXPECT_NEAR(sums.error2 / naive.error2, 1, 1e-6);
  EXPECT_NEAR(sums.source2 / naive.source2, 1, 1e-6);
  EXPECT_NEAR(sums.output2 / naive.output2, 1, 1e-6);
  EXPECT_NEAR(sums.product / naive.product, 1, 1e-6);
  EXPECT_NEAR(sums.max_error / naive.max_error, 1, 1e-6);
  EXPECT_NEAR(sums.max_relative / naive.max_relative, 1, 1e-6);
  EXPECT_NEAR(1 - sums.cosine(), 1 - naive.cosine(), 1e-5 * (1 - naive.cosine()));
}

TEST(ElementRun, RandomMatricesAgreeWithNaiveDoubles) {
  for (const SchemeId scheme : {SchemeId::kFp8Block, SchemeId::kInt8Channel, SchemeId::kNvfp4,
                                SchemeId::kMxfp4, SchemeId::kMxfp8, SchemeId::kInt4Group}) {
    for (const std::uint32_t seed : {1U, 2U}) {
      const Matrix source =
          quantize::random_matrix(19, seed == 1 ? 160 : 2080, quantize::Shape::kHeavy, seed, 0.02F);
      const Coded coded = quantize::encode(scheme, source);
      const Matrix output = quantize::decode(coded);
      Matrix moved = source;  // the output has only its codes; the source may be anywhere
      disturb(moved);
      for (const Matrix* side : std::initializer_list<const Matrix*>{&source, &moved}) {
        SCOPED_TRACE(formats::scheme_facts(scheme).name);
        expect_naive(*side, coded, output, compare(run_of(*side, output, coded.run(), scheme)));
      }
      EXPECT_EQ(compare(run_of(source, output, coded.run(), scheme)).misrounded, 0U);
      EXPECT_GT(compare(run_of(moved, output, coded.run(), scheme)).misrounded,
                source.values.size() / 20);
    }
  }
}

TEST(ElementRun, EveryTargetEqualsTheTwin) {
  for (const SchemeId scheme : {SchemeId::kFp8Block, SchemeId::kInt8Channel, SchemeId::kNvfp4,
                                SchemeId::kMxfp8, SchemeId::kFp8Tensor}) {
    for (const std::size_t cols : {1U, 7U, 32U, 130U, 160U, 2048U, 2065U, 2144U}) {
      const bool is_cut = cols % 32 != 0;
      if (is_cut && (scheme == SchemeId::kNvfp4 || scheme == SchemeId::kMxfp8)) continue;
      for (const bool is_disturbed : {false, true}) {
        Matrix source = quantize::random_matrix(131, cols, quantize::Shape::kHeavy, 3, 0.1F);
        const Coded coded = quantize::encode(scheme, source);
        Matrix output = quantize::decode(coded);
        if (is_disturbed) {
          disturb(source);
          source.values[cols + 1] = kNan;
          output.values[5 * cols] = kInfinity;
        }
        const ElementRun run = run_of(source, output, coded.run(), scheme);
        ElementSums expected;
        scalar::compare_elements(run, expected);
        EXPECT_EQ(expected.misrounded > 0, is_disturbed);
        quantize::for_each_target([&] {
          EXPECT_EQ(compare(run), expected) << formats::scheme_facts(scheme).name << " " << cols;
        });
      }
    }
  }
}

TEST(ElementRun, OneMatrixAsBothSidesEqualsACopy) {
  for (const SchemeId scheme : {SchemeId::kFp8Block, SchemeId::kInt8Channel, SchemeId::kNvfp4}) {
    for (const std::size_t cols : {160U, 2144U}) {
      for (const float extreme : {0.0F, 0x1p-70F, kNan, kInfinity}) {
        const Matrix source = quantize::random_matrix(66, cols, quantize::Shape::kHeavy, 5, 0.1F);
        const Coded coded = quantize::encode(scheme, source);
        Matrix output = quantize::decode(coded);
        if (extreme == 0x1p-70F) {
          for (float& value : output.values) value *= extreme;
        } else {
          output.values[3 * cols + 1] = extreme;
        }
        const Matrix copy = output;
        ElementSums expected;
        scalar::compare_elements(run_of(copy, output, coded.run(), scheme), expected);
        EXPECT_GT(expected.step_histogram[0], 0U);
        quantize::for_each_target([&] {
          EXPECT_EQ(compare(run_of(output, output, coded.run(), scheme)), expected)
              << formats::scheme_facts(scheme).name << " " << cols << " " << extreme;
        });
      }
    }
  }
}

/// Values as BF16 words, to which they are rounded.
std::vector<std::uint16_t> words_of(Matrix& values) {
  std::vector<std::uint16_t> words;
  for (float& value : values.values) {
    words.push_back(formats::bf16_from_float(value));
    value = formats::float_from_bf16(words.back());
  }
  return words;
}

TEST(ElementRun, WordsAreComparedAsTheirValues) {
  for (const std::size_t cols : {1U, 7U, 16U, 130U, 2048U, 2065U}) {
    for (const float extreme : {1.0F, 0x1p-100F, kNan, kInfinity}) {
      Matrix values = quantize::random_matrix(66, cols, quantize::Shape::kHeavy, 5, 0.1F);
      for (std::size_t i = 0; i < cols; ++i) values.values[64 * cols + i] *= extreme;
      values.values[3 * cols] = extreme;
      const auto words = words_of(values);
      for (const std::size_t moved : {values.values.size(), std::size_t{0}, 9 * cols - 1}) {
        Matrix others = values;
        if (moved < others.values.size()) others.values[moved] += 0.25F;
        const auto other_words = words_of(others);
        const auto rows_of = [&](const std::vector<std::uint16_t>& of) {
          return quantize::CodedMatrix{.codes = reinterpret_cast<const std::byte*>(of.data()),
                                       .rows = values.rows,
                                       .cols = cols,
                                       .first_row = 64};
        };
        ElementSums expected;
        scalar::compare_elements(run_of(values, others, rows_of(other_words), SchemeId::kBf16),
                                 expected);
        quantize::for_each_target([&] {
          ElementSums sums;
          EXPECT_EQ(compare_words(rows_of(words), rows_of(other_words), sums),
                    words == other_words);
          EXPECT_EQ(sums, expected) << cols << " " << extreme << " " << moved;
        });
      }
    }
  }
}

TEST(ElementRun, SumsFollowTheDocumentedOrder) {
  Matrix source(2, 2300);
  for (std::size_t i = 0; i < source.values.size(); ++i) {
    source.values[i] =
        std::ldexp(1.0F + static_cast<float>(i % 97) / 97, static_cast<int>(i % 31) - 20);
  }
  double expected = 0;
  for (std::size_t r = 0; r < 2; ++r) {
    for (std::size_t piece = 0; piece < 2300; piece += 2048) {
      double lane[16] = {};
      for (std::size_t unit = piece; unit < std::min<std::size_t>(piece + 2048, 2300);
           unit += 128) {
        float part[16] = {};
        for (std::size_t c = unit; c < std::min<std::size_t>(unit + 128, 2300); ++c) {
          const float value = source.values[r * 2300 + c];
          part[c % 16] += value * value;
        }
        for (std::size_t i = 0; i < 16; ++i) lane[i] += static_cast<double>(part[i]);
      }
      for (std::size_t half : {8U, 4U, 2U, 1U}) {
        for (std::size_t i = 0; i < half; ++i) lane[i] += lane[i + half];
      }
      expected += lane[0];
    }
  }
  quantize::for_each_target([&] {
    const ElementSums sums = compare_plain(source, source);
    EXPECT_EQ(sums.source2, expected);
    EXPECT_EQ(sums.output2, expected);
    EXPECT_EQ(sums.product, expected);
    EXPECT_EQ(sums.exact, 4600U);
  });
}

TEST(ElementRun, NonfiniteValuesAreCountedNotSummed) {
  Matrix source(1, 20), output(1, 20);
  for (std::size_t i = 0; i < 20; ++i) source.values[i] = output.values[i] = 1;
  source.values[3] = output.values[3] = kNan;
  source.values[4] = kInfinity;
  output.values[17] = kNan;
  output.values[18] = -kInfinity;
  quantize::for_each_target([&] {
    const ElementSums sums = compare_plain(source, output);
    EXPECT_EQ(sums.source_nonfinite, 2U);
    EXPECT_EQ(sums.nonfinite, 2U);
    EXPECT_EQ(sums.exact, 16U);
    EXPECT_EQ(sums.source2, 16);
    EXPECT_EQ(sums.error2, 0);
    EXPECT_EQ(sums.misrounded, 0U);
  });
}

TEST(ElementRun, HugeAndTinyNumbersAreSummedToo) {
  for (const float size : {0x1p100F, 0x1p-120F}) {
    const Matrix source = quantize::random_matrix(3, 50, quantize::Shape::kNormal, 9, size);
    double expected = 0;
    for (const float value : source.values)
      expected += static_cast<double>(value) * static_cast<double>(value);
    const ElementSums sums = compare_plain(source, source);
    EXPECT_NEAR(sums.source2 / expected, 1, 1e-12);
    EXPECT_EQ(sums.cosine(), 1);
    EXPECT_EQ(sums.exact, 150U);
  }
}

TEST(ElementRun, BadScaleHoldsOnlyZeros) {
  for (const float scale : {0.0F, -1.0F, kNan, kInfinity}) {
    const Matrix zeros(1, 32);
    Matrix source = zeros;
    source.values[7] = 0.5F;
    const std::vector<float> scales = {scale, 1};
    const quantize::CodedMatrix stored{.rows = 1,
                                       .cols = 32,
                                       .scales = scales,
                                       .rows_per_matrix = 1,
                                       .scale_cols = 2,
                                       .block_rows = 1,
                                       .block_cols = 16};
    quantize::for_each_target([&] {
      const ElementSums sums = compare(run_of(source, zeros, stored, SchemeId::kNvfp4));
      EXPECT_EQ(sums.misrounded, 1U);
      EXPECT_EQ(sums.zeroed, 1U);
      EXPECT_EQ(sums.exact, 31U);
    });
  }
}

TEST(ElementRun, GroupsOfAnyWidthFindTheirScale) {
  // 24 columns, and 3000, which a piece of 2048 columns cuts.
  for (const std::size_t group : {24U, 3000U}) {
    Matrix source(1, 2 * group), output(1, 2 * group);
    const std::vector<float> scales = {1, 4};
    for (std::size_t i = 0; i < 2 * group; ++i) {
      output.values[i] = i < group ? 5.0F : 20.0F;
      source.values[i] = output.values[i] * 1.12F;  // 0.6 steps of INT8
    }
    const quantize::CodedMatrix stored{.rows = 1,
                                       .cols = 2 * group,
                                       .scales = scales,
                                       .rows_per_matrix = 1,
                                       .scale_cols = 2,
                                       .block_rows = 1,
                                       .block_cols = group};
    EXPECT_EQ(compare(run_of(source, output, stored, SchemeId::kInt8Block)).misrounded, 2 * group);
    for (float& value : source.values) value /= 1.12F / 1.08F;  // 0.4 steps
    EXPECT_EQ(compare(run_of(source, output, stored, SchemeId::kInt8Block)).misrounded, 0U);
  }
}

TEST(ElementRun, HistogramCountsSixteenthsOfAStep) {
  Matrix source(64, 16), output(64, 16);
  for (std::size_t i = 0; i < 64 * 16; ++i) {
    output.values[i] = 100;
    source.values[i] = 100 + 0.25F * static_cast<float>(i % 16);
  }
  const std::vector<float> scales(64, 1.0F);
  quantize::CodedMatrix stored{.rows = 64,
                               .cols = 16,
                               .scales = scales,
                               .rows_per_matrix = 64,
                               .scale_cols = 1,
                               .block_rows = 1,
                               .block_cols = 16};
  const ElementSums sums = compare(run_of(source, output, stored, SchemeId::kInt8Channel));
  // One row: 0, 4/16, 8/16, ... 60/16; a value on the border of two bins is in the lower one.
  EXPECT_EQ(sums.step_histogram[0], 1U);
  EXPECT_EQ(sums.step_histogram[3], 1U);
  EXPECT_EQ(sums.step_histogram[7], 1U);
  EXPECT_EQ(sums.step_histogram[19], 1U);
  EXPECT_EQ(sums.step_histogram[23], 1U);
  EXPECT_EQ(sums.step_histogram[24], 9U);
}

// INT4 under a scale of 1: 10 and -14 are cut off to 7 and -8, 40 to less than a quarter of it.
TEST(SumCutOff, AddsValuesThatCodesDoNotReach) {
  Matrix source(1, 32), output(1, 32);
  source.values[0] = 3.25F, output.values[0] = 3;
  source.values[1] = 10, output.values[1] = 7;
  source.values[2] = -14, output.values[2] = -8;
  source.values[3] = 40, output.values[3] = 7;
  source.values[4] = 5, output.values[4] = 7;
  const std::vector<float> scales = {1};
  const quantize::CodedMatrix stored{.rows = 1,
                                     .cols = 32,
                                     .scales = scales,
                                     .rows_per_matrix = 1,
                                     .scale_cols = 1,
                                     .block_rows = 1,
                                     .block_cols = 32};
  ElementSums sums;
  sum_cut_off(run_of(source, output, stored, SchemeId::kInt4Group), sums);
  EXPECT_EQ(sums.cut_source2, 100 + 196 + 1600);
  EXPECT_EQ(sums.cut_product, 70 + 112 + 280);
  EXPECT_EQ(sums.misrounded, 1U);
}

/// INT4 codes of one group under a scale of 1 or -1, with a zero point.
struct ZeroPointRow {
  explicit ZeroPointRow(std::uint8_t zero, float scale) : zeros{zero}, scales{scale} {}

  void add(int code, float value) {
    const std::size_t c = n++;
    codes[c / 2] |= static_cast<std::byte>(code << (c % 2 * 4));
    source.values[c] = value;
    output.values[c] = static_cast<float>(code - zeros[0]) * scales[0];
  }
  [[nodiscard]] ElementRun run() const {
    const quantize::CodedMatrix stored{.scheme = SchemeId::kInt4Group,
                                       .codes = codes.data(),
                                       .rows = 1,
                                       .cols = 32,
                                       .row_bytes = 16,
                                       .scales = scales,
                                       .rows_per_matrix = 1,
                                       .scale_cols = 1,
                                       .block_rows = 1,
                                       .block_cols = 32,
                                       .zeros = zeros};
    return run_of(source, output, stored, SchemeId::kInt4Group);
  }

  std::size_t n = 0;
  std::vector<std::uint8_t> zeros;
  std::vector<float> scales;
  std::vector<std::byte> codes = std::vector<std::byte>(16);
  Matrix source{1, 32}, output{1, 32};
};

TEST(ElementRun, ZeroPointsMoveTheLastCodes) {
  for (const float scale : {1.0F, -1.0F}) {
    ZeroPointRow row(3, scale);
    row.add(0, -5 * scale);   // cut off at -3
    row.add(15, 14 * scale);  // cut off at 12
    row.add(15, 12.4F * scale);
    row.add(10, 9 * scale);  // 7 is no end here
    row.add(0, -1 * scale);  // the first code, but not beyond it
    row.add(15, 11 * scale);
    for (int code = 0; code < 16; ++code) row.add(code, static_cast<float>(code - 3) * scale);
    while (row.n < 32) row.add(3, 0);
    const ElementSums sums = compare(row.run());
    EXPECT_EQ(sums.saturated, 2U);
    EXPECT_EQ(sums.misrounded, 3U);
    EXPECT_EQ(sums.exact, 26U);
  }
}

TEST(SumCutOff, ZeroPointZeroLeavesNothingBelow) {
  ZeroPointRow row(0, 1);
  row.add(0, -3);
  row.add(15, 17);
  row.add(7, 9);  // misrounded
  for (int code = 0; code < 16; ++code) row.add(code, static_cast<float>(code));
  while (row.n < 32) row.add(0, 0);
  ElementSums sums = compare(row.run());
  EXPECT_EQ(sums.misrounded, 1U);
  EXPECT_EQ(sums.saturated, 2U);
  sum_cut_off(row.run(), sums);
  EXPECT_EQ(sums.cut_source2, 9 + 289);
  EXPECT_EQ(sums.cut_product, 17 * 15);
  EXPECT_EQ(sums.misrounded, 1U);
}

// Every code with sources at, just before and just after the middle to either neighbour, judged by
// a search through the table of codes.

/// How far sources are from the code, in steps towards the neighbour.
constexpr std::array kDistances = {0.0, 0.25, 0.4999, 0.5, 0.50008, 0.50012, 0.51, 0.75, 1.0, 1.5};

struct Row {
  std::vector<float> source, output;
  std::uint64_t misrounded = 0, saturated = 0;
};

/// Every code, with sources so many steps above or below it.
Row row_of(const std::vector<double>& codes, float scale, double distance, bool is_up) {
  Row row;
  for (std::size_t i = 0; i < codes.size(); ++i) {
    const bool is_last = is_up ? i + 1 == codes.size() : i == 0;
    const std::size_t from = is_up == is_last ? i - 1 : i;
    const double step = (codes[from + 1] - codes[from]) * static_cast<double>(scale);
    const double at = codes[i] * static_cast<double>(scale);
    const auto source = static_cast<float>(is_up ? at + distance * step : at - distance * step);
    if (!std::isfinite(source)) continue;
    row.source.push_back(source);
    row.output.push_back(static_cast<float>(at));
    switch (judge(codes, i, static_cast<double>(scale), static_cast<double>(source))) {
      case Verdict::kGood:
        break;
      case Verdict::kMisrounded:
        ++row.misrounded;
        break;
      case Verdict::kSaturated:
        ++row.saturated;
    }
  }
  return row;
}

ElementSums compare(SchemeId scheme, const Row& row, float scale) {
  const std::size_t n = row.source.size();
  const bool is_scaled = formats::scheme_facts(scheme).quantized;
  const std::vector<float> scales(is_scaled ? 1 : 0, scale);
  const quantize::CodedMatrix stored{.rows = 1,
                                     .cols = n,
                                     .scales = scales,
                                     .rows_per_matrix = 1,
                                     .scale_cols = is_scaled ? 1U : 0U,
                                     .block_rows = is_scaled ? 1U : 0U,
                                     .block_cols = is_scaled ? n : 0U};
  ElementSums sums;
  compare_elements({.source = {row.source.data(), 1, n, n},
                    .output = {row.output.data(), 1, n, n},
                    .stored = stored,
                    .grid = step_grid(scheme)},
                   sums);
  return sums;
}

void expect_judged(SchemeId scheme, const std::vector<float>& scales) {
  const std::vector<double> codes = code_values(scheme);
  for (const float scale : scales) {
    for (const double distance : kDistances) {
      // Under 2^-127 steps are not finer than this.
      if (scale < 0x1p-120F && distance > 0.5 && distance < 0.51) continue;
      for (const bool is_up : {false, true}) {
        SCOPED_TRACE(::testing::Message() << formats::scheme_facts(scheme).name << " scale "
                                          << scale << " distance " << distance << " up " << is_up);
        const Row row = row_of(codes, scale, distance, is_up);
        const ElementSums sums = compare(scheme, row, scale);
        EXPECT_EQ(sums.elements, row.source.size());
        EXPECT_EQ(sums.misrounded, row.misrounded);
        EXPECT_EQ(sums.saturated, row.saturated);
        if (distance > 0.5001) {
          EXPECT_GT(row.misrounded + row.saturated, codes.size() / 2);
        }
      }
    }
  }
}

/// Powers of two and their neighbours, mantissas all over, and scales that need care.
std::vector<float> many_scales() {
  std::vector<float> scales = {1,        0x1.000002p0F, 0x1.fffffep0F, 0.1F,     1 / 448.0F,
                               0x1p-99F, 0x1.8p99F,     0x1p-110F,     0x1p110F, 0x1p-127F};
  for (int i = 0; i < 200; ++i)
    scales.push_back(std::ldexp(1 + static_cast<float>(i * 37 % 200) / 200, i % 37 - 30));
  return scales;
}

TEST(ElementCodes, CodesAreJudgedAsByASearch) {
  for (const SchemeId scheme : {SchemeId::kFp8Block, SchemeId::kInt8Channel, SchemeId::kNvfp4})
    quantize::for_each_target([&] { expect_judged(scheme, many_scales()); });
}

TEST(ElementCodes, PlainWordsAreJudgedAsByASearch) {
  for (const SchemeId scheme : {SchemeId::kBf16, SchemeId::kF16}) expect_judged(scheme, {1});
}

TEST(ElementCodes, LeastInt8IsAnOrdinaryCode) {
  const Row row{.source = {-128.4F, -128.6F, -127.4F, -127.6F, 90},
                .output = {-128, -128, -128, -128, 90}};
  quantize::for_each_target([&] {
    EXPECT_EQ(compare(SchemeId::kInt8Channel, row, 1).misrounded, 1U);
    EXPECT_EQ(compare(SchemeId::kInt8Channel, row, 1).saturated, 1U);
  });
}

// Under 2^126 a code of 4 is no number, so that 3 is the last.
TEST(ElementCodes, WhoseNextIsInfiniteCutOff) {
  Row row{.source = {3.38e38F}, .output = {3 * 0x1p126F}};
  EXPECT_EQ(compare(SchemeId::kMxfp4, row, 0x1p126F).saturated, 1U);
  EXPECT_EQ(compare(SchemeId::kMxfp4, row, 0x1p126F).misrounded, 0U);
  row.output = {2 * 0x1p126F};
  EXPECT_EQ(compare(SchemeId::kMxfp4, row, 0x1p126F).misrounded, 1U);
}

TEST(ElementCodes, InF32AnyDifferenceIsMisrounded) {
  Row row{.source = {1, 2, 3, 0, 5}, .output = {1, 0x1.000002p1F, 3, 0x1p-149F, -5}};
  EXPECT_EQ(compare(SchemeId::kF32, row, 1).misrounded, 3U);
  row.output = row.source;
  EXPECT_EQ(compare(SchemeId::kF32, row, 1).misrounded, 0U);
}

TEST(ElementCodes, WrongSignIsMisroundedAtTheLargestCode) {
  for (const SchemeId scheme : {SchemeId::kFp8Block, SchemeId::kInt8Channel, SchemeId::kNvfp4}) {
    const auto largest = static_cast<float>(code_values(scheme).back());
    Row row{.source = {-1.5F * largest}, .output = {largest}};
    for (int i = 0; i < 40; ++i) {  // among others, so that the error is not the larger part
      row.source.push_back(largest);
      row.output.push_back(largest);
    }
    quantize::for_each_target([&] {
      EXPECT_EQ(compare(scheme, row, 1).misrounded, 1U);
      EXPECT_EQ(compare(scheme, row, 1).saturated, 0U);
    });
  }
}

// Source {3, 4}, output {3, 5}.
ElementSums example() {
  ElementSums sums;
  sums.elements = 2;
  sums.exact = 1;
  sums.error = 1;
  sums.error2 = 1;
  sums.source2 = 25;
  sums.output2 = 34;
  sums.product = 29;
  sums.max_error = 1;
  sums.max_relative = 0.25;
  sums.step_histogram[3] = 2;
  return sums;
}

TEST(ElementSums, FiguresFollowFromTheSums) {
  const ElementSums sums = example();
  EXPECT_DOUBLE_EQ(sums.cosine(), 29 / std::sqrt(25.0 * 34.0));
  EXPECT_DOUBLE_EQ(sums.relative_error(), 0.2);
  EXPECT_DOUBLE_EQ(sums.sqnr_db(), 10 * std::log10(25.0));
  EXPECT_DOUBLE_EQ(sums.mean_error(), 0.5);
  EXPECT_DOUBLE_EQ(sums.fitted_scale(), 29.0 / 25);
}

TEST(ElementSums, ZerosAndNothingHaveDefinedFigures) {
  const ElementSums none;
  EXPECT_EQ(none.cosine(), 1);
  EXPECT_EQ(none.relative_error(), 0);
  EXPECT_TRUE(std::isinf(none.sqnr_db()));
  EXPECT_EQ(none.mean_error(), 0);
  EXPECT_EQ(none.fitted_scale(), 1);
  ElementSums same;  // whose roots are not exact
  same.source2 = same.output2 = same.product = 3;
  EXPECT_EQ(same.cosine(), 1);
  ElementSums lost;  // all became zero
  lost.elements = 1;
  lost.source2 = lost.error2 = 4;
  lost.error = -2;
  EXPECT_EQ(lost.cosine(), 0);
  EXPECT_EQ(lost.relative_error(), 1);
  EXPECT_EQ(lost.fitted_scale(), 0);
  ElementSums made;  // of nothing
  made.elements = 1;
  made.output2 = made.error2 = 4;
  EXPECT_EQ(made.cosine(), 0);
  EXPECT_TRUE(std::isinf(made.relative_error()));
}

TEST(ElementSums, WhatIsNotFiniteIsInNoMean) {
  ElementSums sums = example();
  sums.elements = 5;
  sums.nonfinite = 1;
  sums.source_nonfinite = 2;
  EXPECT_DOUBLE_EQ(sums.mean_error(), 0.5);
}

TEST(ElementSums, AdditionTakesCountsSumsAndTheLarger) {
  ElementSums sums = example();
  ElementSums other = example();
  other.max_error = 7;
  other.misrounded = 3;
  other.saturated = 4;
  other.zeroed = 5;
  sums.add(other);
  EXPECT_EQ(sums.elements, 4U);
  EXPECT_EQ(sums.exact, 2U);
  EXPECT_EQ(sums.misrounded, 3U);
  EXPECT_EQ(sums.saturated, 4U);
  EXPECT_EQ(sums.zeroed, 5U);
  EXPECT_EQ(sums.error, 2);
  EXPECT_EQ(sums.product, 58);
  EXPECT_EQ(sums.max_error, 7);
  EXPECT_EQ(sums.max_relative, 0.25);
  EXPECT_EQ(sums.step_histogram[3], 4U);
}

/// A tensor with this relative error and a scale of 1 + error / 10.
TensorWeights tensor(const std::string& name, const std::string& role,
                     std::optional<std::uint32_t> layer, const std::string& to, double error) {
  TensorWeights made{.name = name, .role = role, .layer = layer, .from = "fp8-block", .to = to};
  made.relation = error == 0 ? Relation::kIdentical : Relation::kQuantized;
  made.sums.elements = 10;
  made.sums.source2 = 100;
  made.sums.error2 = 100 * error * error;
  made.sums.product = 100 * (1 + error / 10);
  made.sums.output2 = 2 * made.sums.product - 100 + made.sums.error2;
  return made;
}

WeightsReport report_of_groups() {
  WeightsReport report;
  report.tensors = {tensor("a0", "up", 0, "int8", 0.01), tensor("b0", "norm", 0, "bf16", 0),
                    tensor("a1", "up", 1, "int8", 0.03), tensor("a2", "up", 1, "int8", 0.02),
                    tensor("c", "up", 1, "nvfp4", 0.1),  tensor("head", "head", {}, "bf16", 0)};
  return report;
}

TEST(WeightGroups, AreBySchemeAndRoleInOrder) {
  const auto groups = by_scheme_and_role(report_of_groups());
  ASSERT_EQ(groups.size(), 4U);
  EXPECT_EQ(groups[0].role, "up");
  EXPECT_EQ(groups[0].from, "fp8-block");
  EXPECT_EQ(groups[0].to, "int8");
  EXPECT_FALSE(groups[0].layer.has_value());
  EXPECT_EQ(groups[0].tensors, 3U);
  EXPECT_EQ(groups[0].identical, 0U);
  EXPECT_EQ(groups[0].sums.elements, 30U);
  EXPECT_EQ(groups[0].worst, "a1");
  EXPECT_DOUBLE_EQ(groups[0].worst_scale, 1.003);
  EXPECT_EQ(groups[0].least_cosine, report_of_groups().tensors[2].sums.cosine());
  EXPECT_EQ(groups[1].role, "norm");
  EXPECT_EQ(groups[1].identical, 1U);
  EXPECT_EQ(groups[1].least_cosine, 1);
  EXPECT_EQ(groups[2].to, "nvfp4");
  EXPECT_EQ(groups[3].role, "head");
}

TEST(WeightGroups, AreByLayerAndRole) {
  const auto groups = by_layer_and_role(report_of_groups());
  ASSERT_EQ(groups.size(), 4U);
  EXPECT_EQ(groups[0].layer, 0U);
  EXPECT_EQ(groups[2].layer, 1U);
  EXPECT_EQ(groups[2].tensors, 3U);
  EXPECT_EQ(groups[2].worst, "c");
  EXPECT_TRUE(groups[2].to.empty());
  EXPECT_FALSE(groups[3].layer.has_value());
}

TEST(WeightGroups, FaultsComeBeforeLargerErrors) {
  WeightsReport report = report_of_groups();
  report.tensors[0].sums.misrounded = 1;
  report.tensors[1].relation = Relation::kNarrowed;
  const auto worst = worst_tensors(report, 4);
  ASSERT_EQ(worst.size(), 4U);
  EXPECT_EQ(worst[0]->name, "a0");
  EXPECT_EQ(worst[1]->name, "b0");
  EXPECT_EQ(worst[2]->name, "c");
  EXPECT_EQ(worst[3]->name, "a1");
  EXPECT_EQ(worst_tensors(report, 100).size(), 6U);
}

TEST(WeightGroups, AreNoneForNothing) {
  EXPECT_TRUE(by_scheme_and_role({}).empty());
  EXPECT_TRUE(by_layer_and_role({}).empty());
  EXPECT_TRUE(worst_tensors({}, 5).empty());
}

TEST(WeightGroups, RelationsHaveNames) {
  EXPECT_EQ(relation_name(Relation::kIdentical), "identical");
  EXPECT_EQ(relation_name(Relation::kNarrowed), "narrowed");
}

}  // namespace
}  // namespace ingot::verify
