#include "check/check.h"
#include "formats/json/json.h"
#include "tests/convert/slicing/state_files.h"
#include "tests/support/test.h"

// Layout vllm-sharded, against the state dicts that vLLM's own loader made of the unsliced
// checkpoint (tests/golden/PROVENANCE.md).

namespace ingot::testing {
namespace {

using formats::Json;

namespace fs = std::filesystem;

fs::path fp8_model() {
  return model_of("deepseek_v3", true);
}

Conversion to_ranks(const fs::path& from, const fs::path& to, std::uint32_t tp) {
  Conversion conversion = keeping(from, to);
  conversion.plan.layout = formats::find_layout("vllm-sharded");
  conversion.plan.slicing.topology = shard::make_topology(tp, 1, std::nullopt, 1);
  return conversion;
}

class VllmLayout : public ::testing::Test {
 protected:
  void expect_refused(const std::function<void(Conversion&)>& change,
                      std::initializer_list<std::string> fragments) {
    Conversion conversion = to_ranks(fp8_model(), directory_ / "refused", 2);
    change(conversion);
    expect_error(ErrorCode::kUnsupported, fragments, [&] { conversion.run(); });
    EXPECT_FALSE(fs::exists(directory_ / "refused"));
  }

  TempDir directory_;
};

struct Job {
  friend void PrintTo(const Job& job, std::ostream* out) { *out << job.name; }

