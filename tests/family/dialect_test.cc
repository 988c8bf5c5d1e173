#include "formats/dialect/dialect.h"

#include <algorithm>
#include <set>

#include <gtest/gtest.h>

#include "formats/dialect/source_activations.h"
#include "formats/family/families.h"
#include "formats/json/json.h"
#include "tests/support/expect_error.h"

namespace ingot::formats {
namespace {

using ingot::testing::expect_error;

ModelConfig config_with(const std::string& quantization) {
  const std::string member =
      quantization.empty() ? "" : ", \"quantization_config\": " + quantization;
  return parse_model_config("{\"model_type\": \"deepseek_v3\"" + member + "}", "config.json");
}

const Dialect& dialect_named(std::string_view name) {
  const Dialect* dialect = find_dialect(name);
  EXPECT_NE(dialect, nullptr) << name;
  return *dialect;
}

constexpr const char* kReleased =
    R"({"quant_method":"fp8","activation_scheme":"dynamic","scale_fmt":"ue8m0","fmt":"e4m3","weight_block_size":[128,128]})";

constexpr TensorRule kQuantizedRule = {.fp8_by_default = true};

WrittenTensor tensor(std::string_view name, SchemeId scheme, const TensorRule* rule,
                     Activations activations = Activations::kDynamic) {
  WrittenTensor written;
  written.name = name;
  written.scheme = scheme;
  written.activations = activations;
  written.rule = rule;
  return written;
}

constexpr const char* kUpName = "model.layers.0.mlp.up_proj.weight";
constexpr const char* kDownName = "model.layers.0.mlp.down_proj.weight";
const WrittenTensor kUp = tensor(kUpName, SchemeId::kFp8Block, &kQuantizedRule);
const WrittenTensor kPlainUp = tensor(kUpName, SchemeId::kBf16, &kQuantizedRule);
const WrittenTensor kDown = tensor(kDownName, SchemeId::kFp8Block, &kQuantizedRule);
const WrittenTensor kPlainDown = tensor(kDownName, SchemeId::kBf16, &kQuantizedRule);
const WrittenTensor kNorm = tensor("model.norm.weight", SchemeId::kF32, nullptr);
const WrittenTensor kHead = tensor("lm_head.weight", SchemeId::kBf16, nullptr);

/// The block for what is written; the scales of `kReleased` are powers of two.
Json derived(std::string_view dialect, const ModelConfig& source,
             const std::vector<WrittenTensor>& written, bool power_of_two_scales = false) {
  return dialect_named(dialect).quantization_config(
      {.source = source, .tensors = written, .power_of_two_scales = power_of_two_scales});
}

TEST(Dialects, AreChosenByQuantMethod) {
  EXPECT_EQ(dialect_of(config_with("")).name, "deepseek");
  EXPECT_EQ(dialect_of(config_with("{}")).name, "deepseek");
  EXPECT_EQ(dialect_of(config_with(kReleased)).name, "deepseek");
  EXPECT_EQ(dialect_of(config_with(R"({"quant_method": "compressed-tensors"})")).name,
            "compressed-tensors");
  for (const char* method : {"modelopt", "modelopt_fp4"}) {
    EXPECT_EQ(dialect_of(config_with(R"({"quant_method": ")" + std::string(method) + "\"}")).name,
              "modelopt");
  }
  EXPECT_EQ(dialect_of(config_with(R"({"quant_method": "blockwise_int8"})")).name, "deepseek");
  expect_error(ErrorCode::kUnsupported, {"bitsandbytes", "compressed-tensors"}, [] {
    static_cast<void>(dialect_of(config_with(R"({"quant_method": "bitsandbytes"})")));
  });
  EXPECT_EQ(find_dialect("mlx"), nullptr);
}

TEST(Dialects, AreFoundByTheirDescriptionFile) {
  const std::vector<std::string> ascend = {"config.json", "quant_model_description.json"};
  const std::vector<std::string> nvidia = {"config.json", "hf_quant_config.json"};
  EXPECT_EQ(dialect_of(config_with(""), ascend).name, "modelslim");
  EXPECT_EQ(dialect_of(config_with("{}"), ascend).name, "modelslim");
  EXPECT_EQ(dialect_of(config_with(""), nvidia).name, "modelopt");
  EXPECT_EQ(dialect_of(config_with(kReleased), ascend).name, "deepseek");
}

TEST(Dialects, PartsBeginWithCodesAndAreUnique) {
  for (const Dialect* dialect : dialects()) {
    std::set<std::pair<SchemeId, Activations>> rows;
    for (const StorageRow& row : dialect->storage) {
      EXPECT_TRUE(rows.emplace(row.scheme, row.activations).second) << dialect->name;
      EXPECT_EQ(row.parts.front().part, Part::kWeight);
      const bool is_of_stacks = row.experts == ExpertForm::kStacked;
      EXPECT_EQ(row.parts.front().shape, is_of_stacks ? PartShape::kBlocks : PartShape::kCodes);
      EXPECT_TRUE(std::is_sorted(row.parts.begin(), row.parts.end(),
                                 [](const auto& a, const auto& b) { return a.part < b.part; }));
      std::set<std::string_view> suffixes;
      for (const PartRow& part : row.parts)
        EXPECT_TRUE(suffixes.insert(part.suffix).second) << part.suffix;
      EXPECT_EQ(find_storage(*dialect, row.scheme, row.activations), &row);
    }
    EXPECT_EQ(find_storage(*dialect, SchemeId::kBf16), nullptr);
  }
}

TEST(Dialects, DefaultOnesHoldTheirSchemes) {
  for (const SchemeFacts& scheme : schemes()) {
    if (!scheme.quantized) continue;
    EXPECT_NE(find_storage(default_dialect(scheme.id), scheme.id), nullptr) << scheme.name;
  }
}

std::string scale_of(std::string_view dialect, SchemeId scheme, std::string_view weight) {
  for (const PartRow& part : find_storage(dialect_named(dialect), scheme)->parts) {
    if (part.part == Part::kScale) return part_name(part, weight);
  }
  return "";
}

TEST(PartName, FollowsTheDialect) {
  EXPECT_EQ(scale_of("deepseek", SchemeId::kFp8Block, "a.q_proj.weight"),
            "a.q_proj.weight_scale_inv");
  EXPECT_EQ(scale_of("compressed-tensors", SchemeId::kFp8Block, "a.q_proj.weight"),
            "a.q_proj.weight_scale");
  EXPECT_EQ(scale_of("deepseek", SchemeId::kFp8Block, "mlp.experts.gate_up_proj"),
            "mlp.experts.gate_up_proj_scale_inv");
  EXPECT_EQ(part_name(find_storage(dialect_named("compressed-tensors"), SchemeId::kNvfp4)->parts[0],
                      "a.q_proj.weight"),
            "a.q_proj.weight_packed");
}

TEST(QuantizationConfig, IsNullWhenNothingIsQuantized) {
  for (const Dialect* dialect : dialects()) {
    for (const std::vector<WrittenTensor>& written :
         {std::vector<WrittenTensor>{kPlainUp, kNorm}, std::vector<WrittenTensor>{}}) {
      const ModelConfig config = config_with(kReleased);
      const WrittenModel model = {.source = config, .tensors = written};
      EXPECT_TRUE(dialect->quantization_config(model).is_null()) << dialect->name;
      EXPECT_EQ(dialect->description == nullptr, dialect->description_file.empty());
      if (dialect->description == nullptr) continue;
      EXPECT_TRUE(dialect->description(model).is_null()) << dialect->name;
    }
  }
}

TEST(QuantizationConfig, KeepsTheSourceVerbatim) {
  const Json block = derived("deepseek", config_with(kReleased), {kUp, kDown, kNorm, kHead}, true);
  EXPECT_EQ(block.dump(), kReleased) << "keys in their order too";
}

TEST(QuantizationConfig, ListsWhatBecamePlainForBothLoaders) {
  const Json block =
      derived("deepseek", config_with(kReleased), {kPlainUp, kDown, kPlainDown, kHead}, true);
  const Json expected = {"lm_head", "model.layers.0.mlp.down_proj", "model.layers.0.mlp.up_proj"};
  EXPECT_EQ(block["modules_to_not_convert"], expected)
      << "transformers leaves the head alone by itself only where there is no list";
  EXPECT_EQ(block["ignored_layers"], expected);
  EXPECT_EQ(block["scale_fmt"], "ue8m0");
}

// vLLM builds the router of this family with the quantization config.
TEST(QuantizationConfig, ListsTheRouterThatSilenceWouldQuantize) {
  const TensorRule* router = nullptr;
  for (const TensorRule& rule : find_family("qwen3_moe")->rules) {
    if (rule.role == Role::kRouter) router = &rule;
  }
  ASSERT_NE(router, nullptr);
  const auto qwen = [](const std::string& block) {
    return parse_model_config(R"({"model_type": "qwen3_moe")" + block + "}", "config.json");
  };
  const WrittenTensor gate = tensor("model.layers.0.mlp.gate.weight", SchemeId::kBf16, router);
  const Json expected = {"lm_head", "model.layers.0.mlp.gate"};
  const std::string kept = std::string(R"(, "quantization_config": )") + kReleased;
  for (const std::string& block : {std::string(), kept}) {
    const Json made = derived("deepseek", qwen(block), {kUp, gate});
    EXPECT_EQ(made["modules_to_not_convert"], expected) << block;
    EXPECT_EQ(made["ignored_layers"], expected) << block;
  }
  const Json group = {{"targets", {"Linear"}},
                      {"weights",
                       {{"num_bits", 8},
                        {"type", "float"},
                        {"strategy", "block"},
                        {"block_structure", {128, 128}}}},
                      {"input_activations", {{"dynamic", true}}}};
  const Json source = {{"quant_method", "compressed-tensors"},
                       {"config_groups", {{"group_0", group}}},
                       {"ignore", {"lm_head"}}};
  EXPECT_EQ(derived("compressed-tensors", qwen(R"(, "quantization_config": )" + source.dump()),
                    {kUp, gate})["ignore"],
            expected);
}

TEST(QuantizationConfig, HasNoBlocksForWholeTensors) {
  const WrittenTensor up = tensor(kUpName, SchemeId::kFp8Tensor, &kQuantizedRule);
  const auto source = R"({"activation_scheme":"dynamic","fmt":"e4m3","quant_method":"fp8"})";
  EXPECT_EQ(derived("deepseek", config_with(kReleased), {up, kHead}, true).dump(), source);
  EXPECT_EQ(derived("deepseek", config_with(source), {up, kHead}).dump(), source) << "and is kept";
  EXPECT_TRUE(derived("deepseek", config_with(source), {kUp}).contains("weight_block_size"));
}

TEST(QuantizationConfig, AddsToTheListsOfTheSource) {
  const std::string source =
      R"({"quant_method":"fp8","weight_block_size":[128,128],"modules_to_not_convert":["z.last","lm_head"]})";
  const Json block = derived("deepseek", config_with(source), {kPlainUp, kDown});
  const Json expected = {"lm_head", "model.layers.0.mlp.up_proj", "z.last"};
  EXPECT_EQ(block["modules_to_not_convert"], expected);
  EXPECT_EQ(block["ignored_layers"], expected) << "vLLM looks at one list only";
}

TEST(QuantizationConfig, IsKeptWherePlainModulesAreListed) {
  for (const std::string entry : {"model.layers.0.mlp.up_proj", "model.layers.0"}) {
    const std::string source =
        R"({"quant_method":"fp8","weight_block_size":[128,128],"modules_to_not_convert":["lm_head",")" +
        entry + R"("]})";
    EXPECT_EQ(derived("deepseek", config_with(source), {kPlainUp, kDown}).dump(), source);
  }
  const std::string other =
      R"({"quant_method":"fp8","modules_to_not_convert":["lm_head","model.layers.0.mlp.up"]})";
  EXPECT_TRUE(derived("deepseek", config_with(other), {kPlainUp, kDown}).contains("ignored_layers"))
      << "a prefix ends at a dot";
}

