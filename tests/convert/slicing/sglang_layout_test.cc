#include "check/check.h"
#include "formats/json/json.h"
#include "tests/convert/job/unfinished_job.h"
#include "tests/convert/slicing/state_files.h"
#include "tests/support/test.h"

// Layout sglang-sharded, against the state dicts that SGLang's own loader made of the unsliced
// checkpoint and processed (tests/golden/PROVENANCE.md).

namespace ingot::testing {
namespace {

using formats::SchemeId;

struct SglangJob {
  friend void PrintTo(const SglangJob& job, std::ostream* out) { *out << job.name; }

  std::string name;
  bool fp8;
  std::uint32_t tp = 2;
  bool deals_experts = false;
  std::string family = "deepseek_v3";
  std::optional<SchemeId> scheme = {};
  /// The recipe of the recordings: scales of the largest values, and kv_b_proj as it must be.
  void encode(Conversion& conversion) const {
    conversion.recipe.to = scheme;
    if (!scheme) return;
    conversion.recipe.choices.dialect = "compressed-tensors";
    conversion.recipe.choices.search = quantize::ScaleSearch::kAmax;
    if (family == "deepseek_v3")
      conversion.recipe.rules.push_back(convert::parse_rule("role:kv-b-proj=bf16"));
  }
  [[nodiscard]] Conversion to(const std::filesystem::path& directory) const {
    // SGLang's class of qwen3_moe knows no dense layers.
    const std::uint32_t dense_layers = family == "qwen3_moe" ? 0 : 1;
    Conversion conversion(model_of(family, fp8, 0, dense_layers), directory);
    conversion.plan.layout = formats::find_layout("sglang-sharded");
    conversion.plan.slicing.topology =
        shard::make_topology(tp, deals_experts ? tp : 1, std::nullopt, 1);
    encode(conversion);
    return conversion;
  }
};
const SglangJob kTurned{"deepseek_v3-int8-tp2-ep", true, 2, true, "deepseek_v3",
                        SchemeId::kInt8Channel};

using SglangLayout = InTempDir;

class SglangLayoutOf : public SglangLayout, public ::testing::WithParamInterface<SglangJob> {};

TEST_P(SglangLayoutOf, IsTheStateDictOfSglangKeyByKey) {
  const SglangJob& job = GetParam();
  job.to(dir_ / "out").run();
  for (std::uint32_t rank = 0; rank < job.tp; ++rank) {
    EXPECT_EQ(first_difference(state_in(rank_file(dir_ / "out", rank)),
                               golden_state("sglang_sharded", job.name, rank)),
              "")
        << rank;
  }
  EXPECT_TRUE(check::check_checkpoint(dir_ / "out", {}).findings.empty());
}

INSTANTIATE_TEST_SUITE_P(
    Jobs, SglangLayoutOf,
    ::testing::Values(
        SglangJob{"deepseek_v3-fp8-tp1", true, 1}, SglangJob{"deepseek_v3-fp8-tp2", true},
        SglangJob{"deepseek_v3-fp8-tp2-ep", true, 2, true},
        SglangJob{"deepseek_v3-bf16-tp2", false},
        SglangJob{"deepseek_v2-bf16-tp2", false, 2, false, "deepseek_v2"},
        SglangJob{"deepseek_v32-fp8-tp2", true, 2, false, "deepseek_v32"},
        SglangJob{"glm_moe_dsa-fp8-tp2", true, 2, false, "glm_moe_dsa"},
        SglangJob{"qwen3_moe-fp8-tp2", true, 2, false, "qwen3_moe"},
        SglangJob{"qwen3_moe-int8-tp2", true, 2, false, "qwen3_moe", SchemeId::kInt8Channel},
        SglangJob{"qwen3_moe-channel-tp2", true, 2, false, "qwen3_moe", SchemeId::kFp8Channel},
        SglangJob{"deepseek_v3-channel-tp2", true, 2, false, "deepseek_v3", SchemeId::kFp8Channel},
        kTurned));

TEST_F(SglangLayout, MergesTurnedLinearsBitForBit) {
  kTurned.to(dir_ / "ranks").run();
  keeping(dir_ / "ranks", dir_ / "merged").run();
  Conversion whole(model_of("deepseek_v3", true), dir_ / "whole");
  kTurned.encode(whole);
  whole.run();
  EXPECT_EQ(first_difference(payload(dir_ / "merged"), payload(dir_ / "whole")), "");
}

TEST_F(SglangLayout, CheckFindsAByteOfATurnedPiece) {
  const std::filesystem::path out = dir_ / "out", path = rank_file(out, 1);
  kTurned.to(out).run();
  std::string bytes = read_text_file(path, 1 << 30);
  const auto tensors = formats::read_safetensors_header(Fd::open_for_reading(path)).tensors;
  const auto joined = std::ranges::find(tensors, "model.layers.0.mlp.gate_up_proj.weight",
                                        &formats::StoredTensor::name);
  ASSERT_EQ(joined->shape, (formats::Shape{256, 512}));
  // In each row, 256 outputs of gate_proj are before those of up_proj.
  bytes.at(joined->offset + 3 * 512 + 256) ^= 1;
  std::ofstream(path, std::ios::binary) << bytes;
  const auto findings = check::check_checkpoint(out, {}).findings;
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].tensor, "model.layers.0.mlp.up_proj.weight");
}

