#include <sys/stat.h>

#include "check/model_fingerprint.h"
#include "convert/recipe/statistics.h"
#include "formats/base/stop_scope.h"
#include "tests/quantize/each_target.h"
#include "tests/support/test.h"
#include "tests/support/tiny_checkpoint.h"
#include "tests/verify/calibrate/recorded_inputs.h"
#include "verify/calibrate/expert_loads.h"
#include "verify/calibrate/layer_moments.h"
#include "verify/calibrate/moment_sums.h"

// Directories of statistics of tiny-v32, against sums in double over inputs that follow from
// another pass over the model.

namespace ingot::verify {
namespace {

namespace fs = std::filesystem;
using namespace ingot::testing;
using formats::CalibrationStatistics;
using ingot::testing::expect_error;

std::map<std::string, std::string> files_of(const fs::path& directory) {
  std::map<std::string, std::string> files;
  for (const auto& entry : fs::recursive_directory_iterator(directory)) {
    if (entry.is_regular_file())
      files[fs::relative(entry.path(), directory).string()] =
          read_text_file(entry.path(), 1U << 28);
  }
  return files;
}

struct Measured {
  TempDir directory;
  CalibrationReport report;
  explicit Measured(const RunOptions& options = {}, const CalibrationOptions& what = {}) {
    report = run_calibration(tiny_v32(), documents(), directory / "stats", options, what);
  }
  [[nodiscard]] CalibrationStatistics open() const {
    return CalibrationStatistics::open(directory / "stats");
  }
};

const Measured& measured() {
  static const Measured once;
  return once;
}

const CalibrationStatistics& stats() {
  static const CalibrationStatistics once = measured().open();
  return once;
}

std::vector<float> values(const std::string& owner, std::string_view ending) {
  const formats::StatisticTensor* tensor = stats().find(owner, ending);
  if (tensor == nullptr) throw std::runtime_error(owner + " has none");
  return stats().finite_values(*tensor);
}

// The mean of x_i x_j.
std::vector<double> moments(const Rows& rows) {
  const std::size_t k = rows.at(0).size();
  std::vector<double> mean(k * k);
  for (const auto& row : rows) {
    for (std::size_t i = 0; i < k; ++i) {
      for (std::size_t j = 0; j < k; ++j)
        mean[i * k + j] += double{row[i]} * double{row[j]} / static_cast<double>(rows.size());
    }
  }
  return mean;
}

double trace(const std::vector<double>& square) {
  const auto k = static_cast<std::size_t>(std::sqrt(static_cast<double>(square.size())));
  double sum = 0;
  for (std::size_t i = 0; i < k; ++i) sum += square[i * k + i];
  return sum;
}

void expect_near(const std::vector<float>& is, const std::vector<double>& wanted,
                 const std::string& what) {
  ASSERT_EQ(is.size(), wanted.size()) << what;
  double difference = 0, size = 0;
  for (std::size_t i = 0; i < is.size(); ++i) {
    difference += (double{is[i]} - wanted[i]) * (double{is[i]} - wanted[i]);
    size += wanted[i] * wanted[i];
  }
  EXPECT_LT(difference, 1e-10 * size) << what;
}

// The blocks of 16 along the diagonal.
std::vector<double> blocks_of(const std::vector<double>& square, std::size_t k) {
  std::vector<double> blocks;
  for (std::size_t b = 0; b < k; b += 16) {
    for (std::size_t i = b; i < b + 16; ++i) {
      for (std::size_t j = b; j < b + 16; ++j) blocks.push_back(square[i * k + j]);
    }
  }
  return blocks;
}

// The tokens of a layer that chose an expert, with their weights.
struct Chosen {
  Rows rows;
  std::vector<double> weights;
};

Chosen chosen_by(std::size_t layer, std::uint32_t expert, const Rows& inputs) {
  Chosen chosen;
  std::size_t row = 0;
  for (const Recording& document : recorded().documents) {
    const auto& experts = document.experts.at(layer);
    for (std::size_t i = 0; i < experts.size(); ++i) {
      if (experts[i] != expert) continue;
      chosen.rows.push_back(inputs.at(row + i / kTopk));
      chosen.weights.push_back(double{document.expert_weights.at(layer)[i]});
    }
    row += experts.size() / kTopk;
  }
  return chosen;
}

Rows inner_of(const std::string& expert, const Rows& rows, std::size_t width) {
  Rows inner = product(rows, expert + ".gate_proj.weight", width);
  const Rows raised = product(rows, expert + ".up_proj.weight", width);
  for (std::size_t i = 0; i < inner.size(); ++i) {
    for (std::size_t c = 0; c < width; ++c) {
      const double x = inner[i][c];
      inner[i][c] = static_cast<float>(x / (1 + std::exp(-x)) * double{raised[i][c]});
    }
  }
  return inner;
}

std::size_t width_of_experts() {
  return stats().find("model.layers.2.mlp.experts.0.down_proj", formats::kInputMeanSquare)->count();
}

TEST(StatisticsDirectory, HasTheRangesOfTheSingleFile) {
  const TempDir directory;
  run_calibration(tiny_v32(), documents(), directory / "one.safetensors");
  OutputTensors both = read_statistics(measured().directory / "stats/inputs.safetensors");
  std::erase_if(
      both, [](const auto& tensor) { return tensor.first.ends_with(formats::kExpertSaliency); });
  EXPECT_EQ(both, read_statistics(directory / "one.safetensors"));
}

TEST(StatisticsDirectory, BelongsToItsModelAndText) {
  const formats::CalibrationRecord& record = *stats().record();
  EXPECT_EQ(record.source, check::model_fingerprint(shard::open_source(tiny_v32())));
  EXPECT_EQ(record.documents, 3U);
  EXPECT_EQ(record.tokens, 108U);
  const Measured other;
  EXPECT_EQ(other.open().record()->text, record.text);
  const TempDir directory;
  run_calibration(tiny_v32(), random_documents({90, 1, 18}), directory / "stats", {},
                  {.cache = false, .blocks = false, .moments = false});
  const auto longer = CalibrationStatistics::open(directory / "stats");
  EXPECT_NE(longer.record()->text, record.text);
  EXPECT_EQ(longer.record()->files.size(), 1U) << "other products were left out";
}

TEST(StatisticsDirectory, MeasuresLatentsAsTheyEnterTheCache) {
  const std::string attention = "model.layers.3.self_attn";
  constexpr std::size_t kLatent = 128;
  const Rows inputs = attention_inputs(3);
  const std::size_t width =
      recorded().opened.model.spec().layers[3].find<inference::LatentSpec>()->rope_dim + kLatent;
  const Rows made = product(inputs, attention + ".kv_a_proj_with_mqa.weight", width);
  const inference::WeightStore weights(recorded().opened.source, inference::Profile::kF32, 1);
  const std::vector<float> factors =
      weights.vector(attention + ".kv_a_layernorm.weight", {kLatent});
  double latent = 0, longest = 0, least = 0;
  for (const auto& row : made) {
    double sum = 0;
    for (std::size_t c = 0; c < kLatent; ++c) sum += double{row[c]} * double{row[c]} / kLatent;
    for (std::size_t c = 0; c < kLatent; ++c) {
      latent =
          std::max(latent, std::fabs(double{row[c]} * double{factors[c]} / std::sqrt(sum + 1e-6)));
    }
    // Rotation keeps the length of a pair.
    for (std::size_t c = kLatent; c < width; c += 2) {
      const double length = std::hypot(double{row[c]}, double{row[c + 1]});
      longest = std::max(longest, length);
      least = std::max(least, length / std::sqrt(2.0));
    }
  }
  EXPECT_NEAR(double{values(attention, formats::kLatentAmax).at(0)}, latent, 1e-4 * latent);
  const double key = double{values(attention, formats::kRopeKeyAmax).at(0)};
  EXPECT_LE(key, longest * 1.0001);
  EXPECT_GE(key, least * 0.9999);
  EXPECT_EQ(stats().find("model.layers.5.self_attn", formats::kLatentAmax)->count(), 1U)
      << "of the MTP layer too";
}

TEST(StatisticsDirectory, MeasuresTheSaliencyOfExperts) {
  const Rows inputs = mlp_inputs(2);
  const std::vector<float> saliency = values("model.layers.2", formats::kExpertSaliency);
  ASSERT_EQ(saliency.size(), kExperts);
  for (const std::uint32_t expert : {0U, 7U, 15U}) {
    const std::string name = fmt::format("model.layers.2.mlp.experts.{}", expert);
    const Chosen chosen = chosen_by(2, expert, inputs);
    const Rows out = product(inner_of(name, chosen.rows, width_of_experts()),
                             name + ".down_proj.weight", kHidden);
    double wanted = 0;
    for (std::size_t i = 0; i < out.size(); ++i) {
      double sum = 0;
      for (const float value : out[i]) sum += double{value} * double{value};
      wanted += chosen.weights[i] * std::sqrt(sum) / static_cast<double>(out.size());
    }
    EXPECT_NEAR(double{saliency[expert]}, wanted, 1e-4 * wanted) << expert;
  }
}

TEST(StatisticsDirectory, HasMomentsOfAttentionInputs) {
  const std::vector<double> wanted = moments(attention_inputs(3));
  const std::string attention = "model.layers.3.self_attn.";
  for (const char* module : {"q_a_proj", "kv_a_proj_with_mqa"}) {
    expect_near(values(attention + module, formats::kInputMoments), wanted, module);
    expect_near(values(attention + module, formats::kInputBlockMoments), blocks_of(wanted, kHidden),
                module);
  }
}

TEST(StatisticsDirectory, HasOneMatrixForAllExpertsOfALayer) {
  const std::vector<double> wanted = moments(mlp_inputs(2));
  for (const char* module : {"", ".0.gate_proj", ".15.up_proj"}) {
    expect_near(values(fmt::format("model.layers.2.mlp.experts{}", module), formats::kInputMoments),
                wanted, module);
  }
}

TEST(StatisticsDirectory, HasMomentsOfEachDownProjection) {
  const Rows inputs = mlp_inputs(2);
  for (const std::uint32_t expert : {0U, 15U}) {
    const std::string name = fmt::format("model.layers.2.mlp.experts.{}", expert);
    const Rows inner = inner_of(name, chosen_by(2, expert, inputs).rows, width_of_experts());
    expect_near(values(name + ".down_proj", formats::kInputMoments), moments(inner), name);
  }
}

// The layer's moments count for 32 tokens, with the trace of the expert's.
TEST(StatisticsDirectory, ShrinksBlocksOfExpertsTowardsTheLayer) {
  const Rows inputs = mlp_inputs(2);
  const std::vector<double> all = moments(inputs);
  for (const std::uint32_t expert : {0U, 7U}) {
    const Rows rows = chosen_by(2, expert, inputs).rows;
    std::vector<double> wanted = moments(rows);
    const auto n = static_cast<double>(rows.size());
    const double factor = trace(wanted) / trace(all);
    for (std::size_t i = 0; i < wanted.size(); ++i)
      wanted[i] = (n * wanted[i] + 32 * factor * all[i]) / (n + 32);
    const std::string name = fmt::format("model.layers.2.mlp.experts.{}.up_proj", expert);
    expect_near(values(name, formats::kInputBlockMoments), blocks_of(wanted, kHidden), name);
  }
}

TEST(StatisticsDirectory, LeavesBlocksAsTheyWereSeenOnRequest) {
  const Measured own({}, {.cache = false, .moments = false, .shrinkage = 0});
  const CalibrationStatistics seen = own.open();
  EXPECT_EQ(seen.record()->shrinkage, 0U);
  EXPECT_EQ(stats().record()->shrinkage, 32U);
  const Rows rows = chosen_by(2, 7, mlp_inputs(2)).rows;
  const std::string name = "model.layers.2.mlp.experts.7.up_proj";
  const auto* blocks = seen.find(name, formats::kInputBlockMoments);
  expect_near(seen.finite_values(*blocks), blocks_of(moments(rows), kHidden), name);
}

TEST(StatisticsDirectory, GivesUnvisitedExpertsTheBlocksOfTheLayer) {
  const TempDir directory;
  const auto report = run_calibration(tiny_v32(), random_documents({2}), directory / "stats");
  ASSERT_FALSE(report.unvisited.empty());
  const auto some = CalibrationStatistics::open(directory / "stats");
  const UnvisitedExperts& unvisited = report.unvisited.front();
  const auto name = [&](std::size_t i, const char* projection) {
    return fmt::format("model.layers.{}.mlp.experts.{}.{}", unvisited.layer,
                       unvisited.experts.at(i), projection);
  };
  for (const char* projection : {"gate_proj", "down_proj"}) {
    const auto first = some.find(name(0, projection), formats::kInputBlockMoments);
    const auto second = some.find(name(1, projection), formats::kInputBlockMoments);
    EXPECT_EQ(some.finite_values(*first), some.finite_values(*second)) << projection;
  }
  EXPECT_EQ(some.find(name(0, "down_proj"), formats::kInputMoments), nullptr);
}

TEST(StatisticsDirectory, IgnoresThreadsAndMemory) {
  const auto wanted = files_of(measured().directory / "stats");
  EXPECT_EQ(files_of(Measured({.threads = 3}).directory / "stats"), wanted);
  // The least memory that suffices.
  std::size_t batches = 0;
  CalibrationOptions what;
  what.announce = [&](const CalibrationNeed& need) { batches = need.batches; };
  std::optional<Measured> small;
  for (std::uint64_t limit = 20'000'000; !small; limit += 1'000'000) {
    try {
      small.emplace(RunOptions{.threads = 1, .mem_limit = limit}, what);
    } catch (const Error& error) {
      ASSERT_EQ(error.code(), ErrorCode::kLimit) << error.what();
    }
  }
  EXPECT_GT(batches, 1U);
  EXPECT_EQ(files_of(small->directory / "stats"), wanted);
}

// The first layer is given the embedding, the fourth what three layers of the output make, here by
// the other way.
TEST(StatisticsDirectory, TakesInputsFromQuantizedLayers) {
  const TempDir directory;
  Conversion conversion(tiny_v32(), directory / "int8");
  conversion.recipe.to = formats::SchemeId::kInt8Channel;
  conversion.run();
  const formats::Checkpoint quantized = shard::open_source(conversion.output);
  CalibrationOptions what{.blocks = false, .moments = false};
  what.quantized = &quantized;
  const Measured after({}, what);
  const auto some = after.open();
  EXPECT_NE(some.record()->quantized.find("int8-channel"), std::string::npos);
  const auto squares = [&](const CalibrationStatistics& from, std::size_t layer) {
    return from.finite_values(*from.find(fmt::format("model.layers.{}.self_attn.q_a_proj", layer),
                                         formats::kInputMeanSquare));
  };
  EXPECT_EQ(squares(some, 0), squares(stats(), 0));
  const OpenedModel opened(shard::open_source(conversion.output),
                           {.profile = inference::Profile::kNative, .threads = 1});
  Rows rows;
  for (const Prompt& document : documents()) {
    const Recording recording = ingot::testing::run(
        opened.model, std::vector<std::int64_t>(document.ids.begin(), document.ids.end()));
    const Rows own =
        normalized(matrix_of(recording.hidden.at(3)), "model.layers.3.input_layernorm.weight");
    rows.insert(rows.end(), own.begin(), own.end());
  }
  std::vector<double> wanted(kHidden);
  for (const auto& row : rows) {
    for (std::size_t c = 0; c < kHidden; ++c)
      wanted[c] += double{row[c]} * double{row[c]} / static_cast<double>(rows.size());
  }
  const std::vector<float> is = squares(some, 3), before = squares(stats(), 3);
  double error = 0, difference = 0;
  for (std::size_t c = 0; c < kHidden; ++c) {
    error = std::max(error, std::fabs(double{is[c]} / wanted[c] - 1));
    difference = std::max(difference, std::fabs(double{before[c]} / wanted[c] - 1));
  }
  EXPECT_LT(error, 0.1 * difference);
}

class StoppedCalibration : public InTempDir {
 protected:
  // Stops after so many layers.
  void stop_after(std::uint64_t layers, bool resumes = false) {
    bool is_over = false;
    const StopScope stop([&] { return is_over; }, "it ran");
    const RunOptions options = {.progress = [&](std::uint64_t done, std::uint64_t) {
      for (const auto& entry : fs::recursive_directory_iterator(dir_ / "stats")) {
        struct ::stat facts = {};
        const std::string name = entry.path().filename().string();
        if (!name.starts_with("hidden") && name != "inner" && name != "embedded") continue;
        EXPECT_EQ(::stat(entry.path().c_str(), &facts), 0);
        EXPECT_EQ(facts.st_mode & 0777U, 0600U) << entry.path();
      }
      is_over = done >= layers;
    }};
    CalibrationOptions what;
    what.resume = resumes;
    expect_error(ErrorCode::kInterrupted, {"stopped"},
                 [&] { run_calibration(tiny_v32(), documents(), dir_ / "stats", options, what); });
  }
};

TEST_F(StoppedCalibration, ContinuesToTheSameBytes) {
  for (const std::uint64_t layers : {1U, 4U}) {
    stop_after(layers);
    EXPECT_FALSE(fs::exists(dir_ / "stats/calibration.json"));
    expect_error(ErrorCode::kExists, {"--resume"},
                 [&] { run_calibration(tiny_v32(), documents(), dir_ / "stats"); });
    stop_after(layers + 1, true);
    std::uint64_t done = 0;
    CalibrationOptions what{
        .resume = true, .announce = [&](const CalibrationNeed& need) { done = need.steps_done; }};
    run_calibration(tiny_v32(), documents(), dir_ / "stats", {.threads = 2}, what);
    EXPECT_GE(done, layers);
    EXPECT_EQ(files_of(dir_ / "stats"), files_of(measured().directory / "stats"));
    fs::remove_all(dir_ / "stats");
  }
}

TEST_F(StoppedCalibration, ContinuesOnlyTheSame) {
  stop_after(2);
  CalibrationOptions what{.resume = true};
  expect_error(ErrorCode::kMismatch, {"another text"}, [&] {
    run_calibration(tiny_v32(), random_documents({5}), dir_ / "stats", {}, what);
  });
  what.blocks = false;
  expect_error(ErrorCode::kMismatch, {"another list of products"},
               [&] { run_calibration(tiny_v32(), documents(), dir_ / "stats", {}, what); });
  expect_error(ErrorCode::kNotFound, {"no calibration to be continued"},
               [&] { run_calibration(tiny_v32(), documents(), dir_ / "none", {}, what); });
}

TEST_F(StoppedCalibration, LeavesNothingAfterAnError) {
  expect_error(ErrorCode::kUnsupported, {"two tokens"}, [&] {
    run_calibration(tiny_v32(), random_documents({1, 1}), dir_ / "stats");
  });
  EXPECT_FALSE(fs::exists(dir_ / "stats"));
}

TEST(MomentSums, AddsTokensInTheirOrder) {
  std::mt19937 random(5);
  std::normal_distribution<float> normal;
  for (const std::size_t width : {std::size_t{16}, std::size_t{48}, std::size_t{96}}) {
    inference::Matrix x(300, width);
    for (float& value : x.values()) value = normal(random);
    for (const MomentExtent extent : {MomentExtent::kWhole, MomentExtent::kBlocks}) {
      MomentSums whole(width, extent), parts(width, extent);
      whole.add(x.view(), 3);
      parts.add(x.block(0, 7, 0, width), 1);
      parts.add(x.block(7, 293, 0, width), 1);
      EXPECT_EQ(parts.tokens(), 300U);
      for (std::size_t i = 0; i < width; ++i) {
        for (std::size_t j = 0; j < width; ++j) {
          if (extent == MomentExtent::kBlocks && i / 16 != j / 16) continue;
          double sum = 0;
          for (std::size_t t = 0; t < 300; ++t) sum += double{x.row(t)[i]} * double{x.row(t)[j]};
          ASSERT_EQ(whole.at(i, j), sum) << i << " " << j;
          ASSERT_EQ(parts.at(i, j), sum) << i << " " << j;
        }
      }
    }
  }
}

TEST(MomentSums, TakesAnyWidth) {
  inference::Matrix x(3, 11);
  for (std::size_t i = 0; i < x.values().size(); ++i) x.values()[i] = static_cast<float>(i);
  MomentSums sums(11, MomentExtent::kWhole);
  sums.add(x.view(), 1);
  EXPECT_EQ(sums.at(10, 9), 9.0 * 10 + 20.0 * 21 + 31.0 * 32);
  EXPECT_EQ(sums.at(9, 10), sums.at(10, 9));
}

TEST(MomentSums, AreTheSameOnEveryTarget) {
  std::mt19937 random(6);
  std::normal_distribution<double> normal;
  constexpr std::size_t kTokens = 37, kPanels = 3;
  std::vector<double> panels(kPanels * kTokens * kMomentGroup);
  for (double& value : panels) value = double{static_cast<float>(normal(random) * 1e3)};
  std::vector<double> wanted(kPanels * kMomentGroup * kMomentGroup, 0.125);
  const auto band = [&](std::vector<double>& sums) {
    return MomentBand{.rows = panels.data() + kTokens * kMomentGroup,
                      .columns = panels.data(),
                      .n_panels = kPanels,
                      .n_tokens = kTokens,
                      .sums = sums.data()};
  };
  scalar::add_moments(band(wanted));
  quantize::for_each_target([&] {
    std::vector<double> sums(wanted.size(), 0.125);
    add_moments(band(sums));
    EXPECT_EQ(sums, wanted);
  });
}

}  // namespace
}  // namespace ingot::verify
