#include <array>
#include <cmath>
#include <vector>

#include <gtest/gtest.h>

#include "tests/quantize/each_target.h"
#include "tests/verify/weights/code_tables.h"
#include "verify/weights/element_run.h"
#include "verify/weights/element_sums.h"
#include "verify/weights/weight_check.h"

// Every code with sources at, just before and just after the middle to either neighbour, judged by
// a search through the table of codes.

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
