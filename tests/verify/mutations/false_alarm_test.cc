#include "convert/recipe/statistics.h"
#include "formats/container/bfloat16.h"
#include "tests/convert/conversion.h"
#include "tests/convert/slicing/sliced.h"
#include "tests/convert/targets.h"
#include "tests/inference/weights/crafted.h"
#include "tests/support/edited_weights.h"
#include "tests/support/test.h"
#include "tests/support/tiny_checkpoint.h"
#include "tests/verify/mutations/good_conversions.h"
#include "tests/verify/mutations/verdict.h"
#include "verify/calibrate/calibrate.h"
#include "verify/gates/gate.h"
#include "verify/outputs/prompts.h"
#include "verify/verification.h"

// Outputs that ingot converts without complaint pass the default levels, with manifest and without.

namespace ingot::testing {
namespace {

namespace fs = std::filesystem;
using formats::SchemeId;

// `is_refused`: engines refuse it, which only its manifest says to have been allowed.
void expect_accepted(const fs::path& source, const fs::path& output, bool is_refused = false) {
  Verdict verdict = judge_default(source, output);
  EXPECT_TRUE(verdict.passed) << verdict.text;
  // Shards of deepseek-mp go by names of their own, which a manifest translates.
  forget_the_conversion(output);
  verdict = judge_default(source, output);
  EXPECT_EQ(verdict.passed, !is_refused) << "without manifest: " << verdict.text;
  std::istringstream lines(verdict.text);
  for (std::string line; std::getline(lines, line);) {
    if (line.empty() || line.starts_with("structure.errors")) continue;
    EXPECT_TRUE(line.starts_with("[engine.refused-by-all]")) << line;
  }
}

// Whether the plan is refused unless engines' refusals are allowed.
bool is_refused_by_engines(const fs::path& source, const Target& target) {
  const formats::Checkpoint model = formats::Checkpoint::open(source);
  Conversion conversion(source, "unused");
  target.apply(conversion.recipe);
  conversion.recipe.allow = {};
  resolve(conversion.recipe, model);
  try {
    plan_for(model, conversion.recipe, conversion.plan);
    return false;
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr("none of vLLM 0.33, SGLang 0.5.23 loads this"));
    return true;
  }
}

// The cut, or where it would split blocks, the first way around that loses no more than it must.
Cut fitting(const fs::path& source, Cut cut, const std::optional<Target>& target) {
  for (const shard::TpFit fit :
       {shard::TpFit::kRefuse, shard::TpFit::kRetile, shard::TpFit::kPad, shard::TpFit::kBf16}) {
    cut.fit = fit;
    Conversion conversion = slicing(source, "unused", cut);
    if (target) target->apply(conversion.recipe);
    const formats::Checkpoint model = formats::Checkpoint::open(source);
    resolve(conversion.recipe, model);
    try {
      plan_for(model, conversion.recipe, conversion.plan);
      return cut;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kUnsupported) << error.what();
    }
  }
  ADD_FAILURE() << "no cut fits " << cut.name();
  return cut;
}

class FalseAlarm : public ::testing::TestWithParam<Target> {
 protected:
  TempDir directory_;
};

TEST_P(FalseAlarm, IsNotRaisedByAWholeConversion) {
  Conversion conversion(small_v32(), directory_ / "output");
  GetParam().apply(conversion.recipe);
  conversion.run();
  expect_accepted(conversion.input, conversion.output,
                  is_refused_by_engines(conversion.input, GetParam()));
}

TEST_P(FalseAlarm, IsNotRaisedByRankSlices) {
  Conversion conversion = slicing(small_v32(), directory_ / "output",
                                  fitting(small_v32(), {.tp = 2, .ep = 2}, GetParam()));
  GetParam().apply(conversion.recipe);
  conversion.run();
  expect_accepted(conversion.input, conversion.output);
}

INSTANTIATE_TEST_SUITE_P(FirstTargets, FalseAlarm, ::testing::ValuesIn(dialect_targets()),
                         target_name);
INSTANTIATE_TEST_SUITE_P(SlowTargets, FalseAlarm,
                         ::testing::ValuesIn(all_targets_but(dialect_targets())), target_name);

class FalseAlarmOfPlain : public ::testing::TestWithParam<SchemeId> {
 protected:
  TempDir directory_;
};

TEST_P(FalseAlarmOfPlain, IsNotRaisedByACastWhole) {
  Conversion conversion(small_v32(), directory_ / "output");
  conversion.recipe.to = GetParam();
  conversion.run();
  expect_accepted(conversion.input, conversion.output);
}

