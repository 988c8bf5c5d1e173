#include "formats/base/hash.h"
#include "formats/checkpoint/checkpoint_listing.h"
#include "formats/json/json.h"
#include "formats/records/native_names.h"
#include "tests/convert/slicing/sliced.h"
#include "tests/support/bytes.h"
#include "tests/support/test.h"

// Layout deepseek-mp, against outputs of DeepSeek's own converter (tests/golden/PROVENANCE.md).

namespace ingot::testing {
namespace {

using convert::MtpPolicy;
using formats::Json;
using formats::SchemeId;

namespace fs = std::filesystem;

/// "model0-mp2.safetensors embed.weight" to "BF16 [1024, 256] <SHA-256>".
using Facts = std::map<std::string, std::string>;

std::string facts_text(std::string_view dtype, const formats::Shape& shape,
                       std::string_view sha256) {
  return fmt::format("{} {} {}", dtype, formats::shape_text(shape), sha256);
}

/// The output of DeepSeek's converter, e.g. for "bf16-mp2".
Facts golden(const std::string& job) {
  static const std::map<std::string, std::string> kDtypes = {
      {"bfloat16", "BF16"}, {"float32", "F32"}, {"float8_e4m3fn", "F8_E4M3"}};
  const Json all = formats::read_json_file(
      INGOT_SOURCE_DIR "/tests/golden/tiny-v32/deepseek_convert.sha256.json", 1 << 20);
  Facts facts;
  for (const auto& [file, tensors] : all.at(job).items()) {
    for (const auto& [name, tensor] : tensors.items()) {
      facts[file + " " + name] = facts_text(kDtypes.at(tensor.at("dtype").get<std::string>()),
                                            tensor.at("shape").get<formats::Shape>(),
                                            tensor.at("sha256").get<std::string>());
    }
  }
  return facts;
}

Facts written(const fs::path& directory) {
  Facts facts;
  for (const auto& entry : fs::directory_iterator(directory)) {
    if (entry.path().extension() != ".safetensors") continue;
    OutputTensors tensors;
    add_file(entry.path(), tensors);
    for (const auto& [name, tensor] : tensors) {
      facts[tensor.file + " " + name] =
          facts_text(formats::dtype_name(tensor.dtype), tensor.shape, sha256(tensor.bytes));
    }
  }
  return facts;
}

/// The example has its MTP layer behind five others.
bool is_mtp(const std::string& key) {
  return key.find("layers.5.") != std::string::npos;
}

Conversion to_native(const fs::path& from, const fs::path& to, std::uint32_t mp) {
  Conversion conversion = keeping(from, to);
  conversion.plan.layout = formats::find_layout("deepseek-mp");
  conversion.plan.slicing.topology = shard::make_topology(mp, mp, 1, 1);
  return conversion;
}

std::string text_of(const fs::path& path) {
  return read_text_file(path, 1 << 20);
}

class NativeLayout : public ::testing::Test {
 protected:
  TempDir directory_;
};

class NativeLayoutOf : public NativeLayout, public ::testing::WithParamInterface<std::uint32_t> {};

TEST_P(NativeLayoutOf, IsThatOfDeepseeksConverterTensorByTensor) {
  Conversion conversion = to_native(tiny_bf16(), directory_ / "out", GetParam());
  conversion.recipe.mtp = MtpPolicy::kDrop;
  conversion.run();
  EXPECT_EQ(
      first_difference(written(directory_ / "out"), golden(fmt::format("bf16-mp{}", GetParam()))),
      "");
  const Json config = formats::read_json_file(directory_ / "out/config.json", 1 << 20);
  EXPECT_EQ(config.at("num_nextn_predict_layers"), 0);
}

TEST_P(NativeLayoutOf, HasTheMtpLayerUnlessDropped) {
  to_native(tiny_bf16(), directory_ / "out", GetParam()).run();
  Facts facts = written(directory_ / "out");
  std::set<std::string> extra;
  for (const auto& [key, text] : facts) {
    if (is_mtp(key)) extra.insert(key);
  }
  std::erase_if(facts, [](const auto& entry) { return is_mtp(entry.first); });
  EXPECT_EQ(first_difference(facts, golden(fmt::format("bf16-mp{}", GetParam()))), "");

  // Everything on every rank, but experts, of which each has its block.
  const formats::Checkpoint cast = formats::Checkpoint::open(tiny_bf16());
  const auto n_experts = static_cast<std::uint32_t>(cast.config().n_routed_experts);
  std::set<std::string> expected;
  for (const formats::LogicalTensor& tensor : cast.tensors()) {
    if (tensor.layer != 5U) continue;
    for (std::uint32_t rank = 0; rank < GetParam(); ++rank) {
      if (tensor.expert && *tensor.expert / (n_experts / GetParam()) != rank) continue;
      expected.insert(fmt::format("model{}-mp{}.safetensors {}", rank, GetParam(),
                                  formats::native_name(tensor.name, cast.config()).value()));
    }
  }
  EXPECT_GT(expected.size(), 16U * 3U);
  EXPECT_EQ(extra, expected);
}

INSTANTIATE_TEST_SUITE_P(Ranks, NativeLayoutOf, ::testing::Values(2),
                         ::testing::PrintToStringParamName());
INSTANTIATE_TEST_SUITE_P(SlowRanks, NativeLayoutOf, ::testing::Values(1, 4, 8),
                         ::testing::PrintToStringParamName());

TEST_F(NativeLayout, Fp8EqualsDeepseeksConverter) {
  Conversion conversion = to_native(tiny_v32(), directory_ / "out", 1);
  conversion.recipe.mtp = MtpPolicy::kDrop;
  conversion.run();
  EXPECT_EQ(first_difference(written(directory_ / "out"), golden("fp8-mp1")), "");
}

TEST_F(NativeLayout, HasHubAndInferenceConfigs) {
  to_native(tiny_bf16(), directory_ / "bf16", 2).run();
  to_native(tiny_v32(), directory_ / "fp8", 1).run();
  EXPECT_EQ(text_of(directory_ / "bf16/config.json"), text_of(tiny_bf16() / "config.json"));
  EXPECT_EQ(formats::read_json_file(directory_ / "fp8/config.json", 1 << 20),
            formats::read_json_file(tiny_v32() / "config.json", 1 << 20));
  for (const char* name : {"tokenizer.json", "tokenizer_config.json", "generation_config.json"})
    EXPECT_EQ(text_of(directory_ / "bf16" / name), text_of(tiny_v32() / name)) << name;

  auto expected = nlohmann::json::parse(R"({
    "vocab_size": 2048, "dim": 256, "inter_dim": 640, "moe_inter_dim": 128, "n_layers": 5,
    "n_dense_layers": 1, "n_heads": 8, "n_routed_experts": 16, "n_shared_experts": 1,
    "n_activated_experts": 4, "n_expert_groups": 4, "n_limited_groups": 2, "route_scale": 2.5,
    "score_func": "sigmoid", "q_lora_rank": 128, "kv_lora_rank": 128, "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 16, "v_head_dim": 32, "dtype": "bf16", "original_seq_len": 256,
    "rope_theta": 10000, "rope_factor": 4, "beta_fast": 32, "beta_slow": 1, "mscale": 1,
    "index_n_heads": 4, "index_head_dim": 128, "index_topk": 64})");
  const auto inference_config = [&](const std::string& directory) {
    return nlohmann::json::parse(text_of(directory_ / directory / "inference_config.json"));
  };
  EXPECT_EQ(inference_config("bf16"), expected);
  expected["dtype"] = "fp8";
  expected["scale_fmt"] = "ue8m0";
  EXPECT_EQ(inference_config("fp8"), expected);
}

TEST_F(NativeLayout, RefusesCutsThroughFp8BlocksWithRemedy) {
  const auto refused = [&](std::initializer_list<std::string> fragments, shard::TpFit fit) {
    expect_error(ErrorCode::kUnsupported, fragments, [&] {
      Conversion conversion = to_native(tiny_v32(), directory_ / "out", 2);
      conversion.plan.slicing.fit = fit;
      conversion.run();
    });
    EXPECT_FALSE(fs::exists(directory_ / "out"));
  };
  refused({"'model.layers.0.self_attn.q_b_proj.weight'", "384 rows / 2 ranks = 192", "128 rows",
           "--tp-fit bf16", "--mp 1"},
          shard::TpFit::kRefuse);
  refused({"128 x 128", "--tp-fit bf16", "--layout ranks"}, shard::TpFit::kRetile);

  Conversion helped = to_native(tiny_v32(), directory_ / "out", 2);
  helped.plan.slicing.fit = shard::TpFit::kBf16;
  helped.run();
  keeping(directory_ / "out", directory_ / "merged").run();
  // Heads were cut inside their blocks and experts were not cut at all.
  const auto merged = read_output(directory_ / "merged"), whole = read_output(tiny_v32());
  const auto cast = read_output(tiny_bf16());
  const std::string cut = "model.layers.0.self_attn.q_b_proj.weight";
  const std::string uncut = "model.layers.1.mlp.experts.3.up_proj.weight";
  EXPECT_EQ(merged.at(cut), cast.at(cut));
  EXPECT_EQ(merged.at(uncut), whole.at(uncut));
}

TEST_F(NativeLayout, RefusesSchemesUnknownToInference) {
  for (const SchemeId scheme : {SchemeId::kNvfp4, SchemeId::kInt8Channel, SchemeId::kFp8Channel}) {
    expect_error(ErrorCode::kUnsupported,
                 {"deepseek-mp", std::string(formats::scheme_facts(scheme).name), "--to bf16",
                  "--layout ranks"},
                 [&] {
                   Conversion conversion = to_native(tiny_v32(), directory_ / "out", 1);
                   conversion.recipe.to = scheme;
                   conversion.run();
                 });
    EXPECT_FALSE(fs::exists(directory_ / "out"));
  }
}

// Weights that every layout refuses, of any expert, on whatever rank it is.
TEST_F(NativeLayout, RefusesFusedWeightsInTwoDtypes) {
  for (const char* layout : {"hf", "ranks", "deepseek-mp"}) {
    SCOPED_TRACE(layout);
    expect_error(ErrorCode::kMismatch, {"'model.layers.1.mlp.experts.15.", "fused.scheme"}, [&] {
      Conversion conversion = keeping(tiny_bf16(), directory_ / "out");
      conversion.plan.layout = formats::find_layout(layout);
      if (conversion.plan.layout->is_sliced)
        conversion.plan.slicing.topology = shard::make_topology(2, 2, 1, 1);
      conversion.recipe.rules = {
          convert::parse_rule("model.layers.1.mlp.experts.15.up_proj.weight=f32")};
      conversion.run();
    });
    EXPECT_FALSE(fs::exists(directory_ / "out"));
  }
}

TEST_F(NativeLayout, RefusesScalesInAnotherDialectsSpelling) {
  Conversion blocks(tiny_v32(), directory_ / "blocks");
  blocks.recipe.to = SchemeId::kFp8Block;
  blocks.recipe.choices.dialect = "compressed-tensors";
  blocks.run();
  expect_error(ErrorCode::kUnsupported, {"deepseek-mp", "--dialect deepseek"}, [&] {
    Conversion conversion = to_native(directory_ / "blocks", directory_ / "out", 1);
    conversion.recipe.to.reset();
    conversion.run();
  });
}

TEST_F(NativeLayout, LeavesNoConfigWhenReplaced) {
  to_native(tiny_bf16(), directory_ / "out", 2).run();
  Conversion again(tiny_v32(), directory_ / "out");
  again.execute.force = true;
  again.run();
  EXPECT_EQ(top_level(directory_ / "out"), top_level(tiny_bf16()));
}

}  // namespace
}  // namespace ingot::testing
