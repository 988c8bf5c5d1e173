#include "formats/storage/unread_codes.h"

#include "engines/verdicts.h"
#include "formats/json/json.h"
#include "tests/convert/conversion.h"
#include "tests/support/test.h"
#include "tests/support/tiny_checkpoint.h"

// Codes of a quantization that no scheme reads.

namespace ingot::testing {
namespace {

using formats::Json;

class UnreadCodes : public ::testing::Test {
 protected:
  // One projection in words of eight codes, with scales and offsets, as MLX stores it.
  UnreadCodes() {
    for (TinyTensor& tensor : tiny_.files.begin()->second) {
      if (tensor.name != kName) continue;
      tensor.dtype = "U32";
      tensor.shape.back() /= 8;
      tensor.data = std::string(std::size_t{12} * 4, '\x21');
    }
    tiny_.files.begin()->second.push_back({"model.layers.0.mlp.up_proj.scales", "BF16", {16, 1}});
    say({{"group_size", 8}, {"bits", 4}});
  }

  void say(const Json& block) {
    Json config = formats::parse_json(tiny_.config, "config.json");
    config["quantization_config"] = block;
    if (block.is_null()) config.erase("quantization_config");
    tiny_.config = formats::json_text(config);
  }

  // Without a scheme: every tensor is kept.
  Conversion copy() {
    tiny_.write(directory_ / "in");
    Conversion conversion(directory_ / "in", directory_ / "out");
    conversion.family = "generic";
    conversion.recipe.to.reset();
    return conversion;
  }

  void expect_refused(const Conversion& conversion) {
    expect_error(ErrorCode::kUnsupported, {kName, "U32 codes", "only be copied"},
                 [&] { Conversion(conversion).run(); });
    EXPECT_FALSE(std::filesystem::exists(directory_ / "out/config.json"));
  }