TEST(QuantizationConfig, RefusesListsThatAreNone) {
  const std::string source = R"({"quant_method":"fp8","modules_to_not_convert":[1]})";
  expect_error(ErrorCode::kCorrupt, {"modules_to_not_convert"}, [&] {
    static_cast<void>(derived("deepseek", config_with(source), {kPlainUp, kDown}));
  });
}

TEST(QuantizationConfig, IsStandardWithoutASource) {
  const Json block = derived("deepseek", config_with(""), {kUp, kHead});
  EXPECT_EQ(
      block.dump(),
      R"({"activation_scheme":"dynamic","fmt":"e4m3","quant_method":"fp8","weight_block_size":[128,128]})");
}

TEST(QuantizationConfig, PromisesPowersOfTwoOnlyWhereTheyAre) {
  const auto source = R"({"quant_method":"fp8","weight_block_size":[128,128],"scale_fmt":"ue8m0"})";
  EXPECT_FALSE(derived("deepseek", config_with(source), {kUp}).contains("scale_fmt"));
  EXPECT_EQ(derived("deepseek", config_with(R"({"quant_method":"fp8"})"), {kUp}, true).dump(),
            source)
      << "without weight_block_size engines look for one scale per tensor";
  EXPECT_EQ(derived("deepseek", config_with(""), {kUp}, true)["scale_fmt"], "ue8m0");
}