INSTANTIATE_TEST_SUITE_P(EveryCast, FalseAlarmOfPlain,
                         ::testing::Values(SchemeId::kBf16, SchemeId::kF16, SchemeId::kF32),
                         [](const auto& row) {
                           return std::string(formats::scheme_facts(row.param).name);
                         });

class FalseAlarmOfShards : public ::testing::TestWithParam<bool> {};

// DeepSeek's own layout, in FP8 as released and in BF16.
TEST_P(FalseAlarmOfShards, IsNotRaisedByTheNativeLayout) {
  const TempDir directory;
  Conversion conversion = keeping(small_v32(), directory / "output");
  if (GetParam()) conversion.recipe.to = SchemeId::kBf16;
  conversion.recipe.mtp = convert::MtpPolicy::kDrop;
  conversion.plan.layout = formats::find_layout("deepseek-mp");
  const std::uint32_t mp = GetParam() ? 2 : 1;
  conversion.plan.slicing.topology = shard::make_topology(mp, mp, 1, 1);
  conversion.run();
  expect_accepted(conversion.input, conversion.output);
}

INSTANTIATE_TEST_SUITE_P(EveryScheme, FalseAlarmOfShards, ::testing::Bool(),
                         [](const auto& row) { return row.param ? "bf16" : "fp8"; });

class FalseAlarmOfFamily : public ::testing::TestWithParam<std::string> {};

// Every scheme that its shapes take.
TEST_P(FalseAlarmOfFamily, IsNotRaisedInAnyScheme) {
  const fs::path source = arch_fixture(GetParam());
  std::size_t n_taken = 0;
  for (const Target& target : scheme_targets()) {
    SCOPED_TRACE(target.name());
    const TempDir directory;
    Conversion conversion(source, directory / "output");
    target.apply(conversion.recipe);
    try {
      conversion.run();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kUnsupported) << error.what();
      continue;
    }
    ++n_taken;
    expect_accepted(source, conversion.output);
  }
  EXPECT_GT(n_taken, 3U);
}

TEST_P(FalseAlarmOfFamily, CopiesAndSlicesRaiseNone) {
  const TempDir directory;
  keeping(arch_fixture(GetParam()), directory / "copy").run();
  expect_accepted(arch_fixture(GetParam()), directory / "copy");
  slicing(arch_fixture(GetParam()), directory / "ranks", {.tp = 2, .ep = 2, .pp = 2}).run();
  expect_accepted(arch_fixture(GetParam()), directory / "ranks");
}

INSTANTIATE_TEST_SUITE_P(FirstFamily, FalseAlarmOfFamily, ::testing::Values("qwen3_moe"),
                         [](const auto& row) { return row.param; });
INSTANTIATE_TEST_SUITE_P(SlowFamilies, FalseAlarmOfFamily,
                         ::testing::Values("deepseek_v2", "deepseek_v3", "glm_moe_dsa"),
                         [](const auto& row) { return row.param; });

// Every way to write the example's weights passes all levels by the default gates, whole and in
// slices. Static inputs are calibrated.

// Once per process.
const std::shared_ptr<const convert::ActivationScales>& calibrated() {
  static const auto scales = [] {
    // Conversions look at the file again.
    static const TempDir directory;
    const verify::ComparedCheckpoint example = verify::open_compared(tiny_v32(), {});
    const auto tokenizer = verify::open_tokenizer(example.model);
    auto documents =
        verify::read_documents(fs::path(INGOT_SOURCE_DIR) / "tests/golden/tiny-v32/val_docs.json",
                               example.model, *tokenizer);
    documents.resize(40);
    const fs::path file = directory / "scales.safetensors";
    verify::calibrate(example.model, documents, file, {});
    return std::make_shared<const convert::ActivationScales>(convert::ActivationScales::read(file));
  }();
  return scales;
}

std::string failures(const verify::Report& report) {
  std::string text;
  for (const std::string& level : report.not_run) text += level + "\n";
  for (const verify::GateResult& result : report.gates) {
    if (result.passed) continue;
    text += fmt::format("{}[{}] {} beyond {} at {}\n", result.gate.metric, result.gate.group,
                        result.worst, result.gate.limit, result.subject);
  }
  return text;
}

class EveryLevel : public ::testing::TestWithParam<Target> {
 protected:
  void convert(Conversion conversion) {
    GetParam().apply(conversion.recipe);
    if (GetParam().storage->activations == formats::Activations::kStatic) {
      conversion.recipe.choices.input_scale.reset();
      conversion.recipe.choices.activation_scales = calibrated();
    }
    conversion.run();
  }