  static constexpr const char* kName = "model.layers.0.mlp.up_proj.weight";
  TempDir directory_;
  TinyCheckpoint tiny_ = tiny_deepseek_v3();
};

TEST_F(UnreadCodes, AreCopiedWithTheirJson) {
  Conversion conversion = copy();
  conversion.run();
  EXPECT_EQ(read_text_file(directory_ / "out/config.json", 1 << 20), tiny_.config);
  EXPECT_EQ(tensor_bytes(directory_ / "out"), tensor_bytes(directory_ / "in"));
}

TEST_F(UnreadCodes, AreNoPartOfAConversion) {
  Conversion conversion = copy();
  conversion.recipe.to = formats::SchemeId::kBf16;
  expect_refused(conversion);
  conversion.recipe.to.reset();
  conversion.recipe.rules.push_back(convert::parse_rule("lm_head.weight=f32"));
  expect_refused(conversion);
}

TEST_F(UnreadCodes, CountWithoutAWordInTheConfig) {
  say(nullptr);
  Conversion conversion = copy();
  conversion.recipe.to = formats::SchemeId::kBf16;
  expect_refused(conversion);
  // The user knows better.
  conversion.recipe.allow.add(std::string("unknown-tensor=") + kName);
  conversion.run();
}

TEST_F(UnreadCodes, AreNoKnownTensorOfAnyEngine) {
  tiny_.write(directory_ / "in");
  const auto source = formats::Checkpoint::open(directory_ / "in", {.family = "generic"});
  for (const engines::EngineRow* engine : engines::engines()) {
    const engines::EngineVerdict verdict =
        engines::engine_verdict(source, engines::EngineInput(source), *engine, {});
    EXPECT_FALSE(verdict.loads);
    EXPECT_EQ(verdict.tensor, kName);
  }
}

TEST_F(UnreadCodes, AreNoIndicesAndNoMasks) {
  tiny_ = tiny_deepseek_v3();
  tiny_.files.begin()->second.push_back({"model.position_ids", "I64", {1, 16}});
  tiny_.files.begin()->second.push_back({"model.mask", "BOOL", {16, 16}});
  Conversion conversion = copy();
  conversion.recipe.to = formats::SchemeId::kBf16;
  conversion.run();
}

// A matrix that no row has, and that a conversion to another scheme may have been meant for.
TEST(UnknownMatrix, NeedsADecisionUnderTo) {
  constexpr const char* kExtra = "model.extra.weight";
  const TempDir directory;
  TinyCheckpoint tiny = tiny_deepseek_v3();
  tiny.files.begin()->second.push_back({kExtra, "F32", {64, 64}});
  tiny.write(directory / "in");
  const auto conversion = [&] {
    std::filesystem::remove_all(directory / "out");
    return Conversion(directory / "in", directory / "out");
  };
  Conversion asked = conversion();
  asked.recipe.to = formats::SchemeId::kBf16;
  expect_error(ErrorCode::kUnknownTensor, {kExtra, "% of the bytes", "--rule 'NAME=SCHEME'"},
               [&] { asked.run(); });
  Conversion copied = conversion();
  copied.recipe.to.reset();
  copied.run();
  Conversion allowed = conversion();
  allowed.recipe.to = formats::SchemeId::kBf16;
  allowed.recipe.allow.add(std::string("unknown-tensor=") + kExtra);
  allowed.run();
  EXPECT_EQ(tensor_bytes(directory / "out").at(kExtra), tensor_bytes(directory / "in").at(kExtra));
  Conversion ruled = conversion();
  ruled.recipe.to = formats::SchemeId::kBf16;
  ruled.recipe.rules.insert(ruled.recipe.rules.begin(),
                            convert::parse_rule(std::string(kExtra) + "=bf16"));
  ruled.run();
  EXPECT_EQ(tensor_bytes(directory / "out").at(kExtra).size(), 64U * 64 * 2);
}

// Codes of 8 bits that are packed, which are read and not written.

constexpr const char* kPacked = "model.layers.0.mlp.up_proj";

/// A weight of 12 x 8 of such codes, under scales of 0.5 in BF16.
void write_packed(const std::filesystem::path& directory, const std::string& codes) {
  TinyCheckpoint tiny = tiny_deepseek_v3();
  auto& tensors = tiny.files.begin()->second;
  std::erase_if(tensors, [&](const TinyTensor& tensor) {
    return tensor.name == std::string(kPacked) + ".weight";
  });
  tensors.push_back({std::string(kPacked) + ".weight_packed", "I32", {12, 2}, codes});
  std::string scales;
  for (int row = 0; row < 12; ++row) scales += std::string("\x00\x3f", 2);
  tensors.push_back({std::string(kPacked) + ".weight_scale", "BF16", {12, 1}, scales});
  tensors.push_back(
      {std::string(kPacked) + ".weight_shape", "I32", {2}, std::string("\x0c\0\0\0\x08\0\0\0", 8)});
  Json config = formats::parse_json(tiny.config, "config.json");
  config["quantization_config"] = {
      {"quant_method", "compressed-tensors"},
      {"format", "pack-quantized"},
      {"config_groups",
       {{"group_0",
         {{"targets", {std::string("re:.*up_proj")}},
          {"weights", {{"num_bits", 8}, {"type", "int"}, {"strategy", "channel"}}}}}}},
      {"ignore", Json::array()}};
  tiny.config = formats::json_text(config);
  tiny.write(directory);
}

TEST(PackedInt8, BecomesPlainAndIsNotKept) {
  TempDir directory;
  // Codes of 144: (144 - 128) x 0.5 is 8.
  write_packed(directory / "in", std::string(std::size_t{12} * 8, '\x90'));
  std::string wanted;
  for (int i = 0; i < 12 * 8; ++i) wanted += std::string("\x00\x41", 2);

  const auto source = formats::Checkpoint::open(directory / "in");
  EXPECT_TRUE(engines::engine_weights(source, engines::EngineInput(source), {}).empty());
  for (const engines::EngineRow* engine : engines::engines()) {
    const engines::EngineVerdict verdict =
        engines::engine_verdict(source, engines::EngineInput(source), *engine, {});
    EXPECT_FALSE(verdict.loads || verdict.is_known);
    EXPECT_EQ(verdict.tensor, std::string(kPacked) + ".weight");
  }

  Conversion conversion(directory / "in", directory / "out");
  conversion.recipe.to.reset();
  expect_error(ErrorCode::kUnsupported, {"packed in 8 bits", kPacked},
               [&] { Conversion(conversion).run(); });
  conversion.recipe.to = formats::SchemeId::kBf16;
  conversion.run();
  EXPECT_EQ(tensor_bytes(directory / "out").at(std::string(kPacked) + ".weight"), wanted);
}

// The code -128 too, which no encoder writes.
TEST(PackedInt8, KeepsEveryCodeAsInt8) {
  TempDir directory;
  std::string codes, wanted, scales;
  for (int i = 0; i < 12 * 8; ++i) {
    codes += static_cast<char>(i * 5);
    wanted += static_cast<char>(i * 5 - 128);
  }
  for (int row = 0; row < 12; ++row) scales += std::string("\0\0\0\x3f", 4);
  write_packed(directory / "in", codes);
  for (const quantize::ScaleSearch search :
       {quantize::ScaleSearch::kMse, quantize::ScaleSearch::kAmax}) {
    const auto output = directory / std::string(convert::scale_search_name(search));
    Conversion conversion(directory / "in", output);
    conversion.recipe.to.reset();
    conversion.recipe.choices.search = search;
    // Loaders fuse it with the gate.
    conversion.recipe.rules = {convert::parse_rule("model.layers.0.mlp.gate_proj.weight=int8"),
                               convert::parse_rule(std::string(kPacked) + ".weight=int8")};
    conversion.run();
    const auto tensors = tensor_bytes(output);
    EXPECT_EQ(tensors.at(std::string(kPacked) + ".weight"), wanted);
    EXPECT_EQ(tensors.at(std::string(kPacked) + ".weight_scale"), scales);
    EXPECT_FALSE(tensors.contains(std::string(kPacked) + ".weight_shape"));
  }
}

}  // namespace
}  // namespace ingot::testing
