#include "convert/recipe/statistics.h"
#include "quantize/scheme.h"
#include "tests/convert/conversion.h"
#include "tests/convert/output_tensors.h"
#include "tests/support/bytes.h"
#include "tests/support/test.h"
#include "tests/support/tiny_checkpoint.h"

// --importance: how much columns matter, from a file, and its effect on NVFP4.

namespace ingot::convert {
namespace {

using formats::SchemeId;
using namespace ingot::testing;

// More columns than are encoded at once, and rows.
constexpr std::size_t kRows = 24, kCols = 20'480, kShort = 64;

std::vector<float> random_values(std::size_t n, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(n);
  for (float& value : values) value = normal(random);
  return values;
}

std::vector<float> random_importance(std::size_t n, std::uint32_t seed) {
  std::vector<float> values = random_values(n, seed);
  for (float& value : values) value = std::exp(2 * value);
  return values;
}

TinyTensor mean_squares(const std::string& module, const std::vector<float>& values) {
  return {module + ".input_mean_square", "F32", {values.size()}, bytes_of(values)};
}

class ImportanceFile : public ::testing::Test {
 protected:
  std::filesystem::path path() const { return directory_ / "statistics.safetensors"; }
  std::shared_ptr<const Importance> write(const std::vector<TinyTensor>& tensors) {
    write_bytes(path(), safetensors_bytes(tensors));
    return std::make_shared<const Importance>(Importance::read(path()));
  }
  void refuse(const std::vector<TinyTensor>& tensors, std::initializer_list<std::string> facts) {
    expect_error(ErrorCode::kCorrupt, facts, [&] { write(tensors); });
  }
  TempDir directory_;
};

TEST_F(ImportanceFile, GivesMeanSquaresByModule) {
  const auto importance = write({mean_squares("a", {1, 2, 0}),
                                 mean_squares("b", {5}),
                                 {"c.input_amax", "F32", {1}, bytes_of<float>({3})}});
  EXPECT_EQ(importance->file().values(*importance->file().find("a", formats::kInputMeanSquare)),
            (std::vector<float>{1, 2, 0}));
  EXPECT_EQ(importance->file().values(*importance->file().find("b", formats::kInputMeanSquare)),
            std::vector<float>{5});
  EXPECT_EQ(importance->file().find("c", formats::kInputMeanSquare), nullptr);
  EXPECT_TRUE(importance->filled().empty());
}

TEST_F(ImportanceFile, NamesTheExpertsThatNoTokenReached) {
  const std::vector<std::int64_t> tokens = {4, 0, 1, 0};
  const auto importance =
      write({{"model.layers.3.expert_tokens", "I64", {4}, bytes_of(tokens)},
             {"model.layers.4.expert_tokens", "I64", {2}, bytes_of<std::int64_t>({1, 1})}});
  EXPECT_EQ(importance->filled(), (FilledExperts{{"model.layers.3", {1, 3}}}));
}

TEST_F(ImportanceFile, IsRefusedWhenItIsNotOne) {
  refuse({mean_squares("a", {1, -2})}, {"'a'", "mean square of -2 in column 1"});
  refuse({mean_squares("a", {NAN})}, {"'a'"});
  refuse({mean_squares("a", {1, INFINITY})}, {"'a'"});
  refuse({mean_squares("a", {-1}), mean_squares("b", {-1})}, {"'a'", "'b'"});
  refuse({{"a.input_mean_square", "F32", {2, 2}}}, {"a.input_mean_square", "F32 [K]"});
  refuse({{"a.input_mean_square", "BF16", {2}}}, {"a.input_mean_square", "F32 [K]"});
  refuse({{"a.input_mean_square", "F32", {0}}}, {"a.input_mean_square", "F32 [K]"});
  refuse({{"a.expert_tokens", "F32", {2}}}, {"a.expert_tokens", "I64 [E]"});
  refuse({{"a.expert_tokens", "I64", {1}, bytes_of<std::int64_t>({-5})}}, {"expert 0 saw -5"});
  refuse({{"a.weight", "F32", {1}}}, {"a.weight", "MODULE.input_mean_square"});
  refuse({{".input_mean_square", "F32", {1}}}, {"is none of"});
}

// A wide weight, and one without statistics.
class WeightedOutput : public ImportanceFile {
 protected:
  WeightedOutput() {
    TinyCheckpoint model;
    model.config = R"({"model_type": "none"})";
    const auto add = [&](const std::string& name, std::vector<std::uint64_t> shape,
                         const std::vector<float>& values) {
      model.files["model.safetensors"].push_back({name, "F32", std::move(shape), bytes_of(values)});
    };
    add("wide.weight", {kRows, kCols}, wide_);
    add("unknown.weight", {kRows, kShort}, random_values(kRows * kShort, 3));
    model.write(directory_ / "in");
  }