TEST(QuantizationConfig, NamesTheMethodOfInt8Blocks) {
  const WrittenTensor up = tensor(kUpName, SchemeId::kInt8Block, &kQuantizedRule);
  const Json expected = Json::parse(
      R"({"activation_scheme":"dynamic","quant_method":"blockwise_int8","weight_block_size":[128,128]})");
  EXPECT_EQ(derived("deepseek", config_with(kReleased), {up}, true), expected);
  const auto source = R"({"quant_method":"blockwise_int8","weight_block_size":[128,128]})";
  EXPECT_EQ(derived("deepseek", config_with(source), {up}).dump(), source);
}

TEST(QuantizationConfig, TakesTheBlocksFromTheTensors) {
  WrittenTensor up = kUp;
  up.block = {64, 256};
  EXPECT_EQ(derived("deepseek", config_with(kReleased), {up})["weight_block_size"],
            Json::array({64, 256}));
}

TEST(QuantizationConfig, DeepseekRefusesMixtures) {
  const WrittenTensor int8 = tensor(kDownName, SchemeId::kInt8Block, &kQuantizedRule);
  expect_error(ErrorCode::kUnsupported, {"one scheme"}, [&] {
    static_cast<void>(derived("deepseek", config_with(""), {kUp, int8}));
  });
  const WrittenTensor fp4 = tensor(kDownName, SchemeId::kMxfp4, &kQuantizedRule);
  expect_error(ErrorCode::kUnsupported, {"fp8-block"}, [&] {
    static_cast<void>(derived("deepseek", config_with(""), {kUp, fp4}));
  });
  EXPECT_EQ(derived("deepseek", config_with(kReleased), {kUp, fp4}, true).dump(), kReleased)
      << "an untouched copy of native names";
}

