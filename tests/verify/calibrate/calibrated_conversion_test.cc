#include <iostream>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "convert/activation_scales.h"
#include "convert/importance.h"
#include "tests/inference/generate/perplexity.h"
#include "tests/support/temp_dir.h"
#include "tests/verify/calibrate/calibration.h"

// From text to a static checkpoint, and to one whose scales were searched with weights.

namespace ingot::verify {
namespace {

using formats::SchemeId;
using ingot::testing::Conversion;
using ingot::testing::likelihood;
using ingot::testing::OpenedModel;
using ingot::testing::random_documents;
using ingot::testing::run_calibration;
using ingot::testing::TempDir;
using ingot::testing::tiny_v32;
using ingot::testing::validation_documents;
using Documents = std::vector<std::vector<std::int64_t>>;

std::vector<Prompt> prompts_of(const Documents& documents) {
  std::vector<Prompt> prompts;
  for (const auto& ids : documents)
    prompts.push_back({.text = {}, .ids = std::vector<std::int32_t>(ids.begin(), ids.end())});
  return prompts;
}

// Every second document, from `first` on; at most `n`.
Documents every_second(std::size_t first, std::size_t n) {
  const Documents all = validation_documents();
  Documents some;
  for (std::size_t i = first; i < all.size() && some.size() < n; i += 2) some.push_back(all[i]);
  return some;
}

class CalibratedConversion : public ::testing::Test {
 protected:
  std::filesystem::path statistics() const { return directory_ / "statistics.safetensors"; }
  void calibrate(const std::vector<Prompt>& documents) {
    run_calibration(tiny_v32(), documents, statistics());
  }
  std::shared_ptr<const convert::ActivationScales> scales() const {
    return std::make_shared<const convert::ActivationScales>(
        convert::ActivationScales::read(statistics()));
  }
  std::shared_ptr<const convert::Importance> importance() const {
    return std::make_shared<const convert::Importance>(convert::Importance::read(statistics()));
  }
  // Its divergence from the source, in the arithmetic of its own scheme.
  double divergence(const std::filesystem::path& output, const Documents& documents) {
    const OpenedModel opened(output, {.profile = inference::Profile::kNative, .threads = 1});
    return likelihood(opened.model, documents, inference::KvFormat::kBf16, &source_.model)
        .divergence;
  }

  TempDir directory_;
  OpenedModel source_{tiny_v32()};
};

// Measured: 5.3e-5 and 1.4e-4.
TEST_F(CalibratedConversion, MakesStaticCheckpointsThatRun) {
  calibrate(prompts_of(every_second(1, 6)));
  const struct {
    SchemeId scheme;
    const char* dialect;
    double most;
  } rows[] = {{SchemeId::kInt8Channel, "modelslim", 2e-4}, {SchemeId::kNvfp4, "modelopt", 5e-4}};
  for (const auto& row : rows) {
    Conversion conversion(tiny_v32(), directory_ / row.dialect);
    conversion.recipe.to = row.scheme;
    conversion.recipe.choices.dialect = row.dialect;
    conversion.recipe.choices.activations = formats::Activations::kStatic;
    conversion.recipe.choices.activation_scales = scales();
    conversion.run();
    const double is = divergence(conversion.output, every_second(0, 4));
    EXPECT_LT(is, row.most) << row.dialect;
    EXPECT_GT(is, 0) << row.dialect;
  }
}

TEST_F(CalibratedConversion, RecordsWhichExpertsWereFilled) {
  calibrate(random_documents({2}));
  const auto read = importance();
  ASSERT_EQ(read->filled().size(), 5U);
  convert::Choices choices;
  choices.importance = read;
  choices.activation_scales = scales();
  const formats::Json json = choices.to_json();
  std::size_t n = 0;
  for (const auto& [layer, experts] : read->filled()) {
    n += experts.size();
    EXPECT_EQ(json["importance_filled"]["layers"][layer], formats::Json(experts));
  }
  EXPECT_EQ(json["importance_filled"]["experts"], n);
  EXPECT_EQ(json["activation_scales_filled"], json["importance_filled"]);
  EXPECT_EQ(json["importance"], read->hash().hex());
}

struct Divergences {
  double plain = 0, weighted = 0;
};

class SlowImportance : public CalibratedConversion {
 protected:
  Divergences measure(bool attention, quantize::Nvfp4Search search) {
    Divergences is;
    for (const bool weighted : {false, true}) {
      Conversion conversion(tiny_v32(), directory_ / (weighted ? "weighted" : "plain"));
      conversion.recipe.to = SchemeId::kNvfp4;
      conversion.recipe.choices.quantize_attention = attention;
      conversion.recipe.choices.nvfp4_search = search;
      if (weighted) conversion.recipe.choices.importance = importance();
      conversion.run();
      (weighted ? is.weighted : is.plain) = divergence(conversion.output, every_second(0, 50));
      std::filesystem::remove_all(conversion.output);
    }
    return is;
  }
};

// On documents that were not calibrated with.
TEST_F(SlowImportance, LowersTheDivergenceFromTheSource) {
  calibrate(prompts_of(every_second(1, 50)));
  for (const bool attention : {false, true}) {
    for (const auto search : {quantize::Nvfp4Search::kMse, quantize::Nvfp4Search::kFourOverSix}) {
      const Divergences is = measure(attention, search);
      const std::string row = fmt::format("{}_{}", attention ? "all" : "experts",
                                          search == quantize::Nvfp4Search::kMse ? "mse" : "4over6");
      std::cout << fmt::format("{}: mean KL {:.3e}, with importance {:.3e}\n", row, is.plain,
                               is.weighted);
      EXPECT_LT(is.weighted, is.plain) << row;
    }
  }
}

}  // namespace
}  // namespace ingot::verify
