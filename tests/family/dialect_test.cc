#include "formats/dialect/dialect.h"

#include <gtest/gtest.h>

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

constexpr WrittenTensor kUp = {"model.layers.0.mlp.up_proj.weight", SchemeId::kFp8Block, true};
constexpr WrittenTensor kPlainUp = {"model.layers.0.mlp.up_proj.weight", SchemeId::kBf16, true};
constexpr WrittenTensor kDown = {"model.layers.0.mlp.down_proj.weight", SchemeId::kFp8Block, true};
constexpr WrittenTensor kPlainDown = {"model.layers.0.mlp.down_proj.weight", SchemeId::kBf16, true};
constexpr WrittenTensor kNorm = {"model.norm.weight", SchemeId::kF32, false};
constexpr WrittenTensor kHead = {"lm_head.weight", SchemeId::kBf16, false};

Json derived(std::string_view dialect, const ModelConfig& source,
             const std::vector<WrittenTensor>& written) {
  return dialect_named(dialect).quantization_config(source, written);
}

TEST(Dialects, AreChosenByQuantMethod) {
  EXPECT_EQ(dialect_of(config_with("")).name, "deepseek");
  EXPECT_EQ(dialect_of(config_with("{}")).name, "deepseek");
  EXPECT_EQ(dialect_of(config_with(kReleased)).name, "deepseek");
  EXPECT_EQ(dialect_of(config_with(R"({"quant_method": "compressed-tensors"})")).name,
            "compressed-tensors");
  expect_error(ErrorCode::kUnsupported, {"awq", "compressed-tensors"},
               [] { static_cast<void>(dialect_of(config_with(R"({"quant_method": "awq"})"))); });
  EXPECT_EQ(find_dialect("mlx"), nullptr);
}

TEST(PartName, FollowsTheDialect) {
  const Dialect& deepseek = dialect_named("deepseek");
  const Dialect& ct = dialect_named("compressed-tensors");
  EXPECT_EQ(part_name(deepseek, "a.q_proj.weight", Part::kWeight), "a.q_proj.weight");
  EXPECT_EQ(part_name(deepseek, "a.q_proj.weight", Part::kScale), "a.q_proj.weight_scale_inv");
  EXPECT_EQ(part_name(ct, "a.q_proj.weight", Part::kScale), "a.q_proj.weight_scale");
  EXPECT_EQ(part_name(deepseek, "mlp.experts.gate_up_proj", Part::kScale),
            "mlp.experts.gate_up_proj_scale_inv");
}

TEST(QuantizationConfig, IsNullWhenNothingIsQuantized) {
  for (const Dialect* dialect : dialects()) {
    EXPECT_TRUE(dialect
                    ->quantization_config(config_with(kReleased),
                                          std::vector<WrittenTensor>{kPlainUp, kNorm})
                    .is_null());
    EXPECT_TRUE(dialect->quantization_config(config_with(""), {}).is_null());
  }
}

TEST(QuantizationConfig, OfTheSourceIsKeptVerbatim) {
  const Json block = derived("deepseek", config_with(kReleased), {kUp, kDown, kNorm, kHead});
  EXPECT_EQ(block.dump(), kReleased) << "keys in their order too";
}

TEST(QuantizationConfig, ListsWhatBecamePlainForBothLoaders) {
  const Json block =
      derived("deepseek", config_with(kReleased), {kPlainUp, kDown, kPlainDown, kHead});
  const Json expected = {"model.layers.0.mlp.down_proj", "model.layers.0.mlp.up_proj"};
  EXPECT_EQ(block["modules_to_not_convert"], expected);
  EXPECT_EQ(block["ignored_layers"], expected);
  EXPECT_EQ(block["scale_fmt"], "ue8m0");
}

