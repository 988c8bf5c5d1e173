#include "formats/dialect/dialect.h"

#include "formats/dialect/dialect_words.h"
#include "formats/dialect/input_major.h"
#include "formats/family/families.h"
#include "formats/json/json.h"
#include "tests/formats/dialect/written_block.h"
#include "tests/support/test.h"

namespace ingot::formats {
namespace {

using ingot::testing::expect_error;

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

TEST(Dialects, OfOtherToolsAreNamed) {
  struct Case {
    std::string block, named;
  };
  const Case cases[] = {
      {R"({"quant_method": "quark"})", "AMD Quark"},
      {R"({"quant_method": "quark", "global_quant_config": {"weight": {"dtype": "int4",
           "qscheme": "per_group", "group_size": 32}}})",
       "int4 per_group"},
      {R"({"quant_method": "quark", "global_quant_config": {"weight": {"dtype": "int8",
           "qscheme": "per_group", "group_size": 32}}})",
       "int8 per_group"},
      {R"({"quant_method": "auto-round", "packing_format": "auto_round", "data_type": "mx_int"})",
       "mx_int"},
      {R"({"quant_method": "auto-round", "data_type": "nvfp4_v2",
           "packing_format": "auto_round:llm_compressor_nvfp4_e5m3"})",
       "nvfp4_v2"},
      {R"({"quant_method": "quark", "global_quant_config": {"weight": {}}})",
       "weights of no dtype of no qscheme"},
      {R"({"quant_method": "auto-round", "data_type": "int", "bits": "8",
           "packing_format": "auto_round:fp8_static"})",
       "int packed as auto_round:fp8_static"},
      {R"({"quant_method": "bitsandbytes", "load_in_4bit": true})", "model.dequantize()"},
      {R"({"quant_method": "torchao"})", "TorchAO"},
      {R"({"quant_method": "exl3", "bits": 2.5})", "ExLlamaV3"},
      {R"({"quant_method": "of tomorrow"})", "'of tomorrow'"},
      {R"({"bits": 4, "group_size": 64})", "MLX"},
      {R"({"quant_method": "auto-round", "packing_format": "auto_round:gptq_marlin"})",
       "packing_format"},
  };
  for (const Case& row : cases) {
    expect_error(ErrorCode::kUnsupported, {row.named},
                 [&] { static_cast<void>(dialect_of(config_with(row.block))); });
  }
}

TEST(Dialects, OfAutoRoundAreThoseThatItPacksFor) {
  const auto dialect = [](const std::string& packing) {
    return dialect_of(config_with(R"({"quant_method": "auto-round", "bits": 4,
                                      "packing_format": "auto_round:)" +
                                  packing + "\"}"))
        .name;
  };
  EXPECT_EQ(dialect("auto_gptq"), "gptq");
  EXPECT_EQ(dialect("gptqmodel"), "gptq");
  EXPECT_EQ(dialect("auto_awq"), "awq");
}

TEST(Dialects, OfGptqHaveOneOfTwoFormats) {
  for (const char* format : {"\"marlin\"", "2"}) {
    const ModelConfig config = config_with(
        fmt::format(R"({{"quant_method": "gptq", "bits": 4, "checkpoint_format": {}}})", format));
    expect_error(ErrorCode::kUnsupported, {"has checkpoint_format", "gptq_v2"},
                 [&] { static_cast<void>(input_major_layout(config)); });
  }
}

TEST(Dialects, OfOtherToolsAreReadOnly) {
  struct Case {
    std::string block, name;
    std::optional<Activations> activations;
  };
  const std::string quark = R"({"quant_method": "quark", "global_quant_config": {"weight":
      {"dtype": "fp8_e4m3", "qscheme": "per_channel"}, "input_tensors": )";
  const std::string auto_round = R"({"quant_method": "auto-round", "data_type": "mx_fp",
      "packing_format": "auto_round:llm_compressor")";
  for (const Case& row :
       {Case{R"({"quant_method": "fbgemm_fp8"})", "fbgemm_fp8", std::nullopt},
        Case{quark + "null}}", "quark", Activations::kWeightOnly},
        Case{quark + R"({"is_dynamic": true}}})", "quark", Activations::kDynamic},
        Case{quark + R"({"is_dynamic": false}}})", "quark", Activations::kStatic},
        Case{quark + R"(null}, "layer_quant_config": {"*.up_proj": {"weight": null,
             "input_tensors": {"is_dynamic": true}}}})",
             "quark", Activations::kDynamic},
        Case{auto_round + "}", "auto-round", Activations::kWeightOnly},
        Case{auto_round + R"(, "act_bits": 8, "act_dynamic": true})", "auto-round",
             Activations::kDynamic}}) {
    const ModelConfig config = config_with(row.block);
    const Dialect& dialect = dialect_of(config);
    EXPECT_EQ(dialect.name, row.name);
    EXPECT_TRUE(dialect.is_read_only);
    const ConfigForms forms = dialect.config_forms(config, nullptr, nullptr);
    EXPECT_EQ(forms("model.layers.0.mlp.up_proj.weight").activations, row.activations) << row.block;
  }
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
      // Spellings that are only read come after the one that answers for them.
      const bool is_first = rows.emplace(row.scheme, row.activations).second;
      EXPECT_TRUE(is_first || row.is_read_only) << dialect->name;
      EXPECT_EQ(row.parts.front().part, Part::kWeight);
      const bool is_of_stacks = row.experts == ExpertForm::kStacked;
      EXPECT_EQ(row.parts.front().shape, is_of_stacks ? PartShape::kBlocks : PartShape::kCodes);
      EXPECT_TRUE(std::is_sorted(row.parts.begin(), row.parts.end(),
                                 [](const auto& a, const auto& b) { return a.part < b.part; }));
      std::set<std::string_view> suffixes;
      for (const PartRow& part : row.parts)
        EXPECT_TRUE(suffixes.insert(part.suffix).second) << part.suffix;
      EXPECT_EQ(find_storage(*dialect, row.scheme, row.activations) == &row, is_first);
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