  void expect_passed() const {
    const verify::Report report = verify::verify_pair(tiny_v32(), directory_ / "output",
                                                      {.levels = verify::parse_levels("all")});
    EXPECT_TRUE(report.passed()) << failures(report);
    EXPECT_TRUE(report.layers && report.greedy && report.weights && report.structure);
  }

  TempDir directory_;
};

TEST_P(EveryLevel, IsPassedByAWholeConversion) {
  convert(Conversion(tiny_v32(), directory_ / "output"));
  expect_passed();
}

// By default of no target: cli.verify and cli.compare verify at every level.
INSTANTIATE_TEST_SUITE_P(SlowTargets, EveryLevel, ::testing::ValuesIn(all_targets()), target_name);

class EveryLevelOfSlices : public EveryLevel {};

TEST_P(EveryLevelOfSlices, IsPassed) {
  convert(slicing(tiny_v32(), directory_ / "output", {.tp = 1, .ep = 4}));
  expect_passed();
}

INSTANTIATE_TEST_SUITE_P(SlowTargets, EveryLevelOfSlices, ::testing::ValuesIn(all_targets()),
                         target_name);

// Right outputs of small tensors, and of sources whose values are on one grid, pass the gates; and
// wrong ones do not.

constexpr const char* kLlama = R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama",
  "hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 2, "num_key_value_heads": 1,
  "num_hidden_layers": 1, "vocab_size": 32, "head_dim": 16, "rms_norm_eps": 1e-5,
  "rope_theta": 10000.0, "tie_word_embeddings": false, "torch_dtype": "bfloat16",
  "hidden_act": "silu", "max_position_embeddings": 128)";

using Linear = std::function<std::vector<TinyTensor>(const std::string& name, std::uint64_t n,
                                                     std::uint64_t k)>;

void write_llama(const std::filesystem::path& directory, const Linear& linear,
                 const std::string& more = "}") {
  TinyCheckpoint tiny{.config = kLlama + more};
  auto& tensors = tiny.files["model.safetensors"];
  const auto plain = [&](const std::string& name, std::vector<std::uint64_t> shape) {
    std::uint64_t n = 1;
    for (const std::uint64_t side : shape) n *= side;
    std::string ones;
    for (std::uint64_t i = 0; i < n; ++i) ones += std::string("\x80\x3f", 2);
    tensors.push_back({name, "BF16", std::move(shape), ones});
  };
  plain("model.embed_tokens.weight", {32, 32});
  plain("lm_head.weight", {32, 32});
  plain("model.norm.weight", {32});
  plain("model.layers.0.input_layernorm.weight", {32});
  plain("model.layers.0.post_attention_layernorm.weight", {32});
  const std::vector<std::tuple<const char*, std::uint64_t, std::uint64_t>> linears = {
      {"self_attn.q_proj", 32, 32}, {"self_attn.k_proj", 16, 32}, {"self_attn.v_proj", 16, 32},
      {"self_attn.o_proj", 32, 32}, {"mlp.gate_proj", 64, 32},    {"mlp.up_proj", 64, 32},
      {"mlp.down_proj", 32, 64}};
  for (const auto& [name, n, k] : linears) {
    for (TinyTensor& tensor : linear(std::string("model.layers.0.") + name, n, k))
      tensors.push_back(std::move(tensor));
  }
  tiny.write(directory);
}

// BF16 weights of these values.
Linear plain_of(const std::function<float()>& next) {
  return [=](const std::string& name, std::uint64_t n, std::uint64_t k) {
    std::string words;
    for (std::uint64_t i = 0; i < n * k; ++i) {
      const std::uint16_t word = formats::bf16_from_float(next());
      words.append(reinterpret_cast<const char*>(&word), sizeof word);
    }
    return std::vector<TinyTensor>{{name + ".weight", "BF16", {n, k}, words}};
  };
}

std::vector<std::string> failed_gates(const std::filesystem::path& source,
                                      const std::filesystem::path& output) {
  const verify::Report report =
      verify::verify_pair(source, output, {.levels = {verify::Level::kWeights}});
  std::vector<std::string> failed;
  for (const verify::GateResult& result : report.gates) {
    if (!result.passed)
      failed.push_back(
          fmt::format("{} {} at {}", result.gate.metric, result.worst, result.subject));
  }
  return failed;
}

class RightOutput : public ::testing::TestWithParam<Target> {};
INSTANTIATE_TEST_SUITE_P(Schemes, RightOutput, ::testing::ValuesIn(scheme_targets()), target_name);