TEST(QuantizationConfig, CompressedTensorsExceptsEveryPlainLinear) {
  const Json block =
      derived("compressed-tensors", config_with(""), {kUp, kPlainDown, kHead, kNorm});
  EXPECT_EQ(block["quant_method"], "compressed-tensors");
  EXPECT_EQ(block["format"], "float-quantized");
  EXPECT_EQ(block["quantization_status"], "compressed");
  EXPECT_TRUE(block["kv_cache_scheme"].is_null());
  const Json& group = block["config_groups"]["group_0"];
  EXPECT_EQ(group["targets"], Json::array({"Linear"}));
  EXPECT_EQ(group["weights"]["strategy"], "block");
  EXPECT_EQ(group["weights"]["block_structure"], Json::array({128, 128}));
  EXPECT_EQ(group["weights"]["dynamic"], false);
  EXPECT_EQ(group["input_activations"]["group_size"], 128);
  EXPECT_EQ(block["ignore"],
            Json::array({"lm_head", R"(re:.*\.mlp\.down_proj$)", R"(re:.*norm$)"}));
}

// compressed-tensors' own converter takes every `X.weight` that nothing ignores for a quantized one
// (0.19: CompressedTensorsDequantizer.get_dependencies).
TEST(QuantizationConfig, CompressedTensorsIgnoresOtherModules) {
  const WrittenTensor stem = tensor("visual.patch.weight", SchemeId::kBf16, nullptr);
  const WrittenTensor bias = tensor("model.layers.0.mlp.gate.bias", SchemeId::kBf16, nullptr);
  const Json ignored =
      derived("compressed-tensors", config_with(""), {kUp, kHead, kNorm, stem, bias})["ignore"];
  EXPECT_EQ(ignored, Json::array({"lm_head", R"(re:.*norm$)", "visual.patch"}));
  // Packed codes have names that no plain weight has.
  const WrittenTensor packed =
      tensor(kUpName, SchemeId::kNvfp4, &kQuantizedRule, Activations::kWeightOnly);
  EXPECT_EQ(derived("compressed-tensors", config_with(""), {packed, kHead, kNorm})["ignore"],
            Json::array({"lm_head"}));
}

