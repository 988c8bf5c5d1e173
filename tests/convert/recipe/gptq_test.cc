#include "convert/recipe/statistics.h"
#include "convert/run/moments_factors.h"
#include "formats/records/calibration.h"
#include "quantize/error_feedback.h"
#include "tests/convert/conversion.h"
#include "tests/convert/output_tensors.h"
#include "tests/support/bytes.h"
#include "tests/support/test.h"
#include "tests/support/tiny_checkpoint.h"

// --gptq: second moments of inputs, from a directory of statistics, and their effect on 4-bit
// codes.

namespace ingot::convert {
namespace {

using formats::SchemeId;
using namespace ingot::testing;

constexpr std::size_t kRows = 70, kCols = 192, kGroup = 32;

std::vector<float> random_values(std::size_t n, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(n);
  for (float& value : values) value = normal(random);
  return values;
}

// Inputs that go together the more, the nearer their columns are.
std::vector<float> moments_of_neighbours(std::size_t n, float reach) {
  std::vector<float> moments(n * n);
  for (std::size_t i = 0; i < n; ++i) {
    for (std::size_t k = 0; k < n; ++k)
      moments[i * n + k] = std::pow(reach, static_cast<float>(i > k ? i - k : k - i));
  }
  return moments;
}

// Two weights with the same input, one with another, one whose moments are not positive definite,
// and one that the statistics do not know.
class CarriedOutput : public ::testing::Test {
 protected:
  CarriedOutput() {
    TinyCheckpoint model;
    model.config = R"({"model_type": "none"})";
    std::uint32_t seed = 0;
    for (const char* name : {"a", "b", "c", "indefinite", "unknown"}) {
      weights_[name] = random_values(kRows * kCols, ++seed);
      model.files["model.safetensors"].push_back(
          {std::string(name) + ".weight", "F32", {kRows, kCols}, bytes_of(weights_[name])});
    }
    model.write(directory_ / "in");
    std::vector<float> indefinite = moments_of_neighbours(kCols, 0.5F);
    indefinite[5 * kCols + 9] = indefinite[9 * kCols + 5] = 3;
    moments_ = {{"a", moments_of_neighbours(kCols, 0.9F)},
                {"c", moments_of_neighbours(kCols, 0.6F)},
                {"indefinite", indefinite}};
  }

  std::shared_ptr<const Importance> write() {
    std::map<std::string, std::vector<TinyTensor>> files;
    for (const auto& [name, values] : moments_) {
      const auto size =
          static_cast<std::uint64_t>(std::lround(std::sqrt(static_cast<double>(values.size()))));
      files["moments/none.safetensors"].push_back(
          {name + ".input_moments", "F32", {size, size}, bytes_of(values)});
    }
    files["inputs.safetensors"] = {
        {"a.input_mean_square", "F32", {kCols}, bytes_of(std::vector<float>(kCols, 1.0F))}};
    formats::CalibrationRecord record{.tool_version = "1.2.3",
                                      .source = {},
                                      .text = {},
                                      .documents = 1,
                                      .tokens = 2,
                                      .files = {},
                                      .shared_moments = {{"a", "b"}}};
    for (const auto& [name, tensors] : files) {
      const std::string bytes = safetensors_bytes(tensors);
      write_bytes(directory_ / "stats" / name, bytes);
      record.files.push_back({.name = name, .n_bytes = bytes.size(), .hash = hash_of(bytes)});
    }
    write_bytes(directory_ / "stats" / "calibration.json", formats::calibration_text(record));
    return std::make_shared<const Importance>(Importance::read(directory_ / "stats"));
  }

  Conversion conversion(const std::string& output, std::shared_ptr<const Importance> importance) {
    Conversion made(directory_ / "in", directory_ / output);
    made.family = "generic";
    made.recipe.to.reset();
    made.recipe.rules = {parse_rule("*=int4")};
    made.recipe.choices.dialect = "compressed-tensors";
    made.recipe.choices.group_size = kGroup;
    made.recipe.choices.gptq = true;
    made.recipe.choices.importance = std::move(importance);
    return made;
  }
  void refuse(ErrorCode code, std::initializer_list<std::string> facts, Conversion run) {
    expect_error(code, facts, [&] { run.run(); });
    EXPECT_FALSE(std::filesystem::exists(run.output));
  }

  // The stored scales of one encoder call on a whole matrix.
  std::string scales_of(const std::string& name, const std::string& input) {
    const std::vector<float>& moments = moments_.at(input);
    const auto factor =
        quantize::MomentsFactor::make(kCols, 1, [&](std::size_t row, std::span<float> out) {
          std::copy_n(moments.data() + row * kCols, kCols, out.data());
        });
    std::vector<std::byte> codes(kRows * kCols / 2);
    std::string scales(kRows * kCols / kGroup * 2, '\0');
    quantize::encode_carrying_errors(*quantize::find_scheme(SchemeId::kInt4Group),
                                     {.values = {.data = weights_.at(name).data(),
                                                 .rows = kRows,
                                                 .cols = kCols,
                                                 .stride = kCols},
                                      .block_rows = 1,
                                      .block_cols = kGroup,
                                      .importance = factor.value().mean_squares()},
                                     factor.value(),
                                     {.weight = codes.data(),
                                      .weight_stride = kCols / 2,
                                      .scales = std::as_writable_bytes(std::span(scales)).data(),
                                      .scale_stride = kCols / kGroup * 2});
    return scales;
  }

