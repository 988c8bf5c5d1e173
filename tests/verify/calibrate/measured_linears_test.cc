#include "convert/recipe/statistics.h"
#include "formats/base/stop_scope.h"
#include "formats/dialect/dialect.h"
#include "formats/family/families.h"
#include "formats/records/calibration.h"
#include "inference/family/model_family.h"
#include "tests/support/test.h"
#include "tests/verify/calibrate/recorded_inputs.h"
#include "verify/calibrate/input_statistics.h"
#include "verify/calibrate/layer_moments.h"

// Every weight that some dialect holds quantized has statistics of its inputs, in every family with
// a forward pass: in the small checkpoints with recordings (tests/golden/PROVENANCE.md). Figures of
// linear attention and of a state space against those of transformers.

namespace ingot::verify {
namespace {

using namespace ingot::testing;
using formats::LogicalTensor;

const std::filesystem::path kGolden = INGOT_SOURCE_DIR "/tests/golden";

/// Checkpoints with MTP layers that the forward pass leaves out.
const std::set<std::string> kIdleLayers = {"deepseek_v4",  "deepseek_v4_base", "deepseek_v4_dspark",
                                           "qwen3_5",      "qwen3_5_moe",      "qwen3_5_moe_fp8",
                                           "qwen3_5_text", "qwen3_next"};

/// True for a weight whose missing statistics are accounted for.
bool is_excepted(const LogicalTensor& tensor, Unmeasured why, const std::string& checkpoint) {
  // Towers for images and sound take no part in the forward pass of text.
  if (why == Unmeasured::kNotComputed) return tensor.rule->role == formats::Role::kOtherModality;
  return why == Unmeasured::kIdleLayer && kIdleLayers.contains(checkpoint);
}

/// Its layers compute with experts of others, and are refused (Calibrate).
constexpr std::string_view kRefused = "interns2_mobius";

std::vector<std::filesystem::path> recorded_checkpoints() {
  std::vector<std::filesystem::path> all = {tiny_v32()};
  for (const char* const folder : {"arch", "arch_variants", "forward"}) {
    for (const auto& entry : std::filesystem::directory_iterator(kGolden / folder)) {
      const std::string name = entry.path().filename();
      const std::filesystem::path own = entry.path() / "checkpoint";
      if (name == kRefused || !std::filesystem::exists(entry.path() / "golden.safetensors"))
        continue;
      all.push_back(std::filesystem::exists(own) ? own : kGolden / "families" / name);
    }
  }
  std::ranges::sort(all);
  return all;
}

std::string name_of(const std::filesystem::path& checkpoint) {
  const std::filesystem::path name = checkpoint.filename();
  if (name == "checkpoint") return checkpoint.parent_path().filename();
  return name == "tiny-v32" ? "tiny_v32" : name.string();
}

bool is_held_quantized(const LogicalTensor& tensor) {
  return tensor.rule != nullptr && tensor.shape.size() >= 2 &&
         std::ranges::any_of(formats::dialects(), [&](const formats::Dialect* dialect) {
           return formats::can_be_quantized(*dialect, *tensor.rule);
         });
}

/// The names under which a conversion looks for the statistics of a weight.
std::vector<std::string> names_in_statistics(const formats::Checkpoint& source,
                                             const LogicalTensor& tensor) {
  std::vector<std::string> names;
  for (std::uint64_t i = 0; i < convert::input_matrices(tensor); ++i)
    std::ranges::move(convert::input_modules(source, tensor, i), std::back_inserter(names));
  return names;
}

class MeasuredLinears : public ::testing::TestWithParam<std::filesystem::path> {};

TEST_P(MeasuredLinears, AreAllThatMayBeQuantized) {
  const formats::Checkpoint source = shard::open_source(GetParam());
  const inference::ModelSpec spec = inference::model_spec(source.family(), source.config());
  const TempDir directory;
  const std::filesystem::path file = directory / "statistics.safetensors";
  run_calibration(GetParam(), random_documents({20}, 16), file);
  const OutputTensors statistics = read_statistics(file);
  std::size_t n_measured = 0;
  for (const LogicalTensor& tensor : source.tensors()) {
    if (!is_held_quantized(tensor)) continue;
    if (const auto why = why_unmeasured(tensor, spec)) {
      EXPECT_TRUE(is_excepted(tensor, *why, name_of(GetParam()))) << tensor.name;
      continue;
    }
    const std::vector<std::string> names = names_in_statistics(source, tensor);
    EXPECT_FALSE(names.empty()) << tensor.name;
    for (const std::string& name : names)
      EXPECT_TRUE(statistics.contains(name + ".input_mean_square")) << name;
    n_measured += names.size();
  }
  EXPECT_GT(n_measured, 0U);
  // Modules that share moments have the same input.
  const std::vector<CalibratedModule> modules = calibrated_modules(source, spec);
  for (const MomentInput& input : block_inputs(modules)) {
    for (const CalibratedModule* module : input.modules) {
      EXPECT_EQ(statistics.at(module->name + ".input_mean_square"),
                statistics.at(input.owner + ".input_mean_square"))
          << module->name << " and " << input.owner;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Fixtures, MeasuredLinears, ::testing::ValuesIn(recorded_checkpoints()),
                         [](const auto& suite) { return name_of(suite.param); });

TEST(MeasuredLinearsOf, EveryFamilyThatIsComputed) {
  std::set<std::string_view> seen = {kRefused};
  for (const std::filesystem::path& checkpoint : recorded_checkpoints())
    seen.insert(shard::open_source(checkpoint).family().name);
  for (const formats::Family* family : formats::families()) {
    if (family->forward == nullptr) continue;
    EXPECT_TRUE(seen.contains(family->name)) << family->name;
  }
}

// Weights in front of the layers run in a step of their own, whose figures a later run must have.
TEST(MeasuredLinearsOf, TheEmbeddingOutliveAStop) {
  for (const char* const name : {"gemma3n", "gemma4_layer_inputs"}) {
    const std::filesystem::path model = kGolden / "forward" / name / "checkpoint";
    const std::vector<Prompt> text = random_documents({12, 7}, 16);
    const TempDir directory;
    run_calibration(model, text, directory / "whole");
    {
      bool is_over = false;
      const StopScope stop([&] { return is_over; }, "it ran");
      const RunOptions options = {
          .progress = [&](std::uint64_t, std::uint64_t) { is_over = true; }};
      expect_error(ErrorCode::kInterrupted, {"stopped"},
                   [&] { run_calibration(model, text, directory / "stopped", options); });
    }
    run_calibration(model, text, directory / "stopped", {}, {.resume = true});
    const formats::Checkpoint source = shard::open_source(model);
    CalibrationOptions from_itself;
    from_itself.quantized = &source;
    run_calibration(model, text, directory / "quantized", {}, from_itself);
    const OutputTensors wanted = read_statistics(directory / "whole" / formats::kInputsName);
    EXPECT_EQ(read_statistics(directory / "stopped" / formats::kInputsName), wanted) << name;
    const OutputTensors quantized = read_statistics(directory / "quantized" / formats::kInputsName);
    const auto statistics = formats::CalibrationStatistics::open(directory / "stopped");
    std::size_t n_seen = 0;
    for (const auto& [tensor, values] : wanted) {
      const std::string module = tensor.substr(0, tensor.rfind('.'));
      if (!module.ends_with(".per_layer_model_projection")) continue;
      EXPECT_EQ(quantized.at(tensor), values) << tensor;
      EXPECT_NE(statistics.find(module, formats::kInputMoments), nullptr) << module;
      ++n_seen;
    }
    EXPECT_EQ(n_seen, 4U) << name;
  }
}

void expect_near(const formats::CalibrationStatistics& is, const std::string& module,
                 std::string_view ending, const std::vector<float>& wanted) {
  constexpr double kTolerance = 1e-4;  // the delta rule in chunks rounds otherwise
  const formats::StatisticTensor* const found = is.find(module, ending);
  ASSERT_NE(found, nullptr) << module << ending;
  const std::vector<float> values = is.values(*found);
  ASSERT_EQ(values.size(), wanted.size()) << module << ending;
  EXPECT_LE(relative_error(values, wanted), kTolerance) << module << ending;
}

/// The squares of 16 columns along the diagonal of moments [width, width].
std::vector<float> blocks_of(const std::vector<float>& moments, std::size_t width) {
  std::vector<float> blocks;
  for (std::size_t row = 0; row < width; ++row) {
    const std::size_t first = row / formats::kMomentBlock * formats::kMomentBlock;
    const auto from = moments.begin() + static_cast<std::ptrdiff_t>(row * width + first);
    blocks.insert(blocks.end(), from, from + formats::kMomentBlock);
  }
  return blocks;
}

class MomentsOfTransformers : public ::testing::TestWithParam<std::string> {};

TEST_P(MomentsOfTransformers, AreThoseOfItsLinears) {
  const OutputTensors golden =
      read_statistics(kGolden / "calibration" / (GetParam() + ".safetensors"));
  Prompt document;
  for (const std::int64_t id : golden.at("input_ids").as<std::int64_t>())
    document.ids.push_back(static_cast<std::int32_t>(id));
  const TempDir directory;
  run_calibration(kGolden / "forward" / GetParam() / "checkpoint", {document},
                  directory / "statistics");
  const auto statistics = formats::CalibrationStatistics::open(directory / "statistics");
  std::size_t n_seen = 0, n_blocks = 0;
  for (const auto& [name, tensor] : golden) {
    const std::string module = name.substr(0, name.rfind('.'));
    // The gate over a shared expert is a router, which no engine quantizes.
    if (name == "input_ids" || module.ends_with(".shared_expert_gate")) continue;
    const std::vector<float> wanted = tensor.as<float>();
    const std::string_view ending = std::string_view(name).substr(module.size());
    expect_near(statistics, module, ending, wanted);
    ++n_seen;
    const std::size_t width = tensor.shape.at(0);
    if (ending != formats::kInputMoments || width % formats::kMomentBlock != 0) continue;
    expect_near(statistics, module, formats::kInputBlockMoments, blocks_of(wanted, width));
    ++n_blocks;
  }
  EXPECT_GE(n_seen, 30U);
  EXPECT_GE(n_blocks, 1U);
}

INSTANTIATE_TEST_SUITE_P(Fixtures, MomentsOfTransformers,
                         ::testing::Values("qwen3_next_dense", "falcon_h1_limits"),
                         [](const auto& suite) { return suite.param; });

}  // namespace
}  // namespace ingot::verify