// The mean error of few groups scatters: normal numbers in NVFP4 have a cosine of 0.9967 on
// average, and 96 blocks often less than 0.9965.
TEST_P(RightOutput, OfSmallTensorsPasses) {
  for (std::uint32_t seed = 0; seed < 6; ++seed) {
    SCOPED_TRACE(seed);
    const TempDir directory;
    std::mt19937 random(seed);
    std::normal_distribution<float> normal(0, 0.02F);
    write_llama(directory / "in", plain_of([&] { return normal(random); }));
    Conversion conversion(directory / "in", directory / "out");
    GetParam().apply(conversion.recipe);
    conversion.run();
    EXPECT_THAT(failed_gates(directory / "in", directory / "out"), ::testing::IsEmpty());
  }
}

// All values of one magnitude, as ternary weights have, are rounded to one code: under scales that
// are powers of two 1.06 becomes 1 in E4M3, and 1.3 becomes 1.5 in E2M1.
TEST_P(RightOutput, OfOneMagnitudePasses) {
  for (const float magnitude : {1.06F, 1.07F, 1.3F, 1.7F}) {
    for (const auto grid : {quantize::Fp8Grid::kAmax, quantize::Fp8Grid::kUe8m0}) {
      SCOPED_TRACE(magnitude);
      const TempDir directory;
      std::mt19937 random(7);
      std::uniform_int_distribution<int> sign(-1, 1);
      write_llama(directory / "in",
                  plain_of([&] { return magnitude / 64 * static_cast<float>(sign(random)); }));
      Conversion conversion(directory / "in", directory / "out");
      GetParam().apply(conversion.recipe);
      conversion.recipe.choices.fp8_grid = grid;
      conversion.run();
      EXPECT_THAT(failed_gates(directory / "in", directory / "out"), ::testing::IsEmpty());
    }
  }
}

// Near the largest number the next code may be infinite, and where values are tiny no scale shrinks
// with them, so that they are a few steps at most.
TEST_P(RightOutput, OfHugeAndTinyValuesPasses) {
  std::size_t n_passed = 0;
  for (const float most : {3.38e38F, 5e-6F, 1e-6F, 1e-7F, 1e-9F, 1.2e-38F, 3e-39F, 2e-39F}) {
    for (const bool is_one : {false, true}) {
      SCOPED_TRACE(fmt::format("{} {}", most, is_one));
      const TempDir directory;
      std::mt19937 random(5);
      std::normal_distribution<float> normal(0, 0.25F);
      std::uint64_t n = 0;
      write_llama(directory / "in", plain_of([&] {
                    if (is_one) return n++ % 512 == 37 ? most : 0.0F;
                    return most * std::clamp(normal(random), -1.0F, 1.0F);
                  }));
      Conversion conversion(directory / "in", directory / "out");
      GetParam().apply(conversion.recipe);
      try {
        conversion.run();
      } catch (const Error& error) {
        EXPECT_THAT(error.what(), ::testing::HasSubstr("would be all zeros"));
        continue;
      }
      ++n_passed;
      EXPECT_THAT(failed_gates(directory / "in", directory / "out"), ::testing::IsEmpty());
    }
  }
  EXPECT_GE(n_passed, 2U);
}

// Only one column matters, so a row's scale fits its value there and cuts others off. A factor over
// all scales is still seen in those that are not cut off.
TEST(SteepImportance, PassesAndAFactorDoesNot) {
  const TempDir directory;
  std::mt19937 random(1);
  std::normal_distribution<float> normal(0, 0.02F);
  std::vector<TinyTensor> squares;
  write_llama(directory / "in", [&](const std::string& name, std::uint64_t n, std::uint64_t k) {
    std::vector<float> importance(k);
    importance[3] = 1;
    squares.push_back({name + ".input_mean_square", "F32", {k}, bytes_of(importance)});
    std::vector<std::uint16_t> words;
    for (std::uint64_t i = 0; i < n * k; ++i)
      words.push_back(formats::bf16_from_float(normal(random)));
    return std::vector<TinyTensor>{{name + ".weight", "BF16", {n, k}, bytes_of(words)}};
  });
  write_bytes(directory / "statistics.safetensors", safetensors_bytes(squares));
  Conversion conversion(directory / "in", directory / "out");
  conversion.recipe.to = SchemeId::kInt4Group;
  conversion.recipe.choices.group_size = 32;
  conversion.recipe.choices.importance = std::make_shared<const convert::Importance>(
      convert::Importance::read(directory / "statistics.safetensors"));
  conversion.recipe.allow.add("engine-refuses=*");
  conversion.run();
  const verify::Report report = verify::verify_pair(directory / "in", directory / "out",
                                                    {.levels = {verify::Level::kWeights}});
  const auto& tensors = report.weights->tensors;
  const auto gate = std::ranges::find(tensors, "model.layers.0.mlp.gate_proj.weight",
                                      &verify::TensorWeights::name);
  ASSERT_NE(gate, tensors.end());
  EXPECT_LT(gate->sums.fitted_scale(), 0.96);
  EXPECT_NEAR(gate->sums.fitted_scale_within(), 1, 0.02);
  EXPECT_THAT(failed_gates(directory / "in", directory / "out"), ::testing::IsEmpty());

  EditedWeights weights(directory / "out");
  EditedTensor& scale = weights.at("model.layers.0.mlp.gate_proj.weight_scale");
  for (std::size_t i = 0; i < 64; ++i) {
    const float value = formats::float_from_bf16(scale.get<std::uint16_t>(i));
    scale.set<std::uint16_t>(i, formats::bf16_from_float(value * 1.1F));
  }
  weights.save();
  EXPECT_THAT(failed_gates(directory / "in", directory / "out"),
              ::testing::Contains(::testing::HasSubstr("weights.misrounded")));
}

