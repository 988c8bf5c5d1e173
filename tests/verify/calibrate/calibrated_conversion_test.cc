#include <cmath>
#include <fstream>
#include <iostream>
#include <limits>
#include <random>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "convert/recipe/statistics.h"
#include "tests/inference/generate/perplexity.h"
#include "tests/support/expect_error.h"
#include "tests/support/temp_dir.h"
#include "tests/verify/calibrate/calibration.h"
#include "verify/calibrate/input_statistics.h"

// From text to a static checkpoint, and to one whose scales were searched with weights.

namespace ingot::verify {
namespace {

using namespace ingot::testing;
using Documents = std::vector<std::vector<std::int64_t>>;
using formats::SchemeId;
using ingot::testing::expect_error;

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
  calibrate(prompts_of(every_second(1, 3)));
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
    const double is = divergence(conversion.output, every_second(0, 2));
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

// Two encodings of one model that are equally good by squared error differ by many percent in KL:
// one pair with and without importance says little. So each pair is drawn several times, with the
// weights of the columns multiplied by random factors near 1, the same in both.
class SlowImportance : public CalibratedConversion {
 protected:
  static constexpr std::size_t kDraws = 6;

  // The statistics with their mean squares times a random factor, or only these factors.
  std::filesystem::path drawn(std::uint32_t draw, bool weighted) {
    std::filesystem::path path = directory_ / "drawn.safetensors";
    std::filesystem::copy_file(statistics(), path,
                               std::filesystem::copy_options::overwrite_existing);
    std::mt19937 random(draw);
    std::normal_distribution<float> logarithm(0, 0.2F);
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    for (const formats::StoredTensor& tensor :
         formats::read_safetensors_header(Fd::open_for_reading(path)).tensors) {
      if (!tensor.name.ends_with(".input_mean_square")) continue;
      std::vector<float> values(tensor.n_bytes / sizeof(float));
      const auto n_bytes = static_cast<std::streamsize>(tensor.n_bytes);
      file.seekg(static_cast<std::streamoff>(tensor.offset));
      file.read(reinterpret_cast<char*>(values.data()), n_bytes);
      for (float& value : values) value = (weighted ? value : 1) * std::exp(logarithm(random));
      file.seekp(static_cast<std::streamoff>(tensor.offset));
      file.write(reinterpret_cast<const char*>(values.data()), n_bytes);
    }
    if (!file.flush()) throw std::runtime_error("cannot rewrite " + path.string());
    return path;
  }