  TempDir directory_;
  std::map<std::string, std::vector<float>> weights_, moments_;
};

TEST_F(CarriedOutput, TakesTheMomentsOfItsInput) {
  auto run = conversion("out", write());
  const ExecuteReport report = run.run();
  const OutputTensors output = read_output(run.output);
  EXPECT_TRUE(output.at("a.weight_scale").bytes == scales_of("a", "a"));
  EXPECT_TRUE(output.at("b.weight_scale").bytes == scales_of("b", "a"));
  EXPECT_TRUE(output.at("c.weight_scale").bytes == scales_of("c", "c"));
  EXPECT_EQ(report.quality.indefinite, std::vector<std::string>{"indefinite.weight"});
}

TEST_F(CarriedOutput, RoundsPlainlyWhereMomentsDoNotServe) {
  auto run = conversion("out", write()), plain = conversion("plain", nullptr);
  plain.recipe.choices.gptq = false;
  run.run();
  plain.run();
  const OutputTensors output = read_output(run.output), wanted = read_output(plain.output);
  for (const std::string name : {"indefinite", "unknown"}) {
    EXPECT_TRUE(output.at(name + ".weight_packed") == wanted.at(name + ".weight_packed")) << name;
    EXPECT_TRUE(output.at(name + ".weight_scale") == wanted.at(name + ".weight_scale")) << name;
  }
  EXPECT_FALSE(output.at("a.weight_packed") == wanted.at("a.weight_packed"));
}

TEST_F(CarriedOutput, CountsWhatItIsFor) {
  const auto importance = write();
  const auto source = formats::Checkpoint::open(directory_ / "in", {.family = "generic"});
  const Plan plan = plan_for(source, conversion("out", importance).recipe);
  EXPECT_EQ(plan.counts.carriable, 5U);
  EXPECT_EQ(plan.counts.carrying, 4U);
  const FactorMemory one = factor_memory(plan, 1), four = factor_memory(plan, 4);
  EXPECT_EQ(one.n_factors, 3U);
  EXPECT_EQ(one.least, quantize::MomentsFactor::bytes_to_make(kCols));
  EXPECT_EQ(four.useful - one.useful, 3 * quantize::MomentsFactor::bytes(kCols));
}

TEST_F(CarriedOutput, IsTheSameForAnyThreadsAndMemory) {
  const auto importance = write();
  auto one = conversion("one", importance), four = conversion("four", importance);
  four.execute.threads = 4;
  four.execute.mem_limit = std::uint64_t{40} << 20;
  one.run();
  four.run();
  EXPECT_TRUE(read_output(one.output) == read_output(four.output));
}

TEST_F(CarriedOutput, RemembersItselfInTheRecords) {
  auto run = conversion("out", write());
  run.run();
  const auto manifest = formats::read_manifest(run.output).value();
  std::map<std::string, bool> carries;
  for (const formats::TensorRecord& record :
       formats::read_tensor_records(run.output / formats::kRecordsName, manifest.records_hash))
    carries[record.name] = record.carries_errors;
  EXPECT_EQ(carries, (std::map<std::string, bool>{{"a.weight", true},
                                                  {"b.weight", true},
                                                  {"c.weight", true},
                                                  {"indefinite.weight", false},
                                                  {"unknown.weight", false}}));
  run.execute.resume = true;
  EXPECT_TRUE(run.run().already_done);
  run.recipe.choices.gptq = false;
  expect_error(ErrorCode::kMismatch, {"other options"}, [&] { run.run(); });
}

TEST_F(CarriedOutput, IsRefusedWithoutItsMoments) {
  refuse(ErrorCode::kInvalidArgument, {"--gptq", "second moments"}, conversion("out", nullptr));
  const auto importance = write();
  auto run = conversion("out", importance);
  run.recipe.given = {"--gptq"};
  run.recipe.choices.group_size.reset();
  run.recipe.rules = {parse_rule("*=fp8-channel")};
  refuse(ErrorCode::kInvalidArgument, {"--gptq", "int4, nvfp4 and mxfp4"}, run);
  moments_ = {{"a", moments_of_neighbours(64, 0.5F)}};
  refuse(ErrorCode::kShapeMismatch, {"'a'", "[64, 64]", "192 columns"}, conversion("out", write()));
  moments_ = {{"other", moments_of_neighbours(64, 0.5F)}};
  refuse(ErrorCode::kMissingTensor, {"input_moments of none"}, conversion("out", write()));
}

}  // namespace
}  // namespace ingot::convert