// SGLang's w8a8_int8 makes a linear of each module that the list names; embeddings are none.
TEST(QuantizationConfig, CompressedTensorsNamesNoEmbeddingBesideInt8) {
  constexpr TensorRule kEmbeddingRule = {.role = Role::kEmbedding};
  const WrittenTensor embedding =
      tensor("model.embed_tokens.weight", SchemeId::kBf16, &kEmbeddingRule);
  const auto ignored = [&](SchemeId scheme) {
    const WrittenTensor up = tensor(kUpName, scheme, &kQuantizedRule, Activations::kDynamic);
    return derived("compressed-tensors", config_with(""), {up, embedding, kHead})["ignore"];
  };
  EXPECT_EQ(ignored(SchemeId::kInt8Channel), Json::array({"lm_head"}));
  EXPECT_EQ(ignored(SchemeId::kFp8Channel), Json::array({"lm_head", "model.embed_tokens"}));
}

// GLM's releases quantize it; vLLM takes it for no `Linear`, and knows it by another name too.
TEST(QuantizationConfig, CompressedTensorsNamesAQuantizedHead) {
  constexpr TensorRule kHeadRule = {
      .role = Role::kMtpHead, .silence = Silence::kHead, .may_be_quantized = true};
  const WrittenTensor head =
      tensor("model.layers.2.shared_head.head.weight", SchemeId::kFp8Block, &kHeadRule);
  const Json block = derived("compressed-tensors", config_with(""), {kUp, head});
  EXPECT_EQ(block["config_groups"]["group_0"]["targets"],
            Json::array({"Linear", "model.layers.2.shared_head.head", "model.layers.2.head"}));
}

Json only_group(const Json& block) {
  EXPECT_EQ(block["config_groups"].size(), 1U);
  return block["config_groups"]["group_0"];
}