  std::string name;
  bool fp8;
  std::uint32_t tp, pp = 1;
  bool deals_experts = false;
  std::string family = "deepseek_v3";
  std::optional<formats::SchemeId> scheme = {};
  std::uint32_t mtp_layers = 0;
  [[nodiscard]] fs::path model() const { return model_of(family, fp8, mtp_layers); }
  [[nodiscard]] Conversion to(const fs::path& directory) const {
    Conversion conversion = to_ranks(model(), directory, tp);
    conversion.plan.slicing.topology =
        shard::make_topology(tp, deals_experts ? tp : 1, std::nullopt, pp);
    encode(conversion.recipe);
    return conversion;
  }
  void encode(convert::Recipe& recipe) const {
    recipe.to = scheme;
    // The recordings of INT8 have the scales of the largest values.
    if (scheme == formats::SchemeId::kInt8Channel)
      recipe.choices.search = quantize::ScaleSearch::kAmax;
  }
};

class VllmLayoutOf : public VllmLayout, public ::testing::WithParamInterface<Job> {};

TEST_P(VllmLayoutOf, IsTheStateDictOfVllmKeyByKey) {
  const Job& job = GetParam();
  job.to(directory_ / "out").run();
  for (std::uint32_t rank = 0; rank < job.tp * job.pp; ++rank) {
    const std::string name = job.pp == 1 ? rank_file("", rank).string()
                                         : fmt::format("model-pp-{}-tp-{}-part-0.safetensors",
                                                       rank / job.tp, rank % job.tp);
    const fs::path file = directory_ / "out" / name;
    EXPECT_EQ(first_difference(state_in(file), golden_state("vllm_sharded", job.name, rank)), "")
        << rank;
    if (job.mtp_layers == 0) continue;
    EXPECT_EQ(first_difference(state_in(directory_ / "out/mtp" / name),
                               golden_state("vllm_sharded", job.name + "-mtp", rank)),
              "")
        << rank;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Jobs, VllmLayoutOf,
    ::testing::Values(
        Job{"deepseek_v3-fp8-tp1", true, 1}, Job{"deepseek_v3-fp8-tp2", true, 2},
        Job{"deepseek_v3-fp8-tp4", true, 4}, Job{"deepseek_v3-fp8-tp1-pp2", true, 1, 2},
        Job{"deepseek_v3-fp8-tp2-ep", true, 2, 1, true}, Job{"deepseek_v3-bf16-tp2", false, 2},
        Job{"deepseek_v32-fp8-tp2", true, 2, 1, false, "deepseek_v32"},
        Job{"qwen3_moe-fp8-tp2", true, 2, 1, false, "qwen3_moe"},
        Job{"qwen3_moe-int8-tp2", true, 2, 1, false, "qwen3_moe", formats::SchemeId::kInt8Channel},
        Job{"deepseek_v3-int4-tp2", true, 2, 1, false, "deepseek_v3",
            formats::SchemeId::kInt4Group},
        Job{"glm_moe_dsa-fp8-tp2", true, 2, 1, false, "glm_moe_dsa", std::nullopt, 1}));

TEST_F(VllmLayout, CheckFindsChangedPiecesAndConstants) {
  const fs::path out = directory_ / "out";
  to_ranks(fp8_model(), out, 2).run();
  EXPECT_TRUE(check::check_checkpoint(out, {}).findings.empty());
  const auto findings_with = [&](const std::string& key, std::uint64_t at) {
    const fs::path path = rank_file(out, 1);
    const std::string before = read_text_file(path, 1 << 30);
    std::string bytes = before;
    const auto tensors = formats::read_safetensors_header(Fd::open_for_reading(path)).tensors;
    const auto tensor = std::ranges::find(tensors, key, &formats::StoredTensor::name);
    bytes.at(tensor->offset + at) ^= 1;
    std::ofstream(path, std::ios::binary) << bytes;
    const auto findings = check::check_checkpoint(out, {}).findings;
    std::ofstream(path, std::ios::binary) << before;
    return findings;
  };
  // Rows of up_proj are below those of gate_proj, 256 x 256 bytes each.
  const auto piece = findings_with("model.layers.0.mlp.gate_up_proj.weight", 256 * 256);
  ASSERT_EQ(piece.size(), 1U);
  EXPECT_EQ(piece[0].tensor, "model.layers.0.mlp.up_proj.weight");
  const auto constant = findings_with("model.layers.1.self_attn.mla_attn.mla_attn._k_scale", 0);
  ASSERT_EQ(constant.size(), 1U);
  EXPECT_EQ(constant[0].file, "model-rank-1-part-0.safetensors");
}

TEST_F(VllmLayout, DraftModelHasAFolderOfItsOwn) {
  const fs::path model = model_of("deepseek_v3", true, 1), out = directory_ / "out";
  to_ranks(model, out, 2).run();
  EXPECT_EQ(read_text_file(out / "mtp/config.json", 1 << 20),
            read_text_file(out / "config.json", 1 << 20));
  EXPECT_TRUE(check::check_checkpoint(out, {}).findings.empty());
  EXPECT_TRUE(shard::open_source(out).remarks().empty());
  keeping(out, directory_ / "merged").run();
  EXPECT_FALSE(fs::exists(directory_ / "merged/mtp"));
  const fs::path draft = rank_file(out / "mtp", 1);
  fs::resize_file(draft, fs::file_size(draft) - 1);
  const auto findings = check::check_checkpoint(out, {}).findings;
  ASSERT_FALSE(findings.empty());
  EXPECT_EQ(findings[0].file, "mtp/model-rank-1-part-0.safetensors");
}

TEST_F(VllmLayout, ManifestNamesEngineAndKernels) {
  to_ranks(fp8_model(), directory_ / "out", 2).run();
  const Json engine = formats::read_json_file(directory_ / "out/ingot.json", 1 << 20).at("engine");
  EXPECT_EQ(engine.at("name"), "vllm");
  EXPECT_EQ(engine.at("version"), "0.32 or later");
  EXPECT_EQ(engine.at("kernels"), Json({"triton experts"}));
}

TEST_F(VllmLayout, RefusesTopologiesThatVllmHasNot) {
  const auto cut = [](std::uint32_t tp, std::uint32_t ep, std::optional<std::uint32_t> etp) {
    return [=](Conversion& conversion) {
      conversion.plan.slicing.topology = shard::make_topology(tp, ep, etp, 1);
    };
  };
  expect_refused(cut(1, 2, std::nullopt), {"data parallelism", "vllm-sharded"});
  expect_refused(cut(2, 4, std::nullopt), {"data parallelism"});
  expect_refused(cut(2, 1, 1), {"cuts experts by --tp"});
  expect_refused(
      [](Conversion& conversion) {
        conversion.plan.slicing.topology = shard::make_topology(1, 1, std::nullopt, 3);
      },
      {"--pp 3 is more than 2 layers"});
  expect_refused(
      [](Conversion& conversion) {
        conversion.plan.slicing.topology = shard::make_topology(1, 1, std::nullopt, 2);
        conversion.plan.slicing.stages = "0-0,1-1";
      },
      {"leave out --pp-layers"});
}

// It would read them without a word.
TEST_F(VllmLayout, RefusesWhatVllmDoesNotLoad) {
  const fs::path narrow = directory_ / "narrow";
  formats::write_synthetic_checkpoint(narrow, {.family = formats::find_family("qwen3_moe"),
                                               .size = formats::SynthSize::kTiny,
                                               .layers = 2,
                                               .experts = 4,
                                               .hidden = 256,
                                               .moe_intermediate = 192,
                                               .heads = 8,
                                               .fp8 = false});
  const auto to = [&](std::uint32_t tp, std::uint32_t ep, const std::string& dialect) {
    return [=](Conversion& conversion) {
      conversion.input = narrow;
      conversion.recipe.to = formats::SchemeId::kFp8Block;
      conversion.recipe.choices.dialect = dialect;
      conversion.plan.slicing.topology = shard::make_topology(tp, ep, std::nullopt, 1);
    };
  };
  for (const char* dialect : {"deepseek", "compressed-tensors"}) {
    expect_refused(to(1, 1, dialect), {"vLLM 0.33 does not load it", "experts.0.gate_proj.weight",
                                       "multiple of the block"});
    expect_refused(to(2, 2, dialect), {"vLLM 0.33 does not load it", "multiple of the block"});
  }
  // Allowed for another engine, and then check says so.
  Conversion allowed = to_ranks(narrow, directory_ / "allowed", 1);
  to(1, 1, "deepseek")(allowed);
  allowed.recipe.allow.add("engine-refuses=*");
  allowed.run();
  const auto findings = check::check_directory(directory_ / "allowed", {}, {}).findings;
  EXPECT_TRUE(std::ranges::any_of(findings, [](const check::Finding& finding) {
    return finding.rule == "engine.refused-by-vllm" &&
           finding.message.find("(allowed when it was converted)") != std::string::npos;
  }));
}

// qwen3_moe.py:468-580; its loader reports others as "Missing keys".
TEST_F(VllmLayout, HasTheEndsOnEveryStageThatBuildsThem) {
  const std::set<std::string> ends = {"model.embed_tokens.weight", "model.norm.weight",
                                      "lm_head.weight"};
  const auto ends_of = [&](const std::string& family, std::uint32_t stage) {
    const fs::path out = directory_ / family;
    if (!fs::exists(out)) {
      Conversion conversion = to_ranks(model_of(family, false), out, 2);
      conversion.plan.slicing.topology = shard::make_topology(2, 1, std::nullopt, 2);
      conversion.run();
    }
    std::set<std::string> found;
    for (const auto& [key, facts] :
         state_in(out / fmt::format("model-pp-{}-tp-1-part-0.safetensors", stage))) {
      if (ends.contains(key)) found.insert(key);
    }
    return found;
  };
  for (const std::uint32_t stage : {0U, 1U}) EXPECT_EQ(ends_of("qwen3_moe", stage), ends) << stage;
  EXPECT_EQ(ends_of("deepseek_v3", 0), std::set<std::string>{"model.embed_tokens.weight"});
  // Slices that both stages have are hashed once.
  EXPECT_TRUE(check::check_checkpoint(directory_ / "qwen3_moe", {}).findings.empty());
  keeping(directory_ / "qwen3_moe", directory_ / "merged").run();
  EXPECT_EQ(first_difference(payload(directory_ / "merged"), payload(model_of("qwen3_moe", false))),
            "");
}

// It goes by these numbers, and not by indexer_types.
TEST_F(VllmLayout, HasTheIndexersThatVllmBuilds) {
  const fs::path sharing = directory_ / "sharing";
  fs::copy(model_of("deepseek_v32", false), sharing, fs::copy_options::recursive);
  const auto edit = [](const fs::path& model, const Json& edits) {
    Json config = formats::read_json_file(model / "config.json", 1 << 20);
    config.update(edits);
    std::ofstream(model / "config.json") << config;
  };
  edit(sharing, {{"index_topk_freq", 2}, {"index_skip_topk_offset", 1}});
  to_ranks(sharing, directory_ / "out", 1).run();
  std::set<std::string> layers;
  for (const auto& [key, tensor] : state_in(directory_ / "out" / rank_file("", 0))) {
    if (key.find("indexer") != std::string::npos) layers.insert(key.substr(0, key.find(".self")));
  }
  EXPECT_EQ(layers, std::set<std::string>{"model.layers.0"});

  keeping(directory_ / "out", directory_ / "merged").run();
  edit(directory_ / "merged", {{"index_topk_freq", 1}, {"indexer_types", {"full", "shared"}}});
  expect_refused([&](Conversion& conversion) { conversion.input = directory_ / "merged"; },
                 {"builds an indexer in layer 1", "index_topk_freq"});
}

TEST_F(VllmLayout, SaysOnceWhatItDoesNotHold) {
  Conversion conversion = keeping(model_of("deepseek_v3", false), directory_ / "mxfp4");
  conversion.recipe.to = formats::SchemeId::kMxfp4;
  conversion.run();
  try {
    to_ranks(directory_ / "mxfp4", directory_ / "out", 2).run();
    FAIL() << "is held";
  } catch (const Error& error) {
    const std::string message = error.what();
    EXPECT_NE(message.find("does not hold mxfp4"), std::string::npos) << message;
    EXPECT_EQ(message.find("has scales in"), std::string::npos) << message;
  }
}

TEST_F(VllmLayout, RefusesWhatItDoesNotHold) {
  expect_refused([](Conversion& conversion) { conversion.plan.slicing.fit = shard::TpFit::kPad; },
                 {"--tp-fit refuse or bf16"});
  expect_refused([](Conversion& conversion) { conversion.plan.shards.max_shard_bytes = 1 << 20; },
                 {"--max-shard-size"});
  expect_refused(
      [](Conversion& conversion) {
        conversion.plan.slicing.shared = shard::SharedExperts::kReplicated;
      },
      {"leave out --shared-experts"});
  expect_refused(
      [](Conversion& conversion) { conversion.plan.shards.order = convert::TensorOrder::kName; },
      {"leave out --order"});
  expect_refused([](Conversion& conversion) { conversion.plan.shards.align = 4096; },
                 {"leave out --align"});
  expect_refused(
      [](Conversion& conversion) {
        conversion.plan.slicing.topology = shard::make_topology(3, 1, std::nullopt, 1);
      },
      {"pads the vocabulary to a multiple of 64, which --tp 3 does not divide"});
  const auto with_config = [&](const char* key, const Json& value) {
    const fs::path changed = directory_ / key;
    fs::copy(fp8_model(), changed, fs::copy_options::recursive);
    Json config = formats::read_json_file(changed / "config.json", 1 << 20);
    config[key] = value;
    std::ofstream(changed / "config.json") << config;
    return [changed](Conversion& conversion) { conversion.input = changed; };
  };
  expect_refused(with_config("torch_dtype", "float16"), {"config.json says dtype 'float16'"});
  expect_refused([](Conversion& conversion) { conversion.recipe.to = formats::SchemeId::kMxfp4; },
                 {"layout vllm-sharded does not hold mxfp4", "--layout hf"});
  // Remedies are those that this layout takes: neither retile nor pad, and no --etp.
  expect_refused(
      [](Conversion& conversion) {
        conversion.plan.slicing.topology = shard::make_topology(8, 1, std::nullopt, 1);
      },
      {"'model.layers.1.mlp.experts.0.down_proj.weight'", "(--tp-fit bf16; or --tp 4)"});
  expect_refused([](Conversion& conversion) { conversion.recipe.to = formats::SchemeId::kF16; },
                 {"holds plain tensors as BF16", "--to bf16"});
  expect_refused(
      [](Conversion& conversion) {
        conversion.recipe.rules.push_back(convert::parse_rule("role:post-attention-norm=f32"));
      },
      {"post_attention_layernorm.weight'", "vLLM holds it in bf16, and a rule asks for f32"});
  expect_refused(
      [&](Conversion& conversion) {
        conversion.input = model_of("deepseek_v3", true, 1);
        conversion.plan.slicing.topology = shard::make_topology(1, 1, std::nullopt, 2);
      },
      {"MTP layers on only one stage", "--mtp drop"});
  expect_refused(
      [&](Conversion& conversion) { conversion.input = model_of("deepseek_v3", true, 2); },
      {"has 2 with an embedding each", "--mtp drop"});
  const fs::path asymmetric = directory_ / "asymmetric";
  fs::copy(INGOT_SOURCE_DIR "/tests/golden/families/qwen3_moe_gptq_asym", asymmetric,
           fs::copy_options::recursive);
  Json config = formats::read_json_file(asymmetric / "config.json", 1 << 20);
  config["torch_dtype"] = "bfloat16";
  std::ofstream(asymmetric / "config.json") << config;
  expect_refused([&](Conversion& conversion) { conversion.input = asymmetric; },
                 {"only symmetric int4"});
  expect_refused(
      [&](Conversion& conversion) {
        conversion.input = INGOT_SOURCE_DIR "/tests/golden/families/glm4_moe_fp8_block";
      },
      {"family glm4_moe", "--layout hf"});
}

}  // namespace
}  // namespace ingot::testing