  // Mean KL from the source over the documents that were not calibrated with.
  double measure(bool attention, quantize::ScaleSearch search,
                 const std::filesystem::path& weights) {
    Conversion conversion(tiny_v32(), directory_ / "output");
    conversion.recipe.to = SchemeId::kNvfp4;
    conversion.recipe.choices.quantize_attention = attention;
    conversion.recipe.choices.search = search;
    conversion.recipe.choices.importance =
        std::make_shared<const convert::Importance>(convert::Importance::read(weights));
    conversion.run();
    const double is = divergence(conversion.output, every_second(0, 50));
    std::filesystem::remove_all(conversion.output);
    return is;
  }
};

struct Spread {
  double mean = 0, deviation = 0;
};

Spread spread_of(const std::vector<double>& values) {
  Spread is;
  const auto n = static_cast<double>(values.size());
  for (const double value : values) is.mean += value / n;
  for (const double value : values) is.deviation += (value - is.mean) * (value - is.mean) / (n - 1);
  is.deviation = std::sqrt(is.deviation);
  return is;
}

TEST_F(SlowImportance, LowersTheDivergenceBeyondItsSpread) {
  calibrate(prompts_of(every_second(1, 50)));
  const struct {
    const char* name;
    bool attention;
    quantize::ScaleSearch search;
  } rows[] = {{"experts, mse", false, quantize::ScaleSearch::kMse},
              {"experts, 4over6", false, quantize::ScaleSearch::kFourOverSix},
              {"attention too, mse", true, quantize::ScaleSearch::kMse},
              {"attention too, 4over6", true, quantize::ScaleSearch::kFourOverSix}};
  for (const auto& row : rows) {
    std::vector<double> plain, weighted, gains;
    for (std::uint32_t draw = 0; draw < kDraws; ++draw) {
      plain.push_back(measure(row.attention, row.search, drawn(draw, false)));
      weighted.push_back(measure(row.attention, row.search, drawn(draw, true)));
      gains.push_back(1 - weighted.back() / plain.back());
    }
    const Spread before = spread_of(plain), after = spread_of(weighted), gain = spread_of(gains);
    const double standard_error = gain.deviation / std::sqrt(double{kDraws});
    std::cout << fmt::format(
        "{}: mean KL {:.3e} (deviation {:.1e}), with importance {:.3e} ({:.1e}), gain {:.1f}% +- "
        "{:.1f}%\n",
        row.name, before.mean, before.deviation, after.mean, after.deviation, 100 * gain.mean,
        100 * standard_error);
    EXPECT_GT(gain.mean, 2 * standard_error) << row.name;
  }
}

constexpr std::size_t kRows = 37, kCols = 1100;

std::vector<float> normal_values() {
  std::mt19937 random(5);
  std::normal_distribution<float> normal;
  std::vector<float> values(kRows * kCols);
  for (float& value : values) value = normal(random);
  return values;
}

formats::MatrixView<const float> rows_of(const std::vector<float>& values, std::size_t first,
                                         std::size_t n) {
  return {.data = values.data() + first * kCols, .rows = n, .cols = kCols, .stride = kCols};
}

bool same(const InputSummary& a, const InputSummary& b) {
  return a.min == b.min && a.max == b.max && a.mean_square == b.mean_square;
}

TEST(InputStatistics, AreRangeAndMeanSquares) {
  const std::vector<float> values = {1, -2, 3, 4, 0.5F, -6};
  InputStatistics statistics(2);
  statistics.add({.data = values.data(), .rows = 3, .cols = 2, .stride = 2}, 1);
  const InputSummary summary = statistics.summary();
  EXPECT_EQ(summary.min, -6);
  EXPECT_EQ(summary.max, 4);
  EXPECT_EQ(summary.amax(), 6);
  EXPECT_EQ(summary.mean_square, (std::vector<float>{10.25F / 3, 56.0F / 3}));
  EXPECT_EQ(statistics.tokens(), 3U);
}

TEST(InputStatistics, AlwaysHoldZero) {
  const std::vector<float> values = {2, 5};
  InputStatistics statistics(1);
  statistics.add({.data = values.data(), .rows = 2, .cols = 1, .stride = 1}, 1);
  EXPECT_EQ(statistics.summary().min, 0);
  EXPECT_EQ(statistics.summary().max, 5);
}

TEST(InputStatistics, IgnoreGroupingAndThreads) {
  const std::vector<float> values = normal_values();
  InputStatistics whole(kCols);
  whole.add(rows_of(values, 0, kRows), 1);
  for (const std::size_t threads : {1U, 3U}) {
    for (const std::size_t step : {1U, 5U, 36U}) {
      InputStatistics parts(kCols);
      for (std::size_t first = 0; first < kRows; first += step)
        parts.add(rows_of(values, first, std::min(step, kRows - first)), threads);
      EXPECT_TRUE(same(parts.summary(), whole.summary())) << threads << " " << step;
    }
  }
}

TEST(InputStatistics, AreSummedInDouble) {
  const float small = 1e-3F;
  std::vector<float> values(20'001, small);
  values[0] = 4096;
  InputStatistics statistics(1);
  statistics.add({.data = values.data(), .rows = values.size(), .cols = 1, .stride = 1}, 1);
  const double wanted = (4096.0 * 4096.0 + 20'000 * double{small} * double{small}) / 20'001;
  EXPECT_EQ(statistics.summary().mean_square.at(0), static_cast<float>(wanted));
}

TEST(InputStatistics, RefuseWhatIsNoNumber) {
  for (const float bad : {std::numeric_limits<float>::infinity(), -HUGE_VALF, NAN, 3e38F}) {
    const std::vector<float> values = {1, 1, 1, bad};
    InputStatistics statistics(2);
    statistics.add({.data = values.data(), .rows = 2, .cols = 2, .stride = 2}, 1);
    expect_error(ErrorCode::kNonFinite, {"column 1"}, [&] { (void)statistics.summary(); });
  }
}

TEST(InputSummary, IncludesTheLargerOfBoth) {
  InputSummary a{.min = -1, .max = 5, .mean_square = {1, 4}};
  a.include({.min = -3, .max = 2, .mean_square = {2, 3}});
  EXPECT_TRUE(same(a, {.min = -3, .max = 5, .mean_square = {2, 4}}));
}

}  // namespace
}  // namespace ingot::verify