class OtherFloat8 : public ::testing::TestWithParam<const char*> {
 protected:
  // Any finite codes, under a scale for each weight.
  void write(std::uint32_t seed) {
    const std::string dtype = GetParam();
    std::mt19937 random(seed);
    std::uniform_real_distribution<float> exponent(-20, -12);
    write_llama(
        directory_ / "in",
        [&](const std::string& name, std::uint64_t n, std::uint64_t k) {
          std::string codes;
          for (std::uint64_t i = 0; i < n * k; ++i) {
            auto code = static_cast<std::uint8_t>(random());
            if (dtype == "F8_E5M2" && (code & 0x7CU) == 0x7CU) code &= 0x83U;
            if (dtype != "F8_E5M2" && code == 0x80U) code = 1;
            codes += static_cast<char>(code);
          }
          const std::uint16_t scale = formats::bf16_from_float(std::exp2(exponent(random)));
          return std::vector<TinyTensor>{
              {name + ".weight", dtype, {n, k}, codes},
              {name + ".weight_scale",
               "BF16",
               {},
               std::string(reinterpret_cast<const char*>(&scale), sizeof scale)}};
        },
        R"(, "quantization_config": {"quant_method": "fp8", "activation_scheme": "dynamic"}})");
  }
  Conversion conversion(SchemeId to) {
    std::filesystem::remove_all(directory_ / "out");
    Conversion made(directory_ / "in", directory_ / "out");
    made.recipe.to = to;
    made.recipe.allow.add("engine-refuses=*");
    return made;
  }
  std::vector<std::string> failed() { return failed_gates(directory_ / "in", directory_ / "out"); }

  TempDir directory_;
};
INSTANTIATE_TEST_SUITE_P(Kinds, OtherFloat8,
                         ::testing::Values("F8_E5M2", "F8_E4M3FNUZ", "F8_E5M2FNUZ"),
                         [](const auto& row) { return std::string(row.param); });

TEST_P(OtherFloat8, RightOutputsPassInEveryScheme) {
  for (std::uint32_t seed = 0; seed < 4; ++seed) {
    write(seed);
    for (const SchemeId to : {SchemeId::kBf16, SchemeId::kF32, SchemeId::kFp8Tensor,
                              SchemeId::kFp8Channel, SchemeId::kInt8Channel}) {
      for (const convert::Via via : {convert::Via::kF32, convert::Via::kBf16}) {
        SCOPED_TRACE(
            fmt::format("{} {} {}", seed, formats::scheme_facts(to).name, static_cast<int>(via)));
        Conversion made = conversion(to);
        made.recipe.choices.via = via;
        made.run();
        EXPECT_THAT(failed(), ::testing::IsEmpty());
      }
    }
  }
}

// The scale under which weights are fused is no longer that of any value.
TEST_P(OtherFloat8, AFactorOfAllScalesIsFound) {
  write(1);
  conversion(SchemeId::kFp8Tensor).run();
  EditedWeights weights(directory_ / "out");
  for (const char* name : {"q_proj", "k_proj", "v_proj"}) {
    EditedTensor& scale =
        weights.at(std::string("model.layers.0.self_attn.") + name + ".weight_scale");
    scale.set<float>(0, scale.get<float>(0) * 1.01F);
  }
  weights.save();
  EXPECT_THAT(failed(), ::testing::Not(::testing::IsEmpty()));
}

}  // namespace
}  // namespace ingot::testing
