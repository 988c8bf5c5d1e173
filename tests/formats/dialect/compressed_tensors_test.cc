#include "formats/base/pattern.h"
#include "formats/dialect/config_groups.h"
#include "formats/dialect/dialect.h"
#include "tests/formats/dialect/written_block.h"
#include "tests/support/test.h"

// The words of the compressed-tensors dialect about an output's modules.

namespace ingot::formats {
namespace {

using ingot::testing::expect_error;

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

// Every row of the table is read back as it was written.
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
  const WrittenTensor channel = tensor(kUpName, SchemeId::kFp8Channel, &kQuantizedRule);
  const WrittenTensor fp4 =
      tensor(kDownName, SchemeId::kNvfp4, &kQuantizedRule, Activations::kWeightOnly);
  const Json block = derived("compressed-tensors", config_with(""), {channel, fp4, kHead});
  EXPECT_EQ(block["format"], "mixed-precision");
  const Json& groups = block["config_groups"];
  ASSERT_EQ(groups.size(), 2U);
  EXPECT_EQ(groups["group_0"]["format"], "float-quantized");
  EXPECT_EQ(groups["group_0"]["targets"], Json::array({R"(re:.*\.mlp\.up_proj$)"}));
  EXPECT_EQ(groups["group_1"]["format"], "nvfp4-pack-quantized");
  EXPECT_EQ(groups["group_1"]["targets"], Json::array({R"(re:.*\.mlp\.down_proj$)"}));
  EXPECT_EQ(block["ignore"], Json::array({"lm_head"}));
}

// SGLang 0.5.23 reads the size of blocks only from the target `Linear`, and compressed-tensors' own
// converter asks group by group.
TEST(QuantizationConfig, CompressedTensorsTargetsLinearForBlocks) {
  const WrittenTensor fp4 =
      tensor(kDownName, SchemeId::kNvfp4, &kQuantizedRule, Activations::kWeightOnly);
  const Json block = derived("compressed-tensors", config_with(""), {kUp, fp4, kHead, kNorm});
  const Json& groups = block["config_groups"];
  ASSERT_EQ(groups.size(), 2U);
  EXPECT_EQ(groups["group_0"]["targets"], Json::array({R"(re:.*\.mlp\.down_proj$)"}));
  EXPECT_EQ(groups["group_1"]["targets"], Json::array({"Linear"}));
  EXPECT_EQ(groups["group_1"]["weights"]["block_structure"], Json::array({128, 128}));
  EXPECT_EQ(block["ignore"], Json::array({"lm_head", R"(re:.*norm$)"})) << "Linear takes in more";
}

// SGLang asks for the class `Linear` before the parts of a joined module.
TEST(QuantizationConfig, CompressedTensorsNamesJoinedModulesBesideLinear) {
  const auto fp4 = [](std::string_view name) {
    return tensor(name, SchemeId::kNvfp4, &kQuantizedRule, Activations::kWeightOnly);
  };
  const WrittenTensor plain_q =
      tensor("model.layers.0.self_attn.q_proj.weight", SchemeId::kBf16, &kQuantizedRule);
  const WrittenTensor plain_k =
      tensor("model.layers.0.self_attn.k_proj.weight", SchemeId::kBf16, &kQuantizedRule);
  const Json block = derived(
      "compressed-tensors", config_with(""),
      {kDown, fp4("model.layers.0.mlp.gate_proj.weight"), fp4(kUpName), plain_q, plain_k,
       tensor("model.layers.0.self_attn.o_proj.weight", SchemeId::kFp8Block, &kQuantizedRule)});
  const ConfigGroups groups(block);
  const ConfigGroup* joined = groups.named_target("model.layers.0.mlp.gate_up_proj");
  ASSERT_NE(joined, nullptr);
  EXPECT_EQ(joined->scheme, SchemeId::kNvfp4);
  EXPECT_TRUE(groups.ignore_matches("model.layers.0.self_attn.qkv_proj"));
  EXPECT_EQ(groups.named_target("model.layers.0.mlp.down_proj"), nullptr);
}

// SGLang would take it for one in blocks.
TEST(QuantizationConfig, CompressedTensorsSparesKvBWithoutBlocks) {
  constexpr TensorRule kKvB = {.role = Role::kKvbProj, .fp8_by_default = true};
  const WrittenTensor kv_b =
      tensor("model.layers.0.self_attn.kv_b_proj.weight", SchemeId::kFp8Channel, &kKvB);
  const Json block = derived("compressed-tensors", config_with(""), {kUp, kv_b, kHead});
  EXPECT_EQ(ConfigGroups(block).exact_target("Linear"), nullptr);
  const WrittenTensor in_blocks =
      tensor("model.layers.0.self_attn.kv_b_proj.weight", SchemeId::kFp8Block, &kKvB);
  const WrittenTensor channel = tensor(kDownName, SchemeId::kFp8Channel, &kQuantizedRule);
  EXPECT_NE(ConfigGroups(derived("compressed-tensors", config_with(""), {in_blocks, channel}))
                .exact_target("Linear"),
            nullptr);
}

TEST(QuantizationConfig, CompressedTensorsReplacesBlocksWithoutLinear) {
  const WrittenTensor fp4 =
      tensor(kDownName, SchemeId::kNvfp4, &kQuantizedRule, Activations::kWeightOnly);
  const std::vector<WrittenTensor> written = {kUp, fp4, kHead};
  const Json now = derived("compressed-tensors", config_with(""), written);
  Json older = now;
  older["config_groups"]["group_1"]["targets"] = {R"(re:.*\.mlp\.up_proj$)"};
  EXPECT_EQ(derived("compressed-tensors", config_with(older.dump()), written).dump(), now.dump());
  EXPECT_EQ(derived("compressed-tensors", config_with(now.dump()), written).dump(), now.dump());
}

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

TEST(ConfigGroupTargets, MayBeModulesOfAnEngine) {
  const Json block = Json::parse(R"({"config_groups": {
      "a": {"targets": ["re:.*qkv_proj$", "model.layers.0.mlp.experts"], "weights": {"num_bits": 8,
            "type": "float", "strategy": "channel"}},
      "b": {"targets": ["Linear", "model.layers.0.self_attn.k_proj"], "weights": {"num_bits": 4,
            "type": "float", "strategy": "group", "group_size": 32}}},
      "ignore": ["model.layers.1.mlp.gate_up_proj"]})");
  const ConfigGroups groups(block);
  const auto target = [&](const char* module) { return groups.target_of(module)->name; };
  EXPECT_EQ(target("model.layers.0.self_attn.q_proj"), "a");
  EXPECT_EQ(target("model.layers.0.self_attn.k_proj"), "b") << "its own name comes first";
  EXPECT_EQ(target("model.layers.0.mlp.experts.3.up_proj"), "a");
  EXPECT_EQ(target("model.layers.0.self_attn.o_proj"), "b");
  EXPECT_TRUE(groups.is_ignored("model.layers.1.mlp.up_proj"));
  EXPECT_FALSE(groups.is_ignored("model.layers.1.mlp.down_proj"));
}