// Arguments as compressed-tensors writes them for its presets, without the nulls.
TEST(QuantizationConfig, CompressedTensorsDescribesEveryScheme) {
  struct Expected {
    SchemeId scheme;
    Activations activations;
    const char* format;
    const char* weights;
    const char* inputs;
  };
  constexpr auto kWeightOnly = Activations::kWeightOnly;
  constexpr auto kDynamic = Activations::kDynamic;
  constexpr auto kStatic = Activations::kStatic;
  const std::vector<Expected> all = {
      {SchemeId::kFp8Channel, kDynamic, "float-quantized",
       R"({"num_bits":8,"type":"float","strategy":"channel","symmetric":true,"dynamic":false})",
       R"({"num_bits":8,"type":"float","strategy":"token","symmetric":true,"dynamic":true})"},
      {SchemeId::kFp8Tensor, kStatic, "float-quantized",
       R"({"num_bits":8,"type":"float","strategy":"tensor","symmetric":true,"dynamic":false})",
       R"({"num_bits":8,"type":"float","strategy":"tensor","symmetric":true,"dynamic":false})"},
      {SchemeId::kInt8Channel, kDynamic, "int-quantized",
       R"({"num_bits":8,"type":"int","strategy":"channel","symmetric":true,"dynamic":false})",
       R"({"num_bits":8,"type":"int","strategy":"token","symmetric":true,"dynamic":true})"},
      {SchemeId::kNvfp4, kStatic, "nvfp4-pack-quantized",
       R"({"num_bits":4,"type":"float","strategy":"tensor_group","group_size":16,"symmetric":true,"dynamic":false,"scale_dtype":"torch.float8_e4m3fn"})",
       R"({"num_bits":4,"type":"float","strategy":"tensor_group","group_size":16,"symmetric":true,"dynamic":"local","scale_dtype":"torch.float8_e4m3fn"})"},
      {SchemeId::kMxfp4, kWeightOnly, "mxfp4-pack-quantized",
       R"({"num_bits":4,"type":"float","strategy":"group","group_size":32,"symmetric":true,"dynamic":false,"scale_dtype":"torch.uint8"})",
       "null"},
      {SchemeId::kMxfp8, kDynamic, "mxfp8-quantized",
       R"({"num_bits":8,"type":"float","strategy":"group","group_size":32,"symmetric":true,"dynamic":false,"scale_dtype":"torch.uint8"})",
       R"({"num_bits":8,"type":"float","strategy":"group","group_size":32,"symmetric":true,"dynamic":true,"scale_dtype":"torch.uint8"})"},
  };
  WrittenTensor int4 = tensor(kUpName, SchemeId::kInt4Group, &kQuantizedRule, kWeightOnly);
  const auto int4_weights = [&](std::array<std::uint64_t, 2> block) {
    int4.block = block;
    return only_group(derived("compressed-tensors", config_with(""), {int4}))["weights"].dump();
  };
  EXPECT_EQ(
      int4_weights({1, 64}),
      R"({"num_bits":4,"type":"int","strategy":"group","group_size":64,"symmetric":true,"dynamic":false})");
  EXPECT_EQ(int4_weights({1, 0}),
            R"({"num_bits":4,"type":"int","strategy":"channel","symmetric":true,"dynamic":false})");
  int4.has_zero_points = int4.has_group_order = true;
  EXPECT_EQ(
      int4_weights({1, 128}),
      R"({"num_bits":4,"type":"int","strategy":"group","group_size":128,"symmetric":false,"dynamic":false,"actorder":"group"})");
  for (const Expected& row : all) {
    const Json block = derived("compressed-tensors", config_with(""),
                               {tensor(kUpName, row.scheme, &kQuantizedRule, row.activations)});
    EXPECT_EQ(block["format"], row.format);
    const Json group = only_group(block);
    EXPECT_EQ(group["format"], row.format);
    EXPECT_EQ(group["weights"].dump(), row.weights);
    EXPECT_EQ(group["input_activations"].dump(), row.inputs);
    EXPECT_TRUE(group["output_activations"].is_null());
  }
}

// What was written is read back as what it was, for every row of the table.
TEST(QuantizationConfig, CompressedTensorsIsUnderstoodAndKept) {
  for (const StorageRow& row : dialect_named("compressed-tensors").storage) {
    const std::vector<WrittenTensor> written = {
        tensor(kUpName, row.scheme, &kQuantizedRule, row.activations), kPlainDown, kHead};
    const Json block = derived("compressed-tensors", config_with(""), written);
    const ModelConfig again = config_with(block.dump());
    EXPECT_EQ(derived("compressed-tensors", again, written).dump(), block.dump());
    const SourceActivations source(again, dialect_named("compressed-tensors"), nullptr);
    EXPECT_EQ(source.of(kUpName, {.scheme = row.scheme}), row.activations)
        << scheme_facts(row.scheme).name;
  }
}

