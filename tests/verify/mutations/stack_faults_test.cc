#include "check/check.h"
#include "tests/convert/conversion.h"
#include "tests/convert/output_tensors.h"
#include "tests/support/edited_weights.h"
#include "tests/support/test.h"
#include "tests/verify/layers/example.h"
#include "tests/verify/mutations/fault.h"
#include "tests/verify/mutations/good_conversions.h"
#include "tests/verify/mutations/verdict.h"
#include "verify/gates/gate.h"
#include "verify/gates/report.h"
#include "verify/outputs/draft_check.h"
#include "verify/verification.h"

// Stacks of experts: laid out the other way round, and against single experts.

namespace ingot::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::IsSupersetOf;

std::filesystem::path family_fixture(const std::string& name) {
  return std::filesystem::path(INGOT_SOURCE_DIR) / "tests/golden/families" / name;
}

/// Each matrix of a stack of BF16 numbers the other way round; its shape stays, or turns with it.
void transpose(EditedTensor& stack, bool turns_shape) {
  const std::size_t n = stack.shape[0], rows = stack.shape[1], cols = stack.shape[2];
  const EditedTensor before = stack;
  for (std::size_t i = 0; i < n; ++i)
    for (std::size_t row = 0; row < rows; ++row)
      for (std::size_t col = 0; col < cols; ++col)
        stack.set((i * cols + col) * rows + row,
                  before.get<std::uint16_t>((i * rows + row) * cols + col));
  if (turns_shape) std::swap(stack.shape[1], stack.shape[2]);
}

/// Every dimension of `from` BF16 numbers cut off after `to`.
void narrow(EditedTensor& tensor, std::size_t from, std::size_t to) {
  const EditedTensor before = tensor;
  tensor.bytes.clear();
  for (std::size_t i = 0; i < before.bytes.size() / 2; ++i) {
    bool is_within = true;
    std::size_t rest = i;
    for (std::size_t d = before.shape.size(); d-- > 0; rest /= before.shape[d])
      is_within = is_within && (before.shape[d] != from || rest % before.shape[d] < to);
    if (is_within) tensor.bytes += before.bytes.substr(i * 2, 2);
  }
  for (std::uint64_t& side : tensor.shape) side = side == from ? to : side;
}

struct Stack {
  const char *fixture, *name;
};

class TransposedStack : public ::testing::TestWithParam<Stack> {};

TEST_P(TransposedStack, IsSeen) {
  for (const bool turns_shape : {false, true}) {
    const TempDir directory;
    Conversion conversion(family_fixture(GetParam().fixture), directory / "output");
    conversion.recipe.to = std::nullopt;
    conversion.run();
    EXPECT_TRUE(judge_default(conversion.input, conversion.output).passed);
    forget_the_conversion(conversion.output);
    edit_tensor(conversion.output, GetParam().name,
                [&](EditedTensor& stack) { transpose(stack, turns_shape); });
    const Verdict verdict = judge_default(conversion.input, conversion.output);
    EXPECT_FALSE(verdict.passed);
    EXPECT_THAT(verdict.text, HasSubstr(GetParam().name));
  }
}

INSTANTIATE_TEST_SUITE_P(
    Families, TransposedStack,
    ::testing::Values(
        Stack{"qwen3_5_moe", "model.language_model.layers.1.mlp.experts.gate_up_proj"},
        Stack{"qwen3_5_moe", "model.language_model.layers.2.mlp.experts.down_proj"},
        Stack{"llama4", "language_model.model.layers.0.feed_forward.experts.gate_up_proj"},
        Stack{"llama4", "language_model.model.layers.1.feed_forward.experts.down_proj"},
        Stack{"gpt_oss_bf16", "model.layers.0.mlp.experts.gate_up_proj"}),
    [](const auto& row) { return row.param.fixture + std::to_string(row.index); });

/// Copies a model with every matrix of its stacks, and their shapes, the other way round. DBRX's
/// are below each other in one.
void copy_turned(const std::filesystem::path& model, const std::filesystem::path& turned) {
  std::filesystem::copy(model, turned);
  const std::uint64_t n = formats::Checkpoint::open(model).config().n_routed_experts;
  EditedWeights weights(turned);
  for (const std::string& name : weights.names()) {
    const std::size_t n_sides = weights.read(name).shape.size();
    const bool is_flat = n_sides == 2 && name.find(".experts.mlp.") != std::string::npos;
    if (!is_flat && (n_sides != 3 || name.find(".experts.") == std::string::npos)) continue;
    EditedTensor& stack = weights.at(name);
    if (is_flat) stack.shape = {n, stack.shape[0] / n, stack.shape[1]};
    transpose(stack, true);
    if (is_flat) stack.shape = {n * stack.shape[1], stack.shape[2]};
  }
  weights.save();
}

OutputTensors made_of(const std::filesystem::path& input, const std::filesystem::path& output,
                      std::optional<formats::SchemeId> to) {
  Conversion conversion(input, output);
  conversion.recipe.to = to;
  conversion.run();
  return read_output(output);
}

