#include <iterator>

#include "check/check.h"
#include "formats/config/nested_config.h"
#include "formats/container/float8.h"
#include "formats/family/families.h"
#include "formats/json/json.h"
#include "synth/synth.h"
#include "tests/check/findings.h"
#include "tests/convert/conversion.h"
#include "tests/convert/output_tensors.h"
#include "tests/convert/slicing/sliced.h"
#include "tests/support/bytes.h"
#include "tests/support/edited_weights.h"
#include "tests/support/test.h"
#include "tests/support/tiny_checkpoint.h"

// Small checkpoints of released families (tests/golden/PROVENANCE.md): read by headers, decoded
// values against hashes from other people's code, and the output's nested configs.

namespace ingot::convert {
namespace {

using formats::Json;
using formats::Role;
using formats::SchemeId;
using namespace ingot::testing;

formats::Checkpoint open(const std::filesystem::path& path, const std::string& family = "") {
  return formats::Checkpoint::open(path, {.family = family});
}

Json config_of(const std::filesystem::path& directory) {
  return formats::read_json_file(directory / "config.json", 1 << 20);
}

/// A copy of a fixture that a test may change; returns its path.
std::filesystem::path copy_fixture(const std::string& name, const std::filesystem::path& to) {
  std::filesystem::copy(fixture(name), to, std::filesystem::copy_options::recursive);
  return to;
}

void write_config(const std::filesystem::path& directory, const Json& config) {
  std::ofstream(directory / "config.json") << formats::json_text(config);
}

std::set<std::string> rules_found(const std::filesystem::path& directory,
                                  const std::string& family = "") {
  check::CheckOptions options;
  options.family = family;
  options.deep = true;
  std::set<std::string> rules;
  for (const check::Finding& finding :
       testing::but_tokenizer(check::check_checkpoint(directory, options).findings))
    rules.insert(std::string(finding.rule) + (finding.rule.empty() ? finding.message : ""));
  return rules;
}

/// `name` is that of a folder; `family` is the value of `--family`.
struct Fixture {
  const char* name;
  const char* family;
};

class DecodedFixture : public ::testing::TestWithParam<Fixture> {};

/// Every weight that `golden` names has its values, as F32 and as BF16 or F16.
void expect_values(const std::filesystem::path& source, const std::filesystem::path& golden_path,
                   const char* family) {
  const Json golden = formats::read_json_file(golden_path, 1 << 20);
  for (const auto& [scheme, key] :
       {std::pair{SchemeId::kF32, "f32_sha256"}, std::pair{SchemeId::kBf16, "bf16_sha256"},
        std::pair{SchemeId::kF16, "f16_sha256"}}) {
    if (!golden.front().contains(key)) continue;
    const TempDir directory;
    Conversion conversion(source, directory / "out");
    conversion.family = family;
    conversion.recipe.to = scheme;
    for (const auto& [name, facts] : golden.items()) {
      // Nothing else asks for a table.
      if (name.find("ngram_embedding") == name.npos) continue;
      conversion.recipe.rules = {
          make_rule(name, formats::scheme_facts(scheme).name, RuleOrigin::kRule)};
    }
    conversion.run();
    const OutputTensors output = read_output(directory / "out");
    for (const auto& [name, facts] : golden.items()) {
      ASSERT_TRUE(output.contains(name)) << name;
      EXPECT_EQ(output.at(name).shape, facts.at("shape").get<formats::Shape>()) << name;
      EXPECT_EQ(sha256(output.at(name).bytes), facts.at(key).get<std::string>()) << name;
    }
    EXPECT_TRUE(formats::quantization_block(config_of(directory / "out")).is_null());
  }
}

TEST_P(DecodedFixture, EqualsOtherPeoplesValues) {
  const std::string name = GetParam().name;
  expect_values(fixture(name), fixture(name + ".decoded.json"), GetParam().family);
}

/// Forms that are read and written in another one.
class RepackedFixture : public ::testing::TestWithParam<const char*> {};

TEST_P(RepackedFixture, EqualsOtherPeoplesValues) {
  const std::string name = GetParam();
  expect_values(fixture(name), fixture(name + ".decoded.json"), "");
}

INSTANTIATE_TEST_SUITE_P(Families, RepackedFixture, ::testing::Values("llama_gptq", "mixtral_awq"),
                         [](const auto& row) { return std::string(row.param); });

/// Small checkpoints of other tools, by folder, with the values of their weights.
class OtherTools : public ::testing::TestWithParam<Fixture> {};

TEST_P(OtherTools, EqualOtherPeoplesValues) {
  const auto made = fixture(std::string("../") + GetParam().name);
  const TempDir directory;
  std::filesystem::create_directory(directory / "in");
  for (const char* file : {"config.json", "model.safetensors", "hf_quant_config.json"}) {
    if (std::filesystem::exists(made / file)) std::filesystem::copy(made / file, directory / "in");
  }
  expect_values(directory / "in", made / "decoded.json", GetParam().family);
}

constexpr const char* kAnyNames = "generic";
INSTANTIATE_TEST_SUITE_P(
    Folders, OtherTools,
    ::testing::Values(
        Fixture{"fp8_blocks", kAnyNames}, Fixture{"other_tools/float8", kAnyNames},
        Fixture{"other_tools/gptq_2bit_gptq", kAnyNames},
        Fixture{"other_tools/gptq_2bit_gptq_v2", kAnyNames},
        Fixture{"other_tools/gptq_2bit_order", kAnyNames},
        Fixture{"other_tools/gptq_3bit_gptq", kAnyNames},
        Fixture{"other_tools/gptq_3bit_gptq_v2", kAnyNames},
        Fixture{"other_tools/gptq_3bit_order", kAnyNames},
        Fixture{"other_tools/gptq_8bit_gptq", kAnyNames},
        Fixture{"other_tools/gptq_8bit_gptq_v2", kAnyNames},
        Fixture{"other_tools/gptq_8bit_order", kAnyNames},
        Fixture{"other_tools/auto_round_gptq", ""}, Fixture{"other_tools/auto_round_awq", ""},
        Fixture{"other_tools/auto_round_2bit", ""},
        Fixture{"other_tools/auto_round_2bit_zeros", ""},
        Fixture{"other_tools/auto_round_3bit", ""}, Fixture{"other_tools/auto_round_8bit", ""},
        Fixture{"other_tools/auto_round_mxfp4", ""}, Fixture{"other_tools/auto_round_mxfp8", ""},
        Fixture{"other_tools/auto_round_nvfp4", ""}, Fixture{"other_tools/auto_round_fp8", ""},
        Fixture{"other_tools/llm_compressor_int8", ""}, Fixture{"other_tools/quark_fp8", ""},
        Fixture{"other_tools/quark_fp8_channel", ""}, Fixture{"other_tools/quark_e5m2", ""},
        Fixture{"other_tools/quark_int8", ""}, Fixture{"other_tools/quark_int8_tensor", ""},
        Fixture{"other_tools/quark_int8_zeros", ""}, Fixture{"other_tools/quark_mxfp4", ""},
        Fixture{"autumn_forms/ct_head_embedding", kAnyNames},
        Fixture{"autumn_forms/fp8_mxfp4_routed", kAnyNames},
        Fixture{"autumn_forms/fp8_mxfp4_store_dtype", kAnyNames},
        Fixture{"autumn_forms/fp8_stack_scale_inv", kAnyNames},
        Fixture{"autumn_forms/gemma_qat", kAnyNames},
        Fixture{"autumn_forms/minimax_m3_nvfp4", kAnyNames},
        Fixture{"autumn_forms/modelopt_nvfp4_awq", kAnyNames},
        Fixture{"autumn_forms/modelopt_nvfp4_head", kAnyNames},
        Fixture{"autumn_forms/modelopt_w4a16_awq", kAnyNames},
        Fixture{"autumn_forms/muse_spark_nvfp4", kAnyNames},
        Fixture{"autumn_forms/thinking_machines", kAnyNames}),
    [](const auto& at) {
      const std::string folder = at.param.name;
      return folder.substr(folder.rfind('/') + 1);
    });

/// Stacks whose parts have forms of a single maker, by the maker's own family. Values of the stacks
/// under any names are other people's (OtherTools).
struct MakersStack {
  const char* folder;
  std::vector<JsonEdit> config;  ///< keys that the form leaves out
  /// Tensors of which only so many rows and columns of each expert are of this model.
  std::map<std::string, std::array<std::size_t, 2>> cropped;
  std::string gates_and_ups, downs, experts;
  bool is_interleaved;
};

void crop(EditedTensor& tensor, std::array<std::size_t, 2> sides) {
  const std::size_t rows = tensor.shape.at(1), row_bytes = tensor.bytes.size() / tensor.shape[0] / rows;
  const std::size_t kept_bytes = row_bytes * sides[1] / tensor.shape.at(2);
  std::string kept;
  for (std::size_t row = 0; row < tensor.shape[0] * rows; ++row) {
    if (row % rows < sides[0]) kept += tensor.bytes.substr(row * row_bytes, kept_bytes);
  }
  tensor.shape = {tensor.shape[0], sides[0], sides[1]};
  tensor.bytes = std::move(kept);
}

class MakersStacks : public ::testing::TestWithParam<MakersStack> {};

/// Makes a copy of the form that its family opens; returns its path.
std::filesystem::path of_its_family(const MakersStack& row, const TempDir& directory) {
  std::filesystem::path source = directory / "in";
  std::filesystem::create_directory(source);
  for (const char* file : {"config.json", "model.safetensors"}) {
    std::filesystem::copy(fixture(std::string("../autumn_forms/") + row.folder) / file,
                          source / file);
  }
  edit_json(source / "config.json", row.config);
  EditedWeights weights(source);
  for (const auto& [name, sides] : row.cropped) crop(weights.at(name), sides);
  weights.save();
  return source;
}

// Gate and up are encoded for the scale that they share; down would keep its codes, and its scale
// of activations.
TEST_P(MakersStacks, BecomeNvfp4WithActivationsAlike) {
  const TempDir directory;
  Conversion conversion(of_its_family(GetParam(), directory), directory / "out");
  conversion.recipe.to = SchemeId::kNvfp4;
  conversion.recipe.choices.experts = ExpertChoice::kSeparate;
  conversion.run();
  const Json groups = config_of(directory / "out")["quantization_config"]["config_groups"];
  ASSERT_EQ(groups.size(), 1U) << groups.dump();
  EXPECT_TRUE(groups.begin()->at("input_activations").is_null());
  for (const auto& [name, tensor] : read_output(directory / "out"))
    EXPECT_FALSE(name.ends_with("input_global_scale")) << name;
}

TEST_P(MakersStacks, GiveTheirValuesOneByOne) {
  const MakersStack& row = GetParam();
  const TempDir directory;
  const std::filesystem::path source = of_its_family(row, directory);
  Conversion whole(source, directory / "whole");
  whole.family = kAnyNames;
  whole.run();
  const OutputTensors stacks = read_output(directory / "whole");
  Conversion apart(source, directory / "apart");
  apart.recipe.choices.experts = ExpertChoice::kSeparate;
  apart.run();
  const OutputTensors singles = read_output(directory / "apart");
  const auto expect_row = [&](const OutputTensor& stack, std::size_t expert, std::size_t i,
                              std::string_view part, std::size_t at) {
    const std::size_t n_rows = stack.shape.at(1), row_bytes = stack.shape.at(2) * 2;
    const std::string name = fmt::format("{}{}.{}_proj.weight", row.experts, expert, part);
    ASSERT_TRUE(singles.contains(name)) << name;
    EXPECT_EQ(singles.at(name).bytes.substr(at * row_bytes, row_bytes),
              stack.bytes.substr((expert * n_rows + i) * row_bytes, row_bytes))
        << name << ", row " << at;
  };
  const OutputTensor& both = stacks.at(row.gates_and_ups);
  const OutputTensor& downs = stacks.at(row.downs);
  for (std::size_t expert = 0; expert < both.shape.at(0); ++expert) {
    for (std::size_t i = 0; i < both.shape.at(1); ++i) {
      const std::size_t half = both.shape[1] / 2;
      const bool is_gate = row.is_interleaved ? i % 2 == 0 : i < half;
      expect_row(both, expert, i, is_gate ? "gate" : "up", row.is_interleaved ? i / 2 : i % half);
    }
    for (std::size_t i = 0; i < downs.shape.at(1); ++i) expect_row(downs, expert, i, "down", i);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Forms, MakersStacks,
    ::testing::Values(
        MakersStack{.folder = "muse_spark_nvfp4",
                    .config = {"/text_config/num_hidden_layers 1", "/text_config/hidden_size 64",
                               "/text_config/num_attention_heads 4", "/text_config/vocab_size 8",
                               "/text_config/mlp_layer_types [\"sparse\"]",
                               "/text_config/layer_types [\"full_attention\"]"},
                    .cropped = {},
                    .gates_and_ups = "model.language_model.layers.0.mlp.experts.gate_up_proj",
                    .downs = "model.language_model.layers.0.mlp.experts.down_proj",
                    .experts = "model.language_model.layers.0.mlp.experts.",
                    .is_interleaved = false},
        // NVFP4 for w13, and MXFP8 for w2, which is made of as many columns as that has gates.
        MakersStack{
            .folder = "thinking_machines",
            .config = {"/model_type \"inkling2\"", "/text_config/model_type \"inkling2_text\"",
                       "/text_config/num_hidden_layers 1", "/text_config/vocab_size 8",
                       "/text_config/num_attention_heads 4",
                       "/text_config/moe_intermediate_size 32"},
            .cropped = {{"model.llm.layers.0.mlp.experts.w13_weight", {64, 32}},
                        {"model.llm.layers.0.mlp.experts.w13_weight_scale", {64, 4}},
                        {"model.llm.layers.0.mlp.experts.w2_weight", {64, 32}},
                        {"model.llm.layers.0.mlp.experts.w2_weight_scale", {64, 1}}},
            .gates_and_ups = "model.llm.layers.0.mlp.experts.w13_weight",
            .downs = "model.llm.layers.0.mlp.experts.w2_weight",
            .experts = "model.llm.layers.0.mlp.experts.",
            .is_interleaved = true}),
    [](const auto& at) { return std::string(at.param.folder); });

TEST_P(DecodedFixture, IsCopiedToTheByte) {
  const TempDir directory;
  Conversion conversion(fixture(GetParam().name), directory / "out");
  conversion.family = GetParam().family;
  conversion.recipe.to = std::nullopt;
  conversion.run();
  EXPECT_EQ(read_output(directory / "out"), read_output(fixture(GetParam().name)));
  EXPECT_EQ(config_of(directory / "out"), config_of(fixture(GetParam().name)));
}

TEST_P(DecodedFixture, HasNoFaults) {
  const check::CheckResult result =
      check::check_checkpoint(fixture(GetParam().name), {.family = GetParam().family});
  // Widths below a block are warned of.
  for (const check::Finding& finding : result.findings)
    EXPECT_EQ(finding.severity, check::Severity::kWarning) << finding.message;
}

INSTANTIATE_TEST_SUITE_P(
    Families, DecodedFixture,
    ::testing::Values(Fixture{"ministral3_fp8", "generic"}, Fixture{"mistral4_fp8", "generic"},
                      Fixture{"glm4_moe_fp8_channel", "generic"},
                      Fixture{"glm4_moe_fp8_block", "generic"}, Fixture{"deepseek_v4", "generic"},
                      Fixture{"deepseek_v4_base", "generic"}, Fixture{"deepseek_v4_nvfp4", ""},
                      Fixture{"qwen3_5_moe_fp8", ""}, Fixture{"gpt_oss", ""},
                      Fixture{"llama_fp8_static", ""}, Fixture{"qwen3_fp8_block", ""},
                      Fixture{"qwen3_vl_moe_fp8", ""}, Fixture{"qwen3_5_moe_fp8", "generic"}),
    [](const auto& row) {
      return std::string(row.param.name) + (row.param.family[0] == '\0' ? "" : "_by_headers");
    });

TEST(NestedConfig, IsReadThroughTheTextModel) {
  const formats::Checkpoint source = open(fixture("qwen3_5_moe"));
  EXPECT_EQ(source.family().name, "qwen3_5_moe");
  EXPECT_EQ(source.config().model_type, "qwen3_5_moe");
  EXPECT_EQ(source.config().text.model_type, "qwen3_5_moe_text");
  EXPECT_EQ(source.config().text.prefix, "model.language_model.");
  EXPECT_EQ(source.config().n_routed_experts, 6U);
  EXPECT_EQ(source.config().num_nextn_predict_layers, 1U);
  EXPECT_EQ(rules_found(fixture("qwen3_5_moe")), std::set<std::string>());
}

TEST(NestedConfig, TowersAreOfAnotherModality) {
  for (const char* family : {"", "generic"}) {
    const formats::Checkpoint source = open(fixture("qwen3_5_moe"), family);
    for (const formats::LogicalTensor& tensor : source.tensors()) {
      const bool is_tower = tensor.rule != nullptr && tensor.rule->role == Role::kOtherModality;
      EXPECT_EQ(is_tower, tensor.name.starts_with("model.visual.")) << tensor.name;
    }
  }
}

TEST(NestedConfig, StacksMayBeInputMajor) {
  const formats::Checkpoint source = open(fixture("llama4"));
  EXPECT_EQ(source.config().text.prefix, "language_model.");
  EXPECT_EQ(rules_found(fixture("llama4")), std::set<std::string>());
  const TempDir directory;
  Conversion conversion(fixture("llama4"), directory / "out");
  conversion.recipe.to = SchemeId::kFp8Channel;
  conversion.recipe.rules.push_back(make_rule("role:experts", "keep", RuleOrigin::kRule));
  conversion.recipe.choices.experts = ExpertChoice::kKeep;
  conversion.run();
  const OutputTensors before = read_output(fixture("llama4"));
  for (const auto& [name, tensor] : read_output(directory / "out")) {
    if (name.find(".experts.") == name.npos) continue;
    EXPECT_EQ(before.at(name), tensor) << name;
  }
  EXPECT_EQ(rules_found(directory / "out"), std::set<std::string>());
}

TEST(NestedConfig, KeepsNestingPrefixAndTowers) {
  const TempDir directory;
  Conversion conversion(fixture("qwen3_5_moe_fp8"), directory / "out");
  conversion.recipe.to = SchemeId::kFp8Channel;
  conversion.run();
  const OutputTensors before = read_output(fixture("qwen3_5_moe_fp8"));
  const OutputTensors after = read_output(directory / "out");
  for (const auto& [name, tensor] : before) {
    if (name.find("visual") == name.npos) continue;
    EXPECT_EQ(after.at(name), tensor) << name;
  }
  const Json source = config_of(fixture("qwen3_5_moe_fp8")), config = config_of(directory / "out");
  EXPECT_EQ(config.at("text_config"), source.at("text_config"));
  EXPECT_EQ(config.at("quantization_config").at("quant_method"), "compressed-tensors");
  EXPECT_EQ(rules_found(directory / "out"), std::set<std::string>());
}

TEST(NestedConfig, ListsTowersWhereEnginesWouldQuantizeThem) {
  const TempDir directory;
  Conversion conversion(fixture("qwen3_5_moe"), directory / "out");
  conversion.recipe.to = SchemeId::kFp8Block;
  conversion.run();
  const Json block = config_of(directory / "out").at("quantization_config");
  const auto listed = block.at("modules_to_not_convert").get<std::set<std::string>>();
  EXPECT_TRUE(listed.contains("model.visual.blocks.0.attn.qkv"));
  EXPECT_TRUE(listed.contains("lm_head"));
  EXPECT_FALSE(rules_found(directory / "out").contains("quantized.list-names-nothing"));
}

TEST(NestedConfig, QuantizationGoesWhereAllEnginesLook) {
  const TempDir directory;
  const std::filesystem::path moved = copy_fixture("qwen3_5_moe_fp8", directory / "moved");
  Json config = config_of(moved);
  config["text_config"]["quantization_config"] = config.at("quantization_config");
  config.erase("quantization_config");
  write_config(moved, config);
  for (const auto& [scheme, n_left] :
       {std::pair{SchemeId::kFp8Channel, 1U}, std::pair{SchemeId::kBf16, 0U}}) {
    const std::filesystem::path out = directory / (n_left == 0 ? "bf16" : "fp8");
    Conversion conversion(moved, out);
    conversion.recipe.to = scheme;
    conversion.run();
    const Json written = config_of(out);
    EXPECT_EQ(written.count("quantization_config"), n_left);
    EXPECT_FALSE(written.at("text_config").contains("quantization_config"));
  }
}

TEST(NestedConfig, DroppedMtpLayersAreNotPromised) {
  const TempDir directory;
  Conversion conversion(fixture("qwen3_5_moe"), directory / "out");
  conversion.recipe.to = std::nullopt;
  conversion.recipe.mtp = MtpPolicy::kDrop;
  conversion.run();
  EXPECT_EQ(config_of(directory / "out").at("text_config").at("mtp_num_hidden_layers"), 0);
  for (const auto& [name, tensor] : read_output(directory / "out"))
    EXPECT_FALSE(name.starts_with("mtp.")) << name;
}

// vLLM and SGLang build the experts of DeepSeek-V4 only by this key.
TEST(ExpertDtype, IsThatOfTheOutputsExperts) {
  const auto written = [](std::optional<SchemeId> to) {
    const TempDir directory;
    Conversion conversion(fixture("deepseek_v4"), directory / "out");
    conversion.recipe.to = to;
    conversion.run();
    return config_of(directory / "out");
  };
  EXPECT_EQ(written(std::nullopt)["expert_dtype"], "fp4");
  EXPECT_EQ(written(SchemeId::kFp8Block)["expert_dtype"], "fp8");
  for (const SchemeId other : {SchemeId::kBf16, SchemeId::kFp8Channel})
    EXPECT_FALSE(written(other).contains("expert_dtype"));
}

TEST(NestedConfig, SlicesGiveTheBytesBack) {
  for (const auto& [name, cut] : {std::pair{"qwen3_5_moe", ingot::testing::Cut{.ep = 3}},
                                  std::pair{"qwen3_5_moe_fp8", ingot::testing::Cut{.ep = 2}},
                                  std::pair{"qwen3_5_moe", ingot::testing::Cut{.ep = 2, .pp = 2}},
                                  std::pair{"llama4", ingot::testing::Cut{.ep = 2, .pp = 2}}}) {
    const TempDir directory;
    ingot::testing::slicing(fixture(name), directory / "ranks", cut).run();
    ingot::testing::keeping(directory / "ranks", directory / "merged").run();
    EXPECT_EQ(read_output(directory / "merged"), read_output(fixture(name))) << cut.name();
    EXPECT_EQ(config_of(directory / "merged"), config_of(fixture(name))) << cut.name();
  }
}

// Experts in attention share the key heads: each has a query for every one of them.
TEST(JetMoe, SlicesHaveKeyHeadsOfEveryExpert) {
  const TempDir directory;
  Json config = formats::read_json_file(
      INGOT_SOURCE_DIR "/tests/golden/forward/jetmoe/checkpoint/config.json", 1 << 20);
  config.update({{"num_key_value_heads", 4}, {"kv_channels", 8}, {"vocab_size", 64}});
  formats::write_synthetic_checkpoint(directory / "in", {.family = formats::find_family("jetmoe"),
                                                         .config = formats::json_text(config)});
  const ingot::testing::Cut cut{.tp = 2};
  ingot::testing::slicing(directory / "in", directory / "ranks", cut).run();
  ingot::testing::keeping(directory / "ranks", directory / "merged").run();
  const OutputTensors whole = read_output(directory / "in");
  EXPECT_EQ(read_output(directory / "merged"), whole);
  const OutputTensors second =
      read_output(ingot::testing::rank_directory(directory / "ranks", 1, cut));
  const std::string layer = "model.layers.0.self_attention.";
  // Keys are in front of values, and each rank has half of both.
  const std::string& both = whole.at(layer + "kv_proj.weight").bytes;
  const std::size_t quarter = both.size() / 4;
  EXPECT_EQ(second.at(layer + "kv_proj.weight").bytes,
            both.substr(quarter, quarter) + both.substr(3 * quarter));
  const std::string& queries = whole.at(layer + "experts.input_linear.weight").bytes;
  const std::size_t n_experts = 5, half = queries.size() / n_experts / 2;
  std::string wanted;
  for (std::size_t e = 0; e < n_experts; ++e) wanted += queries.substr((2 * e + 1) * half, half);
  EXPECT_EQ(second.at(layer + "experts.input_linear.weight").bytes, wanted);
  // Outputs of a key head on two ranks would be added twice.
  expect_error(
      ErrorCode::kInvalidArgument, {"4 num_key_value_heads cannot be cut for --tp 8"},
      [&] { ingot::testing::slicing(directory / "in", directory / "no", {.tp = 8}).run(); });
}

// Names of a text model in front of those of a family without images, as in Kimi K2.5.
TEST(NestedConfig, AnyFamilyMayStandBehindAPrefix) {
  ingot::testing::TinyCheckpoint tiny = ingot::testing::tiny_deepseek_v3();
  Json text = Json::parse(tiny.config);
  for (auto& tensor : tiny.files.at("model.safetensors"))
    tensor.name = "language_model." + tensor.name;
  tiny.files.at("model.safetensors")
      .push_back({"vision_tower.patch_embed.proj.weight", "BF16", {8, 4}});
  tiny.files.at("model.safetensors").push_back({"mm_projector.proj.0.weight", "BF16", {8, 8}});
  tiny.config = formats::json_text({{"model_type", "kimi_k25"}, {"text_config", text}});
  const TempDir directory;
  std::filesystem::create_directory(directory / "in");
  tiny.write(directory / "in");
  Conversion conversion(directory / "in", directory / "out");
  conversion.recipe.to = SchemeId::kFp8Block;
  conversion.run();
  const Json config = config_of(directory / "out");
  EXPECT_FALSE(config.contains("quantization_config"));
  const Json& block = config.at("text_config").at("quantization_config");
  const auto listed = block.at("modules_to_not_convert").get<std::set<std::string>>();
  EXPECT_TRUE(listed.contains("mm_projector.proj.0"));
  EXPECT_TRUE(listed.contains("language_model.lm_head"));
  const formats::Checkpoint output = open(directory / "out");
  EXPECT_EQ(output.family().name, "kimi_k2");
  EXPECT_EQ(output.config().text.prefix, "language_model.");
  for (const formats::LogicalTensor& tensor : output.tensors()) {
    const bool is_quantized = tensor.encoding.scheme == SchemeId::kFp8Block;
    EXPECT_EQ(is_quantized, tensor.rule->fp8_by_default) << tensor.name;
  }
}

TEST(NestedConfig, NamesWithoutThePrefixAreUnknown) {
  ingot::testing::TinyCheckpoint tiny = ingot::testing::tiny_deepseek_v3();
  const Json text = Json::parse(tiny.config);
  auto& tensors = tiny.files.at("model.safetensors");
  for (auto& tensor : tensors) tensor.name = "language_model." + tensor.name;
  tensors.push_back({"model.norm.weight", "BF16", {8}});
  tiny.config = formats::json_text({{"model_type", "any"}, {"text_config", text}});
  const TempDir directory;
  tiny.write(directory.path());
  ingot::testing::expect_error(ErrorCode::kUnknownTensor, {"model.norm.weight"},
                               [&] { open(directory.path()); });
}

TEST(NestedConfig, OfAnUnknownTextModelIsRefused) {
  const TempDir directory;
  ingot::testing::TinyCheckpoint tiny = ingot::testing::tiny_deepseek_v3();
  for (const char* config :
       {R"({"model_type": "a", "text_config": {"model_type": "b"}})",
        R"({"model_type": "a", "text_config": {}})", R"({"model_type": "a", "text_config": []})",
        R"({"model_type": "a", "llm_config": {"text_config": {"model_type": "deepseek_v3"}}})"}) {
    tiny.config = config;
    tiny.write(directory.path());
    ingot::testing::expect_error(ErrorCode::kUnsupported, {"no known family", "'a'"},
                                 [&] { open(directory.path()); });
  }
}

/// A table of n-grams in groups of 32, and a linear in blocks of 32 x 32.
ingot::testing::TinyCheckpoint with_table(std::uint64_t table_rows) {
  ingot::testing::TinyCheckpoint tiny;
  tiny.config = formats::json_text({{"model_type", "any"},
                                    {"quantization_config",
                                     {{"quant_method", "fp8"},
                                      {"fmt", "e4m3"},
                                      {"activation_scheme", "dynamic"},
                                      {"weight_block_size", {32, 32}},
                                      {"scale_fmt", "ue8m0"}}}});
  const auto exponents = [](std::uint64_t n) { return std::string(n, '\x7F'); };
  tiny.files["model.safetensors"] = {
      {"model.layers.0.ngram_embedding.weight", "F8_E4M3", {table_rows, 64}},
      {"model.layers.0.ngram_embedding.scale",
       "F8_E8M0",
       {table_rows, 2},
       exponents(table_rows * 2)},
      {"model.layers.0.mlp.up_proj.weight", "F8_E4M3", {96, 64}},
      {"model.layers.0.mlp.up_proj.scale", "F8_E8M0", {3, 2}, exponents(6)}};
  return tiny;
}

TEST(LookupTable, IsKeptInItsScheme) {
  const TempDir directory;
  std::filesystem::create_directory(directory / "in");
  with_table(5000).write(directory / "in");
  const formats::Checkpoint source = open(directory / "in", "generic");
  const formats::LogicalTensor& table = source.tensors()[0];
  ASSERT_NE(table.rule, nullptr);
  EXPECT_EQ(table.rule->role, Role::kLookupTable);
  EXPECT_EQ(table.encoding.scheme, SchemeId::kMxfp8);
  EXPECT_EQ(source.tensors()[1].encoding.block_rows, 32U);
  EXPECT_EQ(source.tensors()[1].encoding.block_cols, 32U);
  Conversion conversion(directory / "in", directory / "out");
  conversion.family = "generic";
  conversion.recipe.to = std::nullopt;
  conversion.run();
  EXPECT_EQ(read_output(directory / "out"), read_output(directory / "in"));
}

TEST(StoredBlocks, AreReadTensorByTensor) {
  using Block = std::array<std::uint64_t, 2>;
  for (const Block block :
       {Block{128, 128}, Block{64, 64}, Block{32, 32}, Block{1, 128}, Block{1, 64}, Block{1, 32}}) {
    const TempDir directory;
    ingot::testing::TinyCheckpoint tiny;
    tiny.config = R"({"model_type": "any", "quantization_config": {"quant_method": "fp8"}})";
    constexpr std::uint64_t kRows = 200, kCols = 320;
    const std::uint64_t rows = (kRows + block[0] - 1) / block[0];
    const std::uint64_t cols = (kCols + block[1] - 1) / block[1];
    std::string codes, scales;
    for (std::uint64_t i = 0; i < kRows * kCols; ++i)
      codes.push_back(static_cast<char>(0x30 + i % 13));
    for (std::uint64_t i = 0; i < rows * cols; ++i) {
      const float scale = 0.5F + static_cast<float>(i % 7);
      scales.append(reinterpret_cast<const char*>(&scale), sizeof scale);
    }
    tiny.files["model.safetensors"] = {{"a.weight", "F8_E4M3", {kRows, kCols}, codes},
                                       {"a.weight_scale_inv", "F32", {rows, cols}, scales}};
    std::filesystem::create_directory(directory / "in");
    tiny.write(directory / "in");
    Conversion conversion(directory / "in", directory / "out");
    conversion.family = "generic";
    conversion.recipe.to = SchemeId::kF32;
    conversion.run();
    const std::vector<float> values = read_output(directory / "out").at("a.weight").as<float>();
    for (std::uint64_t i = 0; i < values.size(); ++i) {
      const std::uint64_t scale = i / kCols / block[0] * cols + i % kCols / block[1];
      const float value = formats::float_from_e4m3(static_cast<std::uint8_t>(codes[i])) *
                          (0.5F + static_cast<float>(scale % 7));
      ASSERT_EQ(values[i], value) << block[0] << " x " << block[1] << " at " << i;
    }
  }
}

TEST(StoredBlocks, AnotherClaimIsFound) {
  const TempDir directory;
  const std::filesystem::path bent = copy_fixture("qwen3_5_moe_fp8", directory / "bent");
  Json config = config_of(bent);
  config["quantization_config"]["weight_block_size"] = {64, 64};
  write_config(bent, config);
  EXPECT_TRUE(rules_found(bent).contains("quantized.block-claim"));
}

TEST(StoredBlocks, AListThatNamesNothingIsFound) {
  const TempDir directory;
  const std::filesystem::path bent = copy_fixture("qwen3_5_moe_fp8", directory / "bent");
  Json config = config_of(bent);
  config["quantization_config"]["modules_to_not_convert"] = {"transformer.wte"};
  write_config(bent, config);
  EXPECT_TRUE(rules_found(bent).contains("quantized.list-names-nothing"));
}

// The example quantized, against hashes from a program that shares no code with this one
// (tests/golden/PROVENANCE.md).

TEST(GoldenQuantized, Int8AndFp8RowsEqualIndependentResults) {
  const std::pair<SchemeId, const char*> rows[] = {
      {SchemeId::kInt8Channel, "int8.sha256.json"},
      {SchemeId::kFp8Channel, "fp8_channel.sha256.json"}};
  for (const auto& [scheme, file] : rows) {
    const TempDir directory;
    Conversion conversion(tiny_v32(), directory / "out");
    conversion.recipe.to = scheme;
    conversion.recipe.choices.fp8_grid = quantize::Fp8Grid::kAmax;
    conversion.recipe.choices.search = quantize::ScaleSearch::kAmax;
    conversion.run();
    const auto golden = formats::read_json_file(
        std::filesystem::path(INGOT_SOURCE_DIR) / "tests/golden/tiny-v32" / file, 1 << 20);
    const auto output = read_output(directory / "out");
    ASSERT_EQ(output.size(), golden.size()) << file;
    for (const auto& [name, facts] : golden.items()) {
      ASSERT_TRUE(output.contains(name)) << name;
      const auto& tensor = output.at(name);
      EXPECT_EQ(formats::dtype_name(tensor.dtype), facts.at("dtype").get<std::string>()) << name;
      EXPECT_EQ(tensor.shape, facts.at("shape").get<formats::Shape>()) << name;
      EXPECT_EQ(sha256(tensor.bytes), facts.at("sha256").get<std::string>()) << name;
    }
  }
}

}  // namespace
}  // namespace ingot::convert