TEST(QuantizationConfig, CompressedTensorsHoldsMixtures) {
  const WrittenTensor fp4 =
      tensor(kDownName, SchemeId::kNvfp4, &kQuantizedRule, Activations::kWeightOnly);
  const Json block = derived("compressed-tensors", config_with(""), {kUp, fp4, kHead});
  EXPECT_EQ(block["format"], "mixed-precision");
  const Json& groups = block["config_groups"];
  ASSERT_EQ(groups.size(), 2U);
  EXPECT_EQ(groups["group_0"]["format"], "float-quantized");
  EXPECT_EQ(groups["group_0"]["targets"], Json::array({R"(re:.*\.mlp\.up_proj$)"}));
  EXPECT_EQ(groups["group_1"]["format"], "nvfp4-pack-quantized");
  EXPECT_EQ(groups["group_1"]["targets"], Json::array({R"(re:.*\.mlp\.down_proj$)"}));
  EXPECT_EQ(block["ignore"], Json::array({"lm_head"}));
}

constexpr TensorRule kExpertRule = {.role = Role::kExpertUp, .fp8_by_default = true};
constexpr const char* kExpertName = "model.layers.1.mlp.experts.0.up_proj.weight";

// transformers takes the first group with an expression that says `experts` for that of experts,
// and SGLang reads INT4 experts by the format of the whole.
TEST(QuantizationConfig, CompressedTensorsNamesExpertsFirst) {
  const WrittenTensor attention =
      tensor("model.layers.1.self_attn.o_proj.weight", SchemeId::kFp8Channel, &kQuantizedRule);
  const WrittenTensor shared = tensor("model.layers.1.mlp.shared_experts.up_proj.weight",
                                      SchemeId::kFp8Channel, &kQuantizedRule);
  WrittenTensor expert =
      tensor(kExpertName, SchemeId::kInt4Group, &kExpertRule, Activations::kWeightOnly);
  expert.block = {1, 32};
  const Json block =
      derived("compressed-tensors", config_with(""), {attention, shared, expert, kHead});
  EXPECT_EQ(block["format"], "pack-quantized");
  const Json& groups = block["config_groups"];
  EXPECT_EQ(groups["group_0"]["format"], "pack-quantized");
  EXPECT_EQ(groups["group_1"]["format"], "float-quantized");
  const std::vector<std::string> modules = {"",
                                            "model.layers.1",
                                            "model.layers.1.self_attn",
                                            "model.layers.1.mlp",
                                            "model.layers.1.mlp.experts",
                                            "model.layers.1.mlp.shared_experts"};
  for (const Json& group : groups) {
    for (const Json& target : group["targets"]) {
      for (const std::string& module : modules)
        EXPECT_FALSE(Pattern(target.get<std::string>()).matches(module)) << target << module;
    }
  }
}

TEST(QuantizationConfig, ListsPlainExpertsAsOneModule) {
  const WrittenTensor expert = tensor(kExpertName, SchemeId::kBf16, &kExpertRule);
  const Json block = derived("deepseek", config_with(kReleased), {kUp, expert, kHead});
  EXPECT_EQ(block["modules_to_not_convert"],
            Json::array({"lm_head", "model.layers.1.mlp.experts"}));
}

constexpr const char* kCtSource =
    R"({"quant_method":"compressed-tensors","format":"float-quantized","config_groups":{"a":{"targets":["Linear"],"weights":{"num_bits":8,"type":"float","strategy":"block","block_structure":[128,128],"symmetric":true,"dynamic":false},"input_activations":{"num_bits":8,"type":"float","strategy":"group","group_size":128,"symmetric":true,"dynamic":true}}},"ignore":["lm_head","re:.*down_proj$"]})";

