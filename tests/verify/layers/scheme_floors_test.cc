// Conversions of the example stay above the floors of their kind: the source in FP32, the output as
// its scheme is run. The floors are those of docs/verify.md.

#include <iostream>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tests/support/temp_dir.h"
#include "tests/verify/layers/example.h"

namespace ingot::testing {
namespace {

using formats::SchemeId;
using verify::LayerAgreement;

struct SchemeCase {
  const char* name;
  SchemeId to;
  bool attention_too = false;
  double cosine = 0;  ///< of every main layer, isolated, mean over tokens
  double mtp = 0;     ///< of the MTP layer: it has no residual stream to lean on
  double kl = 0;      ///< mean over tokens
};

class SchemeFloors : public ::testing::TestWithParam<SchemeCase> {};

TEST_P(SchemeFloors, HoldInEveryLayerAndForTheLogits) {
  const SchemeCase& scheme = GetParam();
  const TempDir directory;
  Conversion conversion(tiny_v32(), directory / "out");
  conversion.recipe.to = scheme.to;
  conversion.recipe.choices.nvfp4_search = quantize::Nvfp4Search::kAmax;
  conversion.recipe.choices.quantize_attention = scheme.attention_too;
  conversion.run();

  const Example example;
  const auto output = shard::open_source(directory / "out");
  const auto report =
      verify::compare_layers(example.model, output, example.prompts, {.threads = 2});
  std::cout << fmt::format("{}: least cosine {:.6f}, mtp {:.6f}, KL {:.2e}, mtp KL {:.2e}\n",
                           scheme.name, least_cosine(report), report.layers.back().isolated.mean,
                           report.logits.mean_kl, report.mtp_logits->mean_kl);
  EXPECT_EQ(report.output_profile, "native");
  ASSERT_EQ(report.layers.size(), 6U);
  for (const LayerAgreement& layer : report.layers) {
    EXPECT_GE(layer.isolated.mean, layer.is_mtp ? scheme.mtp : scheme.cosine)
        << "layer " << layer.layer;
    EXPECT_LT(layer.isolated.mean, 1) << "something was rounded";
    EXPECT_GE(layer.indexer_overlap.value(), 0.95);
  }
  EXPECT_LE(report.logits.mean_kl, scheme.kl);
}

// The MTP layer stays in BF16 in 4-bit conversions. Nothing is asked of the logits of BF16.
INSTANTIATE_TEST_SUITE_P(
    Kinds, SchemeFloors,
    ::testing::Values(
        SchemeCase{
            .name = "bf16", .to = SchemeId::kBf16, .cosine = 0.9995, .mtp = 0.9995, .kl = 5e-5},
        SchemeCase{.name = "fp8_channel",
                   .to = SchemeId::kFp8Channel,
                   .cosine = 0.999,
                   .mtp = 0.998,
                   .kl = 5e-5},
        SchemeCase{.name = "int8",
                   .to = SchemeId::kInt8Channel,
                   .cosine = 0.999,
                   .mtp = 0.998,
                   .kl = 5e-5},
        SchemeCase{
            .name = "nvfp4", .to = SchemeId::kNvfp4, .cosine = 0.997, .mtp = 0.9995, .kl = 5e-4},
        SchemeCase{.name = "nvfp4_attention",
                   .to = SchemeId::kNvfp4,
                   .attention_too = true,
                   .cosine = 0.994,
                   .mtp = 0.9995,
                   .kl = 5e-4},
        SchemeCase{
            .name = "mxfp4", .to = SchemeId::kMxfp4, .cosine = 0.994, .mtp = 0.9995, .kl = 1e-3}),
    [](const auto& suite) { return std::string(suite.param.name); });

}  // namespace
}  // namespace ingot::testing