bool passes(const std::filesystem::path& source, const std::filesystem::path& output,
            const std::vector<verify::Level>& levels) {
  return verify::verify_pair(source, output,
                             {.levels = levels, .output_profile = inference::Profile::kF32})
      .passed();
}

class TurnedStacks : public ::testing::TestWithParam<const char*> {};

// transformers 5 saves those of Qwen3-VL so.
TEST_P(TurnedStacks, AreTheModelOfTheRelease) {
  const TempDir directory;
  const std::filesystem::path release =
      std::filesystem::path(INGOT_SOURCE_DIR) / "tests/golden" / GetParam();
  const std::filesystem::path turned = directory / "turned";
  copy_turned(release, turned);
  ASSERT_NE(read_output(turned), read_output(release));
  EXPECT_EQ(made_of(turned, directory / "copy", std::nullopt),
            made_of(release, directory / "same", std::nullopt));
  EXPECT_EQ(made_of(turned, directory / "int8", formats::SchemeId::kInt8Channel),
            made_of(release, directory / "int8-of-release", formats::SchemeId::kInt8Channel));
  std::filesystem::copy(turned, directory / "again");
  using enum verify::Level;
  for (const char* output : {"copy", "again"}) {
    EXPECT_TRUE(passes(turned, directory / output, {kStructure, kWeights, kLayers})) << output;
  }
  EXPECT_TRUE(passes(release, directory / "copy", {kStructure, kWeights, kLayers}));
  EXPECT_TRUE(passes(turned, directory / "int8", {kStructure, kWeights}));
  for (const check::Finding& finding :
       check::check_is_source_of(turned, directory / "int8").findings)
    EXPECT_EQ(finding.severity, check::Severity::kWarning) << finding.message;
  std::set<std::string> rules;
  for (const check::Finding& finding : check::check_checkpoint(turned, {}).findings) {
    if (finding.rule == "config.contradiction") continue;  // bases of rope in DBRX's fixture
    EXPECT_EQ(finding.severity, check::Severity::kWarning) << finding.message;
    rules.emplace(finding.rule);
  }
  EXPECT_THAT(rules, IsSupersetOf({"engine.refused-by-vllm", "engine.refused-by-sglang"}));
}

INSTANTIATE_TEST_SUITE_P(Families, TurnedStacks,
                         ::testing::Values("families/llama4", "families/qwen3_5_moe",
                                           "families/gpt_oss_bf16", "forward/dbrx/checkpoint",
                                           "forward/qwen3_vl_moe/checkpoint"));

TEST(FlatStacks, WithExpertsSideBySideAreNamed) {
  const TempDir directory;
  const std::filesystem::path model = directory / "model";
  std::filesystem::copy(
      std::filesystem::path(INGOT_SOURCE_DIR) / "tests/golden/forward/dbrx/checkpoint", model);
  const std::string name = "transformer.blocks.1.ffn.experts.mlp.v1";
  edit_tensor(model, name, [](EditedTensor& stack) {
    stack.shape.insert(stack.shape.begin(), 1);
    transpose(stack, true);
    stack.shape.erase(stack.shape.begin());
  });
  expect_error(ErrorCode::kShapeMismatch,
               {name, "shape [84, 364], by config.json it should have [364, 84]", "side by side"},
               [&] { (void)formats::Checkpoint::open(model); });
}

constexpr std::uint64_t kWidth = 64;

/// Writes a model in which every expert's down projection is square, so that no shape tells.
void write_square(const std::filesystem::path& model) {
  std::filesystem::copy(family_fixture("gpt_oss_bf16"), model);
  // Down is [6, 64, 96] in the fixture: its first 64 of 96 outputs make it square.
  edit_json(model / "config.json", [](formats::Json& config) { config["hidden_size"] = kWidth; });
  EditedWeights weights(model);
  for (const std::string& name : weights.names()) narrow(weights.at(name), 96, kWidth);
  weights.save();
}

TEST(TransposedSquareStack, IsSeen) {
  const TempDir directory;
  write_square(directory / "input");
  Conversion conversion(directory / "input", directory / "output");
  conversion.recipe.to = std::nullopt;
  conversion.run();
  EXPECT_TRUE(judge_default(conversion.input, conversion.output).passed);
  forget_the_conversion(conversion.output);
  const std::string name = "model.layers.1.mlp.experts.down_proj";
  edit_tensor(conversion.output, name, [&](EditedTensor& stack) {
    ASSERT_EQ(stack.shape, (formats::Shape{6, kWidth, kWidth}));
    transpose(stack, false);
  });
  const Verdict verdict = judge_default(conversion.input, conversion.output);
  EXPECT_FALSE(verdict.passed);
  EXPECT_THAT(verdict.text, HasSubstr(name));
}

TEST(TurnedSquareStack, IsAsTheOtherOfItsLayer) {
  const TempDir directory;
  write_square(directory / "input");
  copy_turned(directory / "input", directory / "turned");
  EXPECT_EQ(made_of(directory / "turned", directory / "copy", std::nullopt),
            made_of(directory / "input", directory / "same", std::nullopt));
}