TEST(QuantizationConfig, NamesTheKindOfFp8ThatIsWritten) {
  for (const char* said : {"e5m2", "float8_e5m2", "e4m3fnuz"}) {
    const Json block = derived("deepseek",
                               config_with(R"({"quant_method":"fp8","fmt":")" + std::string(said) +
                                           R"(","weight_block_size":[128,128]})"),
                               {kUp, kDown});
    EXPECT_EQ(block.at("fmt"), "e4m3") << said;
  }
  EXPECT_EQ(derived("deepseek",
                    config_with(R"({"quant_method":"fp8","fmt":"float8_e4m3fn",)"
                                R"("weight_block_size":[128,128]})"),
                    {kUp})
                .at("fmt"),
            "float8_e4m3fn");
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

TEST(QuantizationConfig, KeysOfExpertsAreTrueOrGone) {
  const std::string source =
      R"({"quant_method":"fp8","activation_scheme":"dynamic","fmt":"e4m3",)"
      R"("weight_block_size":[128,128],"quant_algo":"MIXED_PRECISION","moe_quant_algo":"NVFP4",)"
      R"("group_size":16,"ignore":["lm_head"],"quantized_layers":{"model.layers.1.mlp.experts":{}}})";
  const WrittenTensor nvfp4 =
      tensor("model.layers.1.mlp.experts.0.up_proj.weight", SchemeId::kNvfp4, &kQuantizedRule);
  EXPECT_EQ(derived("deepseek", config_with(source), {kUp, nvfp4}).dump(), source)
      << "nothing else describes these experts";
  const Json alone = derived("deepseek", config_with(source), {kUp});
  for (const char* key :
       {"quant_algo", "moe_quant_algo", "group_size", "ignore", "quantized_layers"})
    EXPECT_FALSE(alone.contains(key)) << key;
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
  const WrittenTensor next =
      tensor("model.layers.1.mlp.down_proj.weight", SchemeId::kFp8Block, &kQuantizedRule);
  for (const std::string entry : {"model.layers.0.mlp.up_proj", "model.layers.0"}) {
    const std::string source =
        R"({"quant_method":"fp8","weight_block_size":[128,128],"modules_to_not_convert":["lm_head",")" +
        entry + R"("]})";
    EXPECT_EQ(derived("deepseek", config_with(source), {kPlainUp, next}).dump(), source);
    // An entry above quantized modules is replaced by those that hold.
    const Json made = derived("deepseek", config_with(source), {kPlainUp, kDown});
    EXPECT_EQ(made["modules_to_not_convert"], Json({"lm_head", "model.layers.0.mlp.up_proj"}));
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

TEST(QuantizationConfig, NamesOfScalesSayWhichWordExpertsGet) {
  WrittenTensor expert = tensor(kExpertName, SchemeId::kMxfp4, &kExpertRule);
  const std::string codes = kExpertName;
  for (const auto& [suffix, key, other] :
       {std::tuple{"_scale", "store_dtype", "routed_experts_quant_method"},
        std::tuple{"_scale_inv", "routed_experts_quant_method", "store_dtype"}}) {
    expert.stored = {codes, codes + suffix};
    for (const char* source : {"", kReleased}) {
      const Json block = derived("deepseek", config_with(source), {kUp, expert}, true);
      EXPECT_EQ(block.at(key), "mxfp4");
      EXPECT_FALSE(block.contains(other));
      EXPECT_EQ(block.at("quant_method"), "fp8");
      const ModelConfig said = config_with(block.dump());
      EXPECT_EQ(derived("deepseek", said, {kUp, expert}, true).dump(), block.dump());
      EXPECT_FALSE(derived("deepseek", said, {kUp}, true).contains(key));
    }
  }
}

TEST(QuantizationConfig, EndsOfNamesExemptInLingOnly) {
  const std::vector<std::string> entries = {"attention.dense"};
  for (const std::string key : {"", R"(,"routed_experts_quant_method":"mxfp4")"}) {
    const ModelConfig config = config_with(R"({"quant_method":"fp8")" + key + "}");
    EXPECT_EQ(is_exempt(config, "model.layers.0.attention.dense.weight", entries), !key.empty());
    EXPECT_FALSE(is_exempt(config, "model.layers.0.attention.dense.lora.weight", entries));
    EXPECT_FALSE(is_exempt(config, "model.layers.0.other_attention.dense.weight", entries));
  }
}

TEST(QuantizationConfig, ListsPlainExpertsAsOneModule) {
  const WrittenTensor expert = tensor(kExpertName, SchemeId::kBf16, &kExpertRule);
  const Json block = derived("deepseek", config_with(kReleased), {kUp, expert, kHead});
  EXPECT_EQ(block["modules_to_not_convert"],
            Json::array({"lm_head", "model.layers.1.mlp.experts"}));
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
