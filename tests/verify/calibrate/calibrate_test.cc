#include "verify/calibrate/calibrate.h"

#include <iostream>

#include "convert/recipe/statistics.h"
#include "formats/base/stop_scope.h"
#include "inference/model/attention/attention.h"
#include "shard/join/source.h"
#include "tests/convert/conversion.h"
#include "tests/convert/output_tensors.h"
#include "tests/inference/generate/perplexity.h"
#include "tests/inference/model/runner.h"
#include "tests/support/test.h"
#include "tests/support/tiny_checkpoint.h"
#include "tests/verify/calibrate/recorded_inputs.h"
#include "verify/calibrate/expert_loads.h"
#include "verify/calibrate/input_statistics.h"

namespace ingot::testing {

/// The definition of the statistics, in double, over rows of equal length.
struct NaiveStatistics {
  double min = 0, max = 0;
  std::vector<double> mean_square;

  explicit NaiveStatistics(const std::vector<std::vector<float>>& rows) {
    mean_square.resize(rows.at(0).size());
    for (const auto& row : rows) {
      for (std::size_t c = 0; c < row.size(); ++c) {
        const double x = row[c];
        min = std::min(min, x);
        max = std::max(max, x);
        mean_square[c] += x * x / static_cast<double>(rows.size());
      }
    }
  }

  /// Within the differences of FP32 sums in another order.
  void expect_equal(const OutputTensors& statistics, const std::string& module) const {
    const auto number = [&](const char* suffix) {
      return double{statistics.at(module + suffix).as<float>().at(0)};
    };
    const double largest = std::max(max, -min);
    EXPECT_NEAR(number(".input_min"), min, 1e-5 * largest) << module;
    EXPECT_NEAR(number(".input_max"), max, 1e-5 * largest) << module;
    EXPECT_NEAR(number(".input_amax"), largest, 1e-5 * largest) << module;
    const auto squares = statistics.at(module + ".input_mean_square").as<float>();
    ASSERT_EQ(squares.size(), mean_square.size()) << module;
    for (std::size_t c = 0; c < squares.size(); ++c)
      EXPECT_NEAR(double{squares[c]}, mean_square[c], 1e-4 * mean_square[c]) << module << " " << c;
  }
};

}  // namespace ingot::testing

// Statistics of tiny-v32 against those that follow from the hidden states of another pass over the
// model.

namespace ingot::verify {
namespace {

using namespace ingot::testing;
using inference::Matrix;

struct Calibrated {
  TempDir directory;
  CalibrationReport report;
  OutputTensors statistics;