  static std::vector<TinyTensor> statistics() {
    return {mean_squares("wide", random_importance(kCols, 4)), mean_squares("other", {1, 2})};
  }

  Conversion conversion(const std::string& output,
                        std::shared_ptr<const Importance> importance) const {
    Conversion made(directory_ / "in", directory_ / output);
    made.family = "generic";
    made.recipe.to.reset();
    made.recipe.rules = {parse_rule("*=nvfp4")};
    made.recipe.choices.dialect = "modelopt";
    made.recipe.choices.activations = formats::Activations::kWeightOnly;
    made.recipe.choices.importance = std::move(importance);
    return made;
  }

  // The result of one encoder call on a whole matrix.
  static std::pair<std::string, std::string> encoded(const std::vector<float>& values, float global,
                                                     const std::vector<float>& importance,
                                                     const std::vector<float>& moments = {}) {
    const std::vector<quantize::MomentBlock> blocks = quantize::factor_moments(moments, 1);
    std::string codes(kRows * kCols / 2, '\0'), scales(kRows * kCols / 16, '\0');
    quantize::find_scheme(SchemeId::kNvfp4)
        ->encode({.values = {.data = values.data(), .rows = kRows, .cols = kCols, .stride = kCols},
                  .block_rows = 1,
                  .block_cols = 16,
                  .global = global,
                  .importance = importance,
                  .moments = blocks,
                  .options = {.search = moments.empty() ? quantize::ScaleSearch::kMse
                                                        : quantize::ScaleSearch::kHessian}},
                 {.weight = std::as_writable_bytes(std::span(codes)).data(),
                  .weight_stride = kCols / 2,
                  .scales = std::as_writable_bytes(std::span(scales)).data(),
                  .scale_stride = kCols / 16});
    return {codes, scales};
  }

