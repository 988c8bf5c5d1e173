#include "formats/json/json.h"
#include "tests/convert/conversion.h"
#include "tests/convert/output_tensors.h"
#include "tests/support/test.h"
#include "tests/support/tiny_checkpoint.h"

// Scales of a quantized cache of keys and values go where the config's word for them goes.

namespace ingot::testing {
namespace {

using formats::Json;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;

constexpr const char* kKeys = "model.layers.0.self_attn.k_proj.k_scale";
constexpr const char* kValues = "model.layers.1.self_attn.v_scale";
const std::string kHalf("\0\0\0\x3f", 4), kThree("\x40\x40", 2);  // F32, BF16

/// FP8 weights with scales of the cache in two spellings.
class CacheScales : public ::testing::Test {
 protected:
  CacheScales() {
    for (const char* projection : {"gate", "up", "down"}) {
      const std::string stem = fmt::format("model.layers.0.mlp.{}_proj.weight", projection);
      make_fp8(tiny_, stem, stem + "_scale_inv");
      tensor_of(tiny_, stem + "_scale_inv").data = kHalf;
    }
    for (const std::string layer : {"model.layers.0.self_attn.", "model.layers.1.self_attn."}) {
      add(layer + "k_proj.k_scale", "F32", {}, kHalf);
      add(layer + "v_scale", "BF16", {1}, kThree);
    }
    config([](Json& config) {
      config["quantization_config"] = {{"quant_method", "fp8"},
                                       {"activation_scheme", "dynamic"},
                                       {"weight_block_size", {128, 128}},
                                       {"kv_cache_scheme", "static"}};
    });
  }

  void add(const std::string& name, const char* dtype, std::vector<std::uint64_t> shape,
           std::string data) {
    tiny_.files.begin()->second.push_back(
        {.name = name, .dtype = dtype, .shape = std::move(shape), .data = std::move(data)});
  }

  template <typename Edit>
  void config(const Edit& edit) {
    Json json = formats::parse_json(tiny_.config, "config.json");
    edit(json);
    tiny_.config = formats::json_text(json);
  }

  Conversion conversion(std::optional<formats::SchemeId> to) {
    tiny_.write(directory_ / "in");
    Conversion result{directory_ / "in", directory_ / "out"};
    result.recipe.to = to;
    return result;
  }

  convert::Plan plan(Conversion& asked) {
    resolve(asked.recipe, source_.emplace(formats::Checkpoint::open(asked.input)));
    return plan_for(*source_, asked.recipe, asked.plan);
  }

  [[nodiscard]] Json written_config() const {
    return formats::read_json_file(directory_ / "out/config.json", 1 << 20);
  }
  [[nodiscard]] OutputTensors written() const { return read_output(directory_ / "out"); }

  TempDir directory_;
  TinyCheckpoint tiny_ = tiny_deepseek_v3();
  std::optional<formats::Checkpoint> source_;
};

TEST_F(CacheScales, OfACopyAreKeptWithTheirWord) {
  conversion(std::nullopt).run();
  EXPECT_EQ(written().at(kKeys).bytes, kHalf);
  EXPECT_EQ(written().at(kValues).bytes, kThree);
  EXPECT_EQ(written_config().at("quantization_config").at("kv_cache_scheme"), "static");
}

TEST_F(CacheScales, OfAModelQuantizedFurtherAreKept) {
  Conversion further = conversion(std::nullopt);
  further.recipe.rules.push_back(convert::parse_rule("model.layers.1.mlp.experts.*=fp8-block"));
  further.run();
  EXPECT_EQ(written().at(kKeys).bytes, kHalf);
  EXPECT_EQ(written_config().at("quantization_config").at("kv_cache_scheme"), "static");
}

TEST_F(CacheScales, OfAnOutputWithoutTheWordAreDropped) {
  conversion(formats::SchemeId::kBf16).run();
  EXPECT_EQ(written().count(kKeys), 0U);
  EXPECT_EQ(written().count(kValues), 0U);
  EXPECT_FALSE(written_config().contains("quantization_config"));
}

TEST_F(CacheScales, AreDroppedWithCountAndRange) {
  Conversion asked = conversion(formats::SchemeId::kBf16);
  EXPECT_THAT(plan(asked).warnings, Contains(AllOf(HasSubstr("4 scale(s)"), HasSubstr("0.5 to 3"),
                                                   HasSubstr("kv_cache_scheme is \"static\""))));
}

TEST_F(CacheScales, OfASourceWithoutAWordStay) {
  config([](Json& config) { config["quantization_config"].erase("kv_cache_scheme"); });
  conversion(formats::SchemeId::kBf16).run();
  EXPECT_EQ(written().at(kKeys).bytes, kHalf);
  EXPECT_EQ(written().at(kValues).bytes, kThree);
}

TEST_F(CacheScales, AreSparedByAWidePattern) {
  Conversion asked = conversion(std::nullopt);
  asked.recipe.rules.push_back(convert::parse_rule("*=bf16"));
  config([](Json& config) { config["quantization_config"].erase("kv_cache_scheme"); });
  tiny_.write(directory_ / "in");
  asked.run();
  EXPECT_EQ(written().at(kKeys).bytes, kHalf);
}

TEST_F(CacheScales, OfALayerGoToItsStage) {
  Conversion cut = conversion(std::nullopt);
  cut.plan.layout = formats::find_layout("ranks");
  cut.plan.slicing.topology = shard::make_topology(1, 2, std::nullopt, 2);
  const convert::Plan planned = plan(cut);
  for (const convert::PlannedTensor& tensor : planned.tensors) {
    const std::string& name = planned.tensor_of(tensor).name;
    if (name != kKeys && name != kValues) continue;
    EXPECT_EQ(tensor.cut.n, 1U) << name;
    const convert::PlannedFile& file = planned.files[planned.first_place(tensor.parts[0]).file];
    for (const convert::PlannedFile::Member& member : file.members) {
      for (const std::uint32_t rank : member.ranks)
        EXPECT_EQ(rank / 2, name == kKeys ? 0U : 1U) << name;
    }
  }
}

TEST_F(CacheScales, OfHeadsAreNotCut) {
  add("model.layers.0.self_attn.q_scale", "BF16", {2, 1, 1}, kThree + kThree);
  Conversion cut = conversion(std::nullopt);
  cut.plan.layout = formats::find_layout("ranks");
  cut.plan.slicing.topology = shard::make_topology(2, 1, std::nullopt, 1);
  expect_error(ErrorCode::kUnsupported, {"model.layers.0.self_attn.q_scale", "--tp"},
               [&] { plan(cut); });
}

}  // namespace
}  // namespace ingot::testing
