// The figures of real conversions. What faults in their scales do to them: mutations/.

#include <fstream>

#include <gtest/gtest.h>

#include "tests/convert/targets.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_checkpoint.h"
#include "verify/weights/weight_check.h"

namespace ingot::verify {
namespace {

using formats::SchemeId;
using namespace ingot::testing;

struct Case {
  std::string name;
  SchemeId to;
  double least_cosine;
  quantize::Nvfp4Search search = quantize::Nvfp4Search::kAmax;
  bool from_bf16 = false;
  std::optional<quantize::Fp8Grid> grid = {};
};

std::vector<Case> cases() {
  using quantize::Fp8Grid;
  using quantize::Nvfp4Search;
  return {{"bf16", SchemeId::kBf16, 0.99999},
          {"f32", SchemeId::kF32, 1},
          {"int8", SchemeId::kInt8Channel, 0.9995},
          {"int8_block", SchemeId::kInt8Block, 0.9995},
          {"fp8_channel", SchemeId::kFp8Channel, 0.9995},
          {"fp8_tensor", SchemeId::kFp8Tensor, 0.9995},
          {"fp8_block", SchemeId::kFp8Block, 0.9995, Nvfp4Search::kAmax, true, Fp8Grid::kAmax},
          {"fp8_ue8m0", SchemeId::kFp8Block, 0.9995, Nvfp4Search::kAmax, true, Fp8Grid::kUe8m0},
          {"mxfp8", SchemeId::kMxfp8, 0.9995},
          {"nvfp4_amax", SchemeId::kNvfp4, 0.995},
          {"nvfp4_4over6", SchemeId::kNvfp4, 0.9955, Nvfp4Search::kFourOverSix},
          {"nvfp4_mse", SchemeId::kNvfp4, 0.9965, Nvfp4Search::kMse},
          {"mxfp4", SchemeId::kMxfp4, 0.991}};
}

void convert_as(const Case& wanted, const std::filesystem::path& to) {
  Conversion conversion(wanted.from_bf16 ? tiny_bf16() : tiny_v32(), to);
  conversion.recipe.to = wanted.to;
  conversion.recipe.choices.nvfp4_search = wanted.search;
  conversion.recipe.choices.fp8_grid = wanted.grid;
  conversion.run();
}

WeightsReport compare(const std::filesystem::path& source, const std::filesystem::path& output,
                      const WeightsOptions& options = {}) {
  return compare_weights(shard::open_source(source, {}), shard::open_source(output, {}), options);
}

std::uint64_t misrounded(const WeightsReport& report) {
  std::uint64_t sum = 0;
  for (const TensorWeights& tensor : report.tensors) sum += tensor.sums.misrounded;
  return sum;
}

bool operator==(const TensorWeights& a, const TensorWeights& b) {
  return a.name == b.name && a.relation == b.relation && a.sums == b.sums;
}

class ConvertedWeights : public ::testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(Schemes, ConvertedWeights, ::testing::ValuesIn(cases()),
                         [](const auto& row) { return row.param.name; });

TEST_P(ConvertedWeights, AreRoundedToTheGridAndFloors) {
  const TempDir directory;
  convert_as(GetParam(), directory / "out");
  const WeightsReport report =
      compare(GetParam().from_bf16 ? tiny_bf16() : tiny_v32(), directory / "out");
  EXPECT_EQ(report.unmatched, 0U);
  EXPECT_EQ(misrounded(report), 0U);
  std::uint64_t converted = 0, saturated = 0, elements = 0;
  for (const TensorWeights& tensor : report.tensors) {
    EXPECT_EQ(tensor.sums.nonfinite, 0U);
    if (tensor.relation == Relation::kIdentical) {
      EXPECT_EQ(tensor.sums.exact, tensor.sums.elements) << tensor.name;
      continue;
    }
    // Loaders want some linears plain, whatever the others are.
    const bool is_quantized = formats::scheme_facts(*formats::find_scheme(tensor.to)).quantized;
    EXPECT_EQ(tensor.relation, is_quantized ? Relation::kQuantized : Relation::kWidened)
        << tensor.name;
    EXPECT_GE(tensor.sums.cosine(), GetParam().least_cosine) << tensor.name;
    EXPECT_NEAR(tensor.sums.fitted_scale(), 1, 0.05) << tensor.name;
    ++converted;
    saturated += tensor.sums.saturated;
    elements += tensor.sums.elements;
  }
  EXPECT_GT(converted, 20U);
  const bool may_cut =
      GetParam().to == SchemeId::kMxfp4 || GetParam().to == SchemeId::kMxfp8 ||
      (GetParam().to == SchemeId::kNvfp4 && GetParam().search != quantize::Nvfp4Search::kAmax);
  if (!may_cut) {
    EXPECT_LT(saturated, elements / 1000);
  }
}

TEST(ConvertedWeights, ReportIgnoresThreads) {
  const TempDir directory;
  convert_as({"nvfp4", SchemeId::kNvfp4, 0}, directory / "out");
  const WeightsReport one = compare(tiny_v32(), directory / "out", {.threads = 1});
  const WeightsReport four = compare(tiny_v32(), directory / "out", {.threads = 4});
  ASSERT_EQ(one.tensors.size(), four.tensors.size());
  for (std::size_t i = 0; i < one.tensors.size(); ++i)
    EXPECT_TRUE(one.tensors[i] == four.tensors[i]) << one.tensors[i].name;
}

TEST(ConvertedWeights, RewrappedNvfp4IsIdenticalThoughItsGlobalsDivide) {
  const TempDir directory;
  convert_as({"nvfp4", SchemeId::kNvfp4, 0}, directory / "divides");
  Conversion rewrap(directory / "divides", directory / "multiplies");
  rewrap.recipe.to = {};
  rewrap.recipe.choices.dialect = "modelopt";
  rewrap.recipe.choices.activations = formats::Activations::kWeightOnly;
  rewrap.run();
  const formats::Checkpoint output = formats::Checkpoint::open(directory / "multiplies");
  ASSERT_EQ(output.dialect().name, "modelopt");
  const WeightsReport report = compare(directory / "divides", directory / "multiplies");
  std::size_t n_nvfp4 = 0;
  for (const TensorWeights& tensor : report.tensors) {
    if (tensor.from != "nvfp4") continue;
    ++n_nvfp4;
    EXPECT_EQ(tensor.relation, Relation::kIdentical) << tensor.name;
  }
  EXPECT_GT(n_nvfp4, 20U);
}

TEST(ConvertedWeights, SeeOneFlippedBitOfACode) {
  const TempDir directory;
  ingot::testing::copy_example(directory / "out");
  const std::string name = "model.layers.1.mlp.experts.2.up_proj.weight";
  const formats::Checkpoint checkpoint = formats::Checkpoint::open(directory / "out");
  for (const formats::StoredTensor& stored : checkpoint.stored()) {
    if (stored.name != name) continue;
    std::fstream file(directory / "out" / checkpoint.files()[stored.file].name,
                      std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(static_cast<std::streamoff>(stored.offset + 1000));
    const int byte = file.get();
    file.seekp(static_cast<std::streamoff>(stored.offset + 1000));
    file.put(static_cast<char>(byte ^ 1));
  }
  const WeightsReport report = compare(tiny_v32(), directory / "out");
  for (const TensorWeights& tensor : report.tensors) {
    EXPECT_EQ(tensor.relation, tensor.name == name ? Relation::kChanged : Relation::kIdentical)
        << tensor.name;
  }
  EXPECT_EQ(worst_tensors(report, 1).at(0)->name, name);
}

}  // namespace
}  // namespace ingot::verify