/// The output of single experts, made from stacks, judged as `ingot verify` judges it.
bool passes_as_single(const std::filesystem::path& output) {
  return verify::verify_pair(family_fixture("qwen3_5_moe"), output, {}).passed();
}

TEST(SingleExperts, AreComparedWithTheirStack) {
  const TempDir directory;
  const std::filesystem::path output = directory / "output";
  Conversion conversion(family_fixture("qwen3_5_moe"), output);
  conversion.recipe.to = formats::SchemeId::kInt8Channel;
  conversion.run();
  EXPECT_TRUE(passes_as_single(output));
  forget_the_conversion(output);
  EditedWeights weights(output);
  const std::string layer = "model.language_model.layers.1.mlp.experts.";
  weights.exchange(layer + "2.gate_proj.weight", layer + "2.up_proj.weight");
  weights.save();
  EXPECT_FALSE(passes_as_single(output));
}

// Faults of a spoiled MTP layer that the level draft finds, and those that it is too blunt for:
// there the levels weights and layers must find them.

using namespace verify;

const std::string kMtp = "model.layers.5.";

const VerificationOptions kOptions = {.levels = {Level::kWeights, Level::kLayers},
                                      .output_profile = inference::Profile::kF32,
                                      .threads = 2};

/// The level draft for an output, with the source's side run once per process.
DraftReport drafts_of(const std::filesystem::path& output) {
  static const RunOptions run = {.output_profile = kOptions.output_profile,
                                 .threads = kOptions.threads};
  static const Example source;
  static const std::vector<DraftText> texts = answered_text(source.model, source.prompts, run);
  static const DraftOutcomes drafts = measure_drafts(source.model, texts, run);
  return compare_drafts(drafts, measure_drafts(shard::open_source(output), texts, run));
}

/// Levels of a conversion to INT8 in which one tensor was changed.
Report report_of(const std::function<void(const Pair&)>& spoil) {
  const TempDir directory;
  const Pair pair = copy_of_good(Good::kInt8, directory.path());
  spoil(pair);
  Report report = verify_pair(pair.source, pair.output, kOptions);
  report.draft = drafts_of(pair.output);
  report.gates = judge(report, default_thresholds(""));
  return report;
}

bool fails(const Report& report, std::string_view metric) {
  return std::ranges::any_of(report.gates, [&](const GateResult& result) {
    return result.gate.metric == metric && !result.passed;
  });
}

bool fails_weights(const Report& report) {
  return std::ranges::any_of(report.gates, [](const GateResult& result) {
    return result.gate.metric.starts_with("weights.") && !result.passed;
  });
}

TEST(DraftFaults, GoodConversionPasses) {
  const Report report = report_of([](const Pair&) {});
  EXPECT_TRUE(report.passed());
  EXPECT_GE(report.draft->tokens, kDraftTokens);
  EXPECT_GT(report.draft->source_acceptance(), 0.9);
  EXPECT_LT(report.draft->sure_loss(), 1);
}

// The state and the embedding change places: each by itself is a plausible matrix.
TEST(DraftFaults, ExchangedHalvesOfTheProjectionFailTheDrafts) {
  const Report report = report_of([](const Pair& pair) {
    edit_tensor(pair.output, kMtp + "eh_proj.weight", [](EditedTensor& tensor) {
      const std::size_t row = tensor.bytes.size() / tensor.shape.at(0);
      for (std::size_t at = 0; at < tensor.bytes.size(); at += row)
        std::rotate(tensor.bytes.begin() + static_cast<std::ptrdiff_t>(at),
                    tensor.bytes.begin() + static_cast<std::ptrdiff_t>(at + row / 2),
                    tensor.bytes.begin() + static_cast<std::ptrdiff_t>(at + row));
    });
  });
  EXPECT_TRUE(fails(report, "draft.acceptance"));
  EXPECT_LT(report.draft->output_acceptance(), 0.1);
  EXPECT_GT(report.draft->sure_loss(), 80);
  EXPECT_TRUE(fails(report, "mtp.cosine"));
  EXPECT_TRUE(fails_weights(report));
}

// A few points at most: not this level's business.
TEST(SlowDraftFaults, WrongScaleFailsWeightsAndLayers) {
  const Report report = report_of([](const Pair& pair) {
    edit_tensor(pair.output, kMtp + "self_attn.o_proj.weight_scale", [](EditedTensor& scale) {
      scale.map<float>([](float value) { return 1.5F * value; });
    });
  });
  EXPECT_TRUE(fails(report, "mtp.cosine"));
  EXPECT_TRUE(fails_weights(report));
  EXPECT_LT(report.draft->loss(), 5);
}

TEST(SlowDraftFaults, SwappedNormsFailWeightsAndLayers) {
  const Report report = report_of([](const Pair& pair) {
    EditedWeights weights(pair.output);
    weights.exchange(kMtp + "enorm.weight", kMtp + "hnorm.weight");
    weights.save();
  });
  EXPECT_TRUE(fails(report, "mtp.cosine"));
  EXPECT_TRUE(fails_weights(report));
  EXPECT_LT(report.draft->loss(), 5);
}

}  // namespace
}  // namespace ingot::testing