TEST(ConfigGroupTargets, EnginesAskByTheVeryName) {
  const Json block = Json::parse(R"({"config_groups": {
      "a": {"targets": ["re:.*qkv_proj$", "model.layers.0.mlp.experts"], "weights": {"num_bits": 8,
            "type": "float", "strategy": "channel"}}},
      "ignore": ["re:.*gate_up_proj$", "model.layers.1.mlp.experts"]})");
  const ConfigGroups groups(block);
  for (const char* part :
       {"model.layers.0.self_attn.q_proj", "model.layers.0.mlp.experts.3.up_proj"})
    EXPECT_EQ(groups.named_target(part), nullptr) << part;
  EXPECT_EQ(groups.named_target("model.layers.0.self_attn.qkv_proj"), &groups.groups()[0]);
  EXPECT_EQ(groups.named_target("model.layers.0.mlp.experts"), &groups.groups()[0]);
  for (const char* part : {"model.layers.1.mlp.up_proj", "model.layers.1.mlp.experts.3.up_proj"})
    EXPECT_FALSE(groups.ignore_matches(part)) << part;
  EXPECT_TRUE(groups.ignore_matches("model.layers.1.mlp.gate_up_proj"));
  EXPECT_TRUE(groups.ignore_matches("model.layers.1.mlp.experts"));
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

}  // namespace
}  // namespace ingot::formats