TEST(QuantizationConfig, CompressedTensorsHonoursItsExpressions) {
  EXPECT_EQ(derived("compressed-tensors", config_with(kCtSource), {kUp, kPlainDown, kHead}).dump(),
            kCtSource);
  const WrittenTensor gate =
      tensor("model.layers.0.mlp.gate_proj.weight", SchemeId::kBf16, &kQuantizedRule);
  const Json block = derived("compressed-tensors", config_with(kCtSource), {kUp, kPlainDown, gate});
  EXPECT_EQ(block["ignore"],
            Json::array({"lm_head", "model.layers.0.mlp.gate_proj", "re:.*down_proj$"}));
}

TEST(QuantizationConfig, CompressedTensorsReplacesAWrongSource) {
  const Json ignored = derived("compressed-tensors", config_with(kCtSource), {kUp, kDown, kHead});
  EXPECT_EQ(ignored["ignore"], Json::array({"lm_head"})) << "down_proj is quantized now";
  const WrittenTensor int8 = tensor(kUpName, SchemeId::kInt8Channel, &kQuantizedRule);
  EXPECT_EQ(derived("compressed-tensors", config_with(kCtSource), {int8})["format"],
            "int-quantized");
  WrittenTensor other = kUp;
  other.activations = Activations::kWeightOnly;
  EXPECT_TRUE(only_group(derived("compressed-tensors", config_with(kCtSource),
                                 {other}))["input_activations"]
                  .is_null());
}

TEST(QuantizationConfig, RefusesAnExpressionThatIsNone) {
  const std::string source = R"({"quant_method":"compressed-tensors","ignore":["re:("]})";
  expect_error(ErrorCode::kCorrupt, {"re:(", "ignore"}, [&] {
    static_cast<void>(derived("compressed-tensors", config_with(source), {kPlainUp, kDown}));
  });
  const std::string targets =
      R"({"quant_method":"compressed-tensors","config_groups":{"a":{"targets":["re:("]}}})";
  expect_error(ErrorCode::kCorrupt, {"re:(", "targets"}, [&] {
    static_cast<void>(derived("compressed-tensors", config_with(targets), {kPlainUp, kDown}));
  });
}

std::string ct_group(const std::string& weights) {
  return R"({"quant_method":"compressed-tensors","config_groups":{"group_0":{"weights":)" +
         weights + "}}}";
}

TEST(Fp8BlockSize, ComesFromTheConfig) {
  using Size = std::array<std::uint64_t, 2>;
  EXPECT_EQ(fp8_block_size(config_with("")), (Size{128, 128}));
  EXPECT_EQ(fp8_block_size(config_with(R"({"quant_method":"fp8","weight_block_size":[64,32]})")),
            (Size{64, 32}));
  EXPECT_EQ(fp8_block_size(config_with(ct_group(
                R"({"type":"float","num_bits":8,"strategy":"block","block_structure":[256,64]})"))),
            (Size{256, 64}));
  EXPECT_EQ(
      fp8_block_size(config_with(ct_group(R"({"type":"int","num_bits":4,"strategy":"group"})"))),
      (Size{128, 128}));
}

TEST(Fp8BlockSize, ScalesByRowOrTensorUseReleasedBlocks) {
  using Size = std::array<std::uint64_t, 2>;
  for (const char* strategy : {"channel", "tensor", "tensor_group"}) {
    EXPECT_EQ(fp8_block_size(config_with(ct_group(R"({"type":"float","num_bits":8,"strategy":")" +
                                                  std::string(strategy) + "\"}"))),
              (Size{128, 128}));
  }
}

TEST(Fp8BlockSize, RefusesNonsense) {
  for (const char* sides :
       {"[128]", "[0,128]", "\"128\"", "[-1,128]", "[1.5,128]", "[128,18446744073709551615]"}) {
    expect_error(ErrorCode::kCorrupt, {"block_structure"}, [&] {
      static_cast<void>(fp8_block_size(config_with(
          ct_group(R"({"type":"float","num_bits":8,"strategy":"block","block_structure":)" +
                   std::string(sides) + "}"))));
    });
  }
}

}  // namespace
}  // namespace ingot::formats
