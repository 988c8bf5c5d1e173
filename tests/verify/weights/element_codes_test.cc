// Every code beside sources at, just before and just after the middle to either neighbour, judged
// by a search through the table of codes.

#include <array>
#include <vector>

#include <gtest/gtest.h>

#include "tests/quantize/each_target.h"
#include "tests/verify/weights/code_tables.h"
#include "verify/weights/element_run.h"

namespace ingot::verify {
namespace {

using formats::SchemeId;

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
  const quantize::EncodedRows stored{.rows = 1,
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
        SCOPED_TRACE(testing::Message() << formats::scheme_facts(scheme).name << " scale " << scale
                                        << " distance " << distance << " up " << is_up);
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

}  // namespace
}  // namespace ingot::verify