TEST(QuantizationConfig, AddsToTheListsOfTheSource) {
  const std::string source =
      R"({"quant_method":"fp8","weight_block_size":[128,128],"modules_to_not_convert":["z.last","lm_head"]})";
  const Json block = derived("deepseek", config_with(source), {kPlainUp, kDown});
  const Json expected = {"lm_head", "model.layers.0.mlp.up_proj", "z.last"};
  EXPECT_EQ(block["modules_to_not_convert"], expected);
  EXPECT_EQ(block["ignored_layers"], expected) << "vLLM looks at one list only";
}

TEST(QuantizationConfig, IsKeptWhereTheSourceListsThePlainModuleAlready) {
  for (const std::string entry : {"model.layers.0.mlp.up_proj", "model.layers.0"}) {
    const std::string source =
        R"({"quant_method":"fp8","modules_to_not_convert":[")" + entry + R"("]})";
    EXPECT_EQ(derived("deepseek", config_with(source), {kPlainUp, kDown}).dump(), source);
  }
  const std::string other =
      R"({"quant_method":"fp8","modules_to_not_convert":["model.layers.0.mlp.up"]})";
  EXPECT_TRUE(derived("deepseek", config_with(other), {kPlainUp, kDown}).contains("ignored_layers"))
      << "a prefix ends at a dot";
}

TEST(QuantizationConfig, RefusesListsThatAreNone) {
  const std::string source = R"({"quant_method":"fp8","modules_to_not_convert":[1]})";
  expect_error(ErrorCode::kCorrupt, {"modules_to_not_convert"}, [&] {
    static_cast<void>(derived("deepseek", config_with(source), {kPlainUp, kDown}));
  });
}

TEST(QuantizationConfig, IsTheStandardOneWhereTheSourceHasNone) {
  const Json block = derived("deepseek", config_with(""), {kUp, kHead});
  EXPECT_EQ(
      block.dump(),
      R"({"activation_scheme":"dynamic","fmt":"e4m3","quant_method":"fp8","weight_block_size":[128,128]})");
}

TEST(QuantizationConfig, OfCompressedTensorsExceptsEveryPlainLinear) {
  const Json block =
      derived("compressed-tensors", config_with(""), {kUp, kPlainDown, kHead, kNorm});
  EXPECT_EQ(block["quant_method"], "compressed-tensors");
  EXPECT_EQ(block["format"], "float-quantized");
  const Json& group = block["config_groups"]["group_0"];
  EXPECT_EQ(group["targets"], Json::array({"Linear"}));
  EXPECT_EQ(group["weights"]["strategy"], "block");
  EXPECT_EQ(group["weights"]["block_structure"], Json::array({128, 128}));
  EXPECT_EQ(group["weights"]["dynamic"], false);
  EXPECT_EQ(group["input_activations"]["group_size"], 128);
  EXPECT_EQ(block["ignore"], Json::array({"lm_head", "model.layers.0.mlp.down_proj"}));
}

TEST(QuantizationConfig, OfCompressedTensorsHonoursItsExpressions) {
  const std::string source =
      R"({"quant_method":"compressed-tensors","config_groups":{},"ignore":["lm_head","re:.*down_proj$"]})";
  EXPECT_EQ(derived("compressed-tensors", config_with(source), {kUp, kPlainDown, kHead}).dump(),
            source);
  const Json block = derived("compressed-tensors", config_with(source), {kPlainUp, kDown});
  EXPECT_EQ(block["ignore"],
            Json::array({"lm_head", "model.layers.0.mlp.up_proj", "re:.*down_proj$"}));
}

TEST(QuantizationConfig, RefusesAnExpressionThatIsNone) {
  const std::string source = R"({"quant_method":"compressed-tensors","ignore":["re:("]})";
  expect_error(ErrorCode::kCorrupt, {"re:("}, [&] {
    static_cast<void>(derived("compressed-tensors", config_with(source), {kPlainUp, kDown}));
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

TEST(Fp8BlockSize, RefusesScalesByChannelAndNonsense) {
  expect_error(ErrorCode::kUnsupported, {"channel"}, [] {
    static_cast<void>(fp8_block_size(
        config_with(ct_group(R"({"type":"float","num_bits":8,"strategy":"channel"})"))));
  });
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