  explicit Calibrated(const std::vector<Prompt>& read, const RunOptions& options = {}) {
    report = run_calibration(tiny_v32(), read, directory / "statistics.safetensors", options);
    statistics = read_statistics(directory / "statistics.safetensors");
  }
};

const Calibrated& calibrated() {
  static const Calibrated once(documents());
  return once;
}

TEST(Calibrate, MeasuresTheInputNormBeforeAttention) {
  for (const std::size_t layer : {std::size_t{0}, std::size_t{3}}) {
    const NaiveStatistics naive(attention_inputs(layer));
    const std::string prefix = fmt::format("model.layers.{}.self_attn.", layer);
    naive.expect_equal(calibrated().statistics, prefix + "q_a_proj");
    naive.expect_equal(calibrated().statistics, prefix + "kv_a_proj_with_mqa");
    naive.expect_equal(calibrated().statistics, prefix + "indexer.wk");
  }
}

TEST(Calibrate, MeasuresADenseMlp) {
  const Rows inputs = mlp_inputs(0);
  NaiveStatistics(inputs).expect_equal(calibrated().statistics, "model.layers.0.mlp.gate_proj");
  NaiveStatistics(inputs).expect_equal(calibrated().statistics, "model.layers.0.mlp.up_proj");
  Rows gated = product(inputs, "model.layers.0.mlp.gate_proj.weight", 640);
  const Rows raised = product(inputs, "model.layers.0.mlp.up_proj.weight", 640);
  for (std::size_t i = 0; i < gated.size(); ++i) {
    for (std::size_t c = 0; c < 640; ++c) {
      const double x = gated[i][c];
      gated[i][c] = static_cast<float>(x / (1 + std::exp(-x)) * double{raised[i][c]});
    }
  }
  NaiveStatistics(gated).expect_equal(calibrated().statistics, "model.layers.0.mlp.down_proj");
}

TEST(Calibrate, MeasuresExpertsOnTheirOwnTokens) {
  const Rows inputs = mlp_inputs(2);
  std::vector<std::uint32_t> chosen;
  for (const Recording& document : recorded().documents) {
    const auto& experts = document.experts.at(2);
    chosen.insert(chosen.end(), experts.begin(), experts.end());
  }
  ASSERT_EQ(chosen.size(), inputs.size() * kTopk);
  for (const std::uint32_t expert : {0U, 7U, 15U}) {
    Rows own;
    for (std::size_t i = 0; i < chosen.size(); ++i) {
      if (chosen[i] == expert) own.push_back(inputs[i / kTopk]);
    }
    ASSERT_FALSE(own.empty()) << "the documents reach every expert";
    NaiveStatistics(own).expect_equal(calibrated().statistics,
                                      fmt::format("model.layers.2.mlp.experts.{}.up_proj", expert));
  }
}

TEST(Calibrate, MeasuresTheHead) {
  Rows rows;
  for (const Recording& document : recorded().documents) {
    const Rows some = normalized(matrix_of(document.hidden.at(kLayers)), "model.norm.weight");
    rows.insert(rows.end(), some.begin(), some.end());
  }
  NaiveStatistics(rows).expect_equal(calibrated().statistics, "lm_head");
}

TEST(Calibrate, CountsTheTokensOfEveryExpert) {
  const std::size_t n_tokens = 90 + 1 + 17;
  EXPECT_EQ(calibrated().report.tokens, n_tokens);
  EXPECT_EQ(calibrated().report.documents, 3U);
  for (std::size_t layer = 1; layer <= kLayers; ++layer) {
    const auto tokens = calibrated()
                            .statistics.at(fmt::format("model.layers.{}.expert_tokens", layer))
                            .as<std::int64_t>();
    ASSERT_EQ(tokens.size(), kExperts);
    std::int64_t sum = 0;
    for (const std::int64_t n : tokens) sum += n;
    // The last token of a document has no next one, which the MTP layer needs.
    const std::size_t seen = layer == kLayers ? n_tokens - 3 : n_tokens;
    EXPECT_EQ(sum, static_cast<std::int64_t>(seen * kTopk)) << layer;
    if (layer == kLayers) continue;
    std::vector<std::int64_t> counted(kExperts);
    for (const Recording& document : recorded().documents) {
      for (const std::uint32_t expert : document.experts.at(layer)) ++counted[expert];
    }
    EXPECT_EQ(tokens, counted) << layer;
  }
  EXPECT_FALSE(calibrated().statistics.contains("model.layers.0.expert_tokens"));
}

TEST(Calibrate, KnowsEveryModuleThatMayBeQuantized) {
  std::set<std::string> modules;
  for (const auto& [name, tensor] : ingot::testing::read_output(tiny_v32())) {
    if (tensor.dtype == formats::DType::kF8E4M3) modules.insert(module_of(name));
  }
  modules.insert({"lm_head", "model.layers.5.eh_proj"});
  for (const std::string& module : modules) {
    const auto width = calibrated().statistics.at(module + ".input_mean_square").shape.at(0);
    EXPECT_GT(width, 0U);
    for (const char* one : {".input_amax", ".input_min", ".input_max"})
      EXPECT_EQ(calibrated().statistics.at(module + one).shape, formats::Shape{1}) << module;
  }
  std::size_t others = 0;
  for (const auto& [name, tensor] : calibrated().statistics) {
    if (name.ends_with(".expert_tokens")) continue;
    others += modules.contains(name.substr(0, name.rfind('.'))) ? 0U : 1U;
  }
  EXPECT_EQ(others, calibrated().statistics.contains("model.layers.5.shared_head.head.input_amax")
                        ? 4U
                        : 0U);
  EXPECT_GE(calibrated().report.modules, modules.size());
}

// The indexer's queries are made from q_b_proj's input, even of documents too short for it to run.
TEST(Calibrate, GivesAnIdleIndexerWhatItsTwinSaw) {
  const Calibrated brief(random_documents({40}));
  for (const Calibrated* file : {&brief, &calibrated()}) {
    EXPECT_EQ(file->statistics.at("model.layers.2.self_attn.indexer.wq_b.input_mean_square"),
              file->statistics.at("model.layers.2.self_attn.q_b_proj.input_mean_square"));
  }
}

TEST(Calibrate, FillsUnvisitedExpertsFromTheirPeers) {
  const Calibrated brief(random_documents({2}));
  ASSERT_EQ(brief.report.unvisited.size(), kLayers) << "two tokens reach eight experts at most";
  for (const UnvisitedExperts& unvisited : brief.report.unvisited) {
    const std::string prefix = fmt::format("model.layers.{}.", unvisited.layer);
    const auto tokens = brief.statistics.at(prefix + "expert_tokens").as<std::int64_t>();
    std::vector<std::uint32_t> empty;
    for (std::uint32_t e = 0; e < kExperts; ++e) {
      if (tokens[e] == 0) empty.push_back(e);
    }
    EXPECT_EQ(unvisited.experts, empty);
    const auto values = [&](std::uint32_t expert, const std::string& what) {
      return brief.statistics.at(fmt::format("{}mlp.experts.{}.{}", prefix, expert, what))
          .as<float>();
    };
    for (const std::string what : {"down_proj.input_mean_square", "gate_proj.input_amax",
                                   "up_proj.input_max", "down_proj.input_min"}) {
      std::vector<float> most(values(0, what).size(), 0.0F);
      for (std::uint32_t e = 0; e < kExperts; ++e) {
        if (tokens[e] == 0) continue;
        for (std::size_t i = 0; i < most.size(); ++i) {
          const float value = values(e, what)[i];
          if (std::fabs(value) > std::fabs(most[i])) most[i] = value;
        }
      }
      for (const std::uint32_t e : empty) EXPECT_EQ(values(e, what), most) << prefix << what;
    }
  }
}

// Attention expands keys and values of some heads at a time from the same latents.
TEST(Calibrate, SeesRunsOfRowsOnce) {
  struct Counter final : inference::InputObserver {
    void see(std::string_view weight, std::size_t, formats::MatrixView<const float> x) override {
      EXPECT_EQ(weight, "model.layers.0.self_attn.kv_b_proj.weight");
      rows += x.rows;
    }
    std::size_t rows = 0;
  } counter;
  const inference::WeightStore weights(recorded().opened.source, inference::Profile::kF32, 1,
                                       &counter);
  const inference::Linear whole =
      weights.linear("model.layers.0.self_attn.kv_b_proj.weight", 512, 128, {0, 512}, {0, 128});
  const Matrix x(3, 128);
  Matrix y(3, 256);
  whole.row_range(0, 256).apply(x.view(), y.view(), 1);
  whole.row_range(256, 256).apply(x.view(), y.view(), 1);
  EXPECT_EQ(counter.rows, 3U);
}

TEST(Calibrate, IgnoresThreads) {
  const Calibrated three(documents(), {.threads = 3});
  EXPECT_EQ(read_text_file(three.directory / "statistics.safetensors", 1U << 26),
            read_text_file(calibrated().directory / "statistics.safetensors", 1U << 26));
}

TEST(Calibrate, SaysInTheFileWhatWasRead) {
  const Fd file = Fd::open_for_reading(calibrated().directory / "statistics.safetensors");
  const std::vector<std::pair<std::string, std::string>> wanted = {
      {"ingot_calibration", "1"}, {"documents", "3"}, {"tokens", "108"}};
  EXPECT_EQ(formats::read_safetensors_header(file).metadata, wanted);
}

TEST(Calibrate, NamesEveryExpertOfAStack) {
  auto model = ingot::testing::tiny_deepseek_v3();
  model.config.insert(model.config.rfind('}'),
                      R"(, "rms_norm_eps": 1e-6, "rope_theta": 10000, "hidden_act": "silu",
                      "max_position_embeddings": 64, "scoring_func": "sigmoid")");
  auto& tensors = model.files.begin()->second;
  std::erase_if(tensors, [](const auto& tensor) {
    return tensor.name.find(".mlp.experts.") != std::string::npos;
  });
  tensors.push_back({"model.layers.1.mlp.experts.gate_up_proj", "BF16", {2, 8, 8}});
  tensors.push_back({"model.layers.1.mlp.experts.down_proj", "BF16", {2, 8, 4}});
  const TempDir directory;
  model.write(directory / "model");
  const auto report = run_calibration(directory / "model", random_documents({3}, 16),
                                      directory / "statistics.safetensors");
  const OutputTensors statistics = read_statistics(directory / "statistics.safetensors");
  for (const std::string expert : {"0", "1"}) {
    const std::string prefix = "model.layers.1.mlp.experts." + expert;
    EXPECT_EQ(statistics.at(prefix + ".gate_proj.input_mean_square").shape, formats::Shape{8});
    EXPECT_EQ(statistics.at(prefix + ".up_proj.input_mean_square").shape, formats::Shape{8});
    EXPECT_EQ(statistics.at(prefix + ".down_proj.input_mean_square").shape, formats::Shape{4});
  }
  EXPECT_EQ(report.unvisited.size(), 1U) << "all tokens are alike to a router of zeros";
}

TEST(Calibrate, RefusesExpertsThatSeveralLayersHave) {
  const TempDir directory;
  expect_error(ErrorCode::kUnsupported, {"layer 2", "routed experts of another layer"}, [&] {
    run_calibration(INGOT_SOURCE_DIR "/tests/golden/forward/interns2_mobius/checkpoint",
                    random_documents({3}, 16), directory / "statistics.safetensors");
  });
}

// Calibrations that cannot be done, and their leftovers.

class BadCalibration : public ::testing::Test {
 protected:
  void refuse(ErrorCode code, std::initializer_list<std::string> facts,
              const std::vector<Prompt>& read, const RunOptions& options = {}) {
    expect_error(code, facts, [&] {
      run_calibration(tiny_v32(), read, directory_ / "statistics.safetensors", options);
    });
    EXPECT_TRUE(std::filesystem::is_empty(directory_.path())) << "nothing is left behind";
  }
  TempDir directory_;
};

TEST_F(BadCalibration, NeedsTokens) {
  refuse(ErrorCode::kInvalidArgument, {"no document"}, {});
  refuse(ErrorCode::kInvalidArgument, {"document 2 of 2 is empty"}, random_documents({5, 0}));
  refuse(ErrorCode::kUnsupported, {"two tokens", "MTP", "more text"}, random_documents({1, 1}));
}

TEST_F(BadCalibration, SaysHowMuchMemoryWouldBeEnough) {
  refuse(ErrorCode::kLimit, {"--mem-limit", "would be enough"}, random_documents({10}),
         {.mem_limit = 1'000'000});
}

TEST_F(BadCalibration, StopsInsideALayer) {
  int left = 20;
  const StopScope stop([&] { return --left < 0; }, "it ran");
  refuse(ErrorCode::kInterrupted, {"stopped"}, random_documents({5}),
         {.progress = [](std::uint64_t, std::uint64_t) { FAIL() << "a layer was finished"; }});
}

TEST_F(BadCalibration, CountsOfTokensStopInsideALayer) {
  int left = 20;
  const RunOptions options = {
      .progress = [](std::uint64_t, std::uint64_t) { FAIL() << "a layer was finished"; }};
  const formats::Checkpoint source = shard::open_source(tiny_v32());
  const StopScope stop([&] { return --left < 0; }, "it ran");
  expect_error(ErrorCode::kInterrupted, {"stopped"},
               [&] { count_expert_loads(source, random_documents({5}), options); });
}

TEST_F(BadCalibration, ReplacesNoFile) {
  ingot::testing::write_bytes(directory_ / "statistics.safetensors", "mine");
  expect_error(ErrorCode::kExists, {"statistics.safetensors", "remove it"}, [&] {
    run_calibration(tiny_v32(), random_documents({5}), directory_ / "statistics.safetensors");
  });
  EXPECT_EQ(read_text_file(directory_ / "statistics.safetensors", 100), "mine");
}

// From text to a static checkpoint, and to one whose scales were searched with weights.

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