TEST_F(SglangLayout, TurnsInLittleMemoryAndOnManyThreads) {
  const Conversion one = kTurned.to(dir_ / "one");
  Conversion(one).run();
  Conversion three = kTurned.to(dir_ / "three");
  three.execute.threads = 3;
  three.execute.mem_limit = least_memory(three, 3);
  three.execute.read_back = true;
  three.run();
  EXPECT_EQ(first_difference(tree(three.output), tree(one.output)), "");
}

TEST_F(SglangLayout, ResumesAndRedoesTurnedTensors) {
  const Conversion whole = kTurned.to(dir_ / "whole");
  Conversion(whole).run();
  Conversion conversion = kTurned.to(dir_ / "out");
  run_to_the_last_tensor(conversion);
  conversion.execute.resume = true;
  Conversion damaged = conversion;
  damaged.output = dir_ / "damaged";
  std::filesystem::copy(conversion.output, damaged.output,
                        std::filesystem::copy_options::recursive);
  EXPECT_EQ(conversion.run().tensors_redone, 0U);
  EXPECT_EQ(first_difference(tree(conversion.output), tree(whole.output)), "");
  // A byte of the last turned matrix.
  const std::filesystem::path path = rank_file(convert::OutputPaths(damaged.output).staged, 0);
  const auto tensors = formats::read_safetensors_header(Fd::open_for_reading(path)).tensors;
  const auto turned = std::ranges::find(tensors, "model.layers.1.self_attn.q_b_proj.weight",
                                        &formats::StoredTensor::name);
  const Fd file = Fd::open_for_writing(path, 02);
  std::array<std::byte, 1> byte{};
  file.read_exact(byte, turned->offset + 1000);
  byte[0] ^= std::byte{1};
  file.write_exact(byte, turned->offset + 1000);
  EXPECT_EQ(damaged.run().tensors_redone, 1U);
  EXPECT_EQ(first_difference(tree(damaged.output), tree(whole.output)), "");
}

TEST_F(SglangLayout, RefusesWhatSglangCannotLoad) {
  const auto refuse = [&](SglangJob job, const std::function<void(Conversion&)>& change,
                          std::initializer_list<std::string> fragments) {
    Conversion conversion = job.to(dir_ / "refused");
    change(conversion);
    expect_error(ErrorCode::kUnsupported, fragments, [&] { conversion.run(); });
    EXPECT_FALSE(std::filesystem::exists(dir_ / "refused"));
  };
  const SglangJob fp8{"", true};
  refuse(fp8,
         [](Conversion& conversion) {
           conversion.plan.slicing.topology = shard::make_topology(1, 1, std::nullopt, 2);
         },
         {"layout sglang-sharded has no stages of a pipeline", "leave out --pp"});
  refuse(fp8, [](Conversion& conversion) { conversion.input = model_of("deepseek_v3", true, 1); },
         {"layout sglang-sharded has no MTP layers", "--mtp drop"});
  refuse(kTurned, [](Conversion& conversion) { conversion.recipe.rules.clear(); },
         {"kv_b_proj.weight'", "splits it by rows", "--rule role:kv-b-proj=bf16"});
  refuse(fp8, [](Conversion& conversion) { conversion.input = model_of("qwen3_moe", true); },
         {"'model.layers.0.mlp.down_proj.weight'", "layout sglang-sharded has no name for it"});
  refuse(fp8, [](Conversion& conversion) { conversion.recipe.to = SchemeId::kNvfp4; },
         {"layout sglang-sharded does not hold nvfp4"});
}

}  // namespace
}  // namespace ingot::testing