  std::vector<float> wide_ = random_values(kRows * kCols, 1);
};

// Moments of inputs that have a share in common with all of their block.
std::vector<float> random_moments(std::size_t cols, std::uint32_t seed) {
  constexpr std::size_t kSide = quantize::kMomentBlock;
  const std::vector<float> sizes = random_importance(cols, seed);
  std::vector<float> moments(cols * kSide);
  for (std::size_t c = 0; c < cols; ++c) {
    const std::size_t first = c / kSide * kSide;
    for (std::size_t i = 0; i < kSide; ++i) {
      const double share = first + i == c ? 1.0 : 0.4;
      moments[c * kSide + i] =
          static_cast<float>(share * std::sqrt(double{sizes[c]} * double{sizes[first + i]}));
    }
  }
  return moments;
}

TinyTensor block_moments(const std::string& module, const std::vector<float>& values) {
  return {module + ".input_block_moments", "F32", {values.size() / 256, 16, 16}, bytes_of(values)};
}

class OutputByMoments : public WeightedOutput {
 protected:
  // A directory, in which moments have a file of their own.
  std::shared_ptr<const Importance> write_directory(const std::vector<TinyTensor>& tensors) {
    std::map<std::string, std::vector<TinyTensor>> files;
    for (const TinyTensor& tensor : tensors) {
      const bool is_block = tensor.name.ends_with(formats::kInputBlockMoments);
      files[std::string(is_block ? formats::kBlocksName : formats::kInputsName)].push_back(tensor);
    }
    const std::filesystem::path path = directory_ / fmt::format("stats{}", ++n_directories_);
    std::filesystem::create_directory(path);
    formats::CalibrationRecord record{.tool_version = "0", .documents = 1, .tokens = 1};
    for (const auto& [name, some] : files) {
      const std::string bytes = safetensors_bytes(some);
      write_bytes(path / name, bytes);
      TensorHasher hasher;
      hasher.update(std::as_bytes(std::span(bytes)));
      record.files.push_back({.name = name, .n_bytes = bytes.size(), .hash = hasher.finish()});
    }
    write_bytes(path / std::string(formats::kCalibrationName), formats::calibration_text(record));
    return std::make_shared<const Importance>(Importance::read(path));
  }
  Conversion by_moments(const std::string& output, const std::vector<TinyTensor>& tensors) {
    Conversion made = conversion(output, write_directory(tensors));
    made.recipe.choices.search = quantize::ScaleSearch::kHessian;
    return made;
  }
  int n_directories_ = 0;
};

TEST_F(WeightedOutput, WeighsEveryColumnByItself) {
  const auto importance = write(statistics());
  auto run = conversion("out", importance);
  run.run();
  const OutputTensors output = read_output(run.output);
  const float global = output.at("wide.weight_scale_2").as<float>().at(0);
  const auto wanted = encoded(wide_, global, random_importance(kCols, 4));
  EXPECT_TRUE(output.at("wide.weight").bytes == wanted.first);
  EXPECT_TRUE(output.at("wide.weight_scale").bytes == wanted.second);
  const auto plain = encoded(wide_, global, {});
  EXPECT_FALSE(plain.second == wanted.second) << "importance changes something";
}

TEST_F(WeightedOutput, CountsWeightsUnknownToTheFile) {
  auto plain = conversion("plain", nullptr);
  plain.run();
  auto run = conversion("out", write(statistics()));
  run.run();
  const OutputTensors before = read_output(plain.output), after = read_output(run.output);
  for (const std::string part : {"weight", "weight_scale", "weight_scale_2"})
    EXPECT_TRUE(before.at("unknown." + part) == after.at("unknown." + part)) << part;
  const auto source = formats::Checkpoint::open(run.input, {.family = "generic"});
  const Plan plan = plan_for(source, run.recipe);
  EXPECT_EQ(plan.counts.searched, 2U);
  EXPECT_EQ(plan.counts.weighted, 1U);
}

TEST_F(WeightedOutput, IsTheSameForAnyNumberOfThreads) {
  const auto importance = write(statistics());
  auto one = conversion("one", importance), three = conversion("three", importance);
  three.execute.threads = 3;
  one.run();
  three.run();
  EXPECT_TRUE(read_output(one.output) == read_output(three.output));
}

TEST_F(WeightedOutput, SaysWhichFileItWasMadeWith) {
  const auto importance = write(statistics());
  auto run = conversion("out", importance);
  run.run();
  const std::string manifest = read_text_file(run.output / "ingot.json", 1 << 20);
  EXPECT_THAT(manifest, ::testing::HasSubstr(
                            fmt::format("\"importance\": \"{}\"", importance->hash().hex())));
  run.execute.resume = true;
  EXPECT_TRUE(run.run().already_done);
  auto other = statistics();
  other.pop_back();
  run.recipe.choices.importance = write(other);
  expect_error(ErrorCode::kMismatch, {"other options"}, [&] { run.run(); });
}

TEST_F(WeightedOutput, IsRefusedWhereNothingCanBeWeighted) {
  const auto refuse = [&](ErrorCode code, std::initializer_list<std::string> facts,
                          Conversion run) {
    expect_error(code, facts, [&] { run.run(); });
    EXPECT_FALSE(std::filesystem::exists(run.output));
  };
  const auto importance = write(statistics());
  auto run = conversion("out", importance);
  run.recipe.choices.search = quantize::ScaleSearch::kAmax;
  refuse(ErrorCode::kInvalidArgument, {"--importance", "--search amax", "mse"}, run);
  run = conversion("out", importance);
  run.recipe.rules = {parse_rule("*=bf16")};
  refuse(ErrorCode::kInvalidArgument, {"--importance", "no tensor", "leave a choice"}, run);
  refuse(ErrorCode::kMissingTensor, {"none of the tensors", "another model"},
         conversion("out", write({mean_squares("other", {1})})));
  refuse(ErrorCode::kShapeMismatch, {"'wide'", "[16]", "20480 columns"},
         conversion("out", write({mean_squares("wide", std::vector<float>(16, 1.0F))})));
}

TEST_F(OutputByMoments, GivesEveryColumnItsMoments) {
  const std::vector<float> moments = random_moments(kCols, 5);
  auto run = by_moments("out", {block_moments("wide", moments)});
  run.execute.threads = 2;
  run.run();
  const OutputTensors output = read_output(run.output);
  const float global = output.at("wide.weight_scale_2").as<float>().at(0);
  const auto wanted = encoded(wide_, global, {}, moments);
  EXPECT_TRUE(output.at("wide.weight").bytes == wanted.first);
  EXPECT_TRUE(output.at("wide.weight_scale").bytes == wanted.second);
  EXPECT_FALSE(encoded(wide_, global, {}).second == wanted.second);
  const std::string manifest = read_text_file(run.output / "ingot.json", 1 << 20);
  EXPECT_THAT(manifest, ::testing::HasSubstr("\"search\": \"hessian\""));
}

TEST_F(OutputByMoments, FallsBackToMeanSquaresThenToMse) {
  const std::vector<TinyTensor> tensors = {block_moments("wide", random_moments(kCols, 5)),
                                           mean_squares("unknown", random_importance(kShort, 6))};
  auto run = by_moments("out", tensors);
  run.run();
  auto weighted = conversion("weighted", write_directory(tensors)),
       plain = conversion("plain", nullptr);
  weighted.run();
  auto by_wide = by_moments("wide", {tensors[0]});
  by_wide.run();
  plain.run();
  const auto scales = [](const Conversion& of) {
    return read_output(of.output).at("unknown.weight_scale").bytes;
  };
  EXPECT_EQ(scales(run), scales(weighted));
  EXPECT_EQ(scales(by_wide), scales(plain));
  EXPECT_NE(scales(run), scales(plain));
  const auto source = formats::Checkpoint::open(run.input, {.family = "generic"});
  const Plan plan = plan_for(source, run.recipe);
  EXPECT_EQ(plan.counts.weighted, 2U);
  EXPECT_EQ(plan.counts.by_moments, 1U);
}

TEST_F(OutputByMoments, IsRefusedWithoutMoments) {
  const auto refuse = [&](ErrorCode code, std::initializer_list<std::string> facts,
                          Conversion run) {
    expect_error(code, facts, [&] { run.run(); });
    EXPECT_FALSE(std::filesystem::exists(run.output));
  };
  auto run = conversion("out", nullptr);
  run.recipe.choices.search = quantize::ScaleSearch::kHessian;
  refuse(ErrorCode::kInvalidArgument, {"--search hessian", "--importance"}, run);
  refuse(ErrorCode::kMissingTensor, {"moments of the inputs of none"},
         by_moments("out", statistics()));
  refuse(ErrorCode::kShapeMismatch, {"'wide'", "[2, 16, 16]", "20480 columns"},
         by_moments("out", {block_moments("wide", random_moments(32, 5))}));
  std::vector<float> moments = random_moments(kCols, 5);
  moments[256 * 3 + 1] = 1e30F;
  run = by_moments("out", {block_moments("wide", moments)});
  expect_error(ErrorCode::kCorrupt, {"wide.input_block_moments", "block 3 is not symmetric"},
               [&] { run.run(); });
}

}  // namespace
}  // namespace ingot::convert
