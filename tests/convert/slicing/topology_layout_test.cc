#include "convert/output/output_directory.h"
#include "formats/container/checkpoint_index.h"
#include "formats/json/json.h"
#include "tests/convert/slicing/rank_tree.h"
#include "tests/convert/slicing/sliced.h"
#include "tests/support/test.h"

// Layout `ranks`: its directories and files, and those next to the weights.

namespace ingot::testing {
namespace {

using namespace ::testing;
using shard::TpFit;

class TopologyLayout : public ::testing::Test {
 protected:
  std::filesystem::path cut_into(const std::filesystem::path& model, const Cut& cut) {
    std::filesystem::path to = directory_ / cut.name();
    slicing(model, to, cut).run();
    return to;
  }
  // With one tensor per name: files have the owners that their names say.
  static std::string file_of(const std::filesystem::path& rank, const std::string& tensor) {
    const OutputTensors tensors = read_output(rank);
    const auto found = tensors.find(tensor);
    return found == tensors.end() ? "" : found->second.file;
  }

  TempDir directory_;
};

TEST_F(TopologyLayout, EachRankHasADirectoryBelowOneManifest) {
  const Cut cut = {.tp = 2, .ep = 4};
  const auto top = cut_into(tiny_bf16(), cut);
  EXPECT_THAT(top_level(top),
              ElementsAre("ingot.json", "ingot.tensors.jsonl.zst", "rank-00000-of-00004",
                          "rank-00001-of-00004", "rank-00002-of-00004", "rank-00003-of-00004"));
  const auto manifest = formats::read_manifest(top);
  ASSERT_EQ(manifest->slicing->ranks.size(), 4U);
  for (std::uint32_t rank = 0; rank < 4; ++rank) {
    const formats::RankEntry& entry = manifest->slicing->ranks[rank];
    EXPECT_EQ(entry.directory, fmt::format("rank-0000{}-of-00004", rank));
    const std::string text = read_text_file(top / entry.directory / "ingot.json", 1 << 24);
    TensorHasher hasher;
    hasher.update(std::as_bytes(std::span(text)));
    EXPECT_EQ(entry.manifest_hash.hex(), hasher.finish().hex());
    EXPECT_EQ(record_of_rank(top / entry.directory).rank, rank);
  }
}

// Two data-parallel groups of TP 8, and one group of 16 for the experts.
TEST_F(TopologyLayout, FilesAreNamedAfterTheirRanks) {
  const Cut cut = {.tp = 8, .ep = 16};
  const auto top = cut_into(tiny_bf16(), cut);
  const auto ranks = rank_directories(top, cut);
  ASSERT_EQ(ranks.size(), 16U);
  std::set<std::uint64_t> inodes;
  for (std::size_t rank = 0; rank < 16; ++rank) {
    const std::string all = "all-00001-of-00001.safetensors";
    const std::string ep = fmt::format("ep-{:02}-of-16-00001-of-00001.safetensors", rank);
    const std::string tp = fmt::format("tp-{:02}-of-08-00001-of-00001.safetensors", rank % 8);
    EXPECT_THAT(weights_of(ranks[rank]), ElementsAre(all, ep, tp));
    EXPECT_EQ(inode_of(ranks[rank] / all), inode_of(ranks[0] / all));
    EXPECT_EQ(inode_of(ranks[rank] / tp), inode_of(ranks[rank % 8] / tp));
    for (const std::string& name : {all, ep, tp}) inodes.insert(inode_of(ranks[rank] / name));
  }
  EXPECT_EQ(inodes.size(), 1U + 8 + 16);
  const std::string layer = "model.layers.3.";
  EXPECT_EQ(file_of(ranks[11], layer + "input_layernorm.weight").substr(0, 4), "all-");
  EXPECT_EQ(file_of(ranks[11], layer + "self_attn.o_proj.weight").substr(0, 8), "tp-03-of");
  EXPECT_EQ(file_of(ranks[11], layer + "mlp.experts.11.up_proj.weight").substr(0, 8), "ep-11-of");
  EXPECT_EQ(file_of(ranks[11], layer + "mlp.experts.3.up_proj.weight"), "");
}

TEST_F(TopologyLayout, DifferentlyCutExpertsHaveTheirOwnFiles) {
  const auto both = cut_into(tiny_bf16(), {.tp = 2, .ep = 2, .etp = 2});
  EXPECT_THAT(weights_of(both / "rank-00003-of-00004"),
              ElementsAre("all-00001-of-00001.safetensors",
                          "ep-01-of-02-etp-01-of-02-00001-of-00001.safetensors",
                          "tp-01-of-02-00001-of-00001.safetensors"));
  const auto finer = cut_into(tiny_bf16(), {.tp = 2, .etp = 4});
  EXPECT_THAT(
      weights_of(finer / "rank-00003-of-00004"),
      ElementsAre("all-00001-of-00001.safetensors", "etp-03-of-04-00001-of-00001.safetensors",
                  "tp-01-of-02-00001-of-00001.safetensors"));
  // Cut alike, or not at all, they are with the rest.
  const auto alike = cut_into(tiny_bf16(), {.tp = 2});
  EXPECT_EQ(file_of(alike / "rank-00001-of-00002", "model.layers.2.mlp.experts.9.up_proj.weight"),
            "tp-01-of-02-00001-of-00001.safetensors");
  const auto whole = cut_into(tiny_bf16(), {.tp = 2, .etp = 1});
  EXPECT_EQ(file_of(whole / "rank-00001-of-00002", "model.layers.2.mlp.experts.9.up_proj.weight"),
            "all-00001-of-00001.safetensors");
}

TEST_F(TopologyLayout, NeighboursShareFewerKvHeads) {
  const Cut cut = {.tp = 4};
  const auto ranks = rank_directories(cut_into(arch_fixture("qwen3_moe"), cut), cut);
  const std::string names[] = {"kv-00-of-02-00001-of-00001.safetensors",
                               "kv-01-of-02-00001-of-00001.safetensors"};
  for (std::size_t rank = 0; rank < 4; ++rank) {
    const std::string& name = names[rank / 2];
    EXPECT_EQ(file_of(ranks[rank], "model.layers.0.self_attn.k_proj.weight"), name);
    EXPECT_EQ(file_of(ranks[rank], "model.layers.0.self_attn.v_proj.weight"), name);
    EXPECT_EQ(inode_of(ranks[rank] / name), inode_of(ranks[rank / 2 * 2] / name));
  }
}

TEST_F(TopologyLayout, StagesHaveTheirNumberBeforeTheName) {
  const auto top = cut_into(arch_fixture("qwen3_moe"), {.tp = 2, .pp = 3});
  EXPECT_THAT(weights_of(top / "rank-00005-of-00006"),
              ElementsAre("pp-02-of-03-all-00001-of-00001.safetensors",
                          "pp-02-of-03-tp-01-of-02-00001-of-00001.safetensors"));
}

TEST_F(TopologyLayout, CopiesReplaceLinks) {
  const Cut cut = {.tp = 2, .ep = 4};
  const auto linked = cut_into(arch_fixture("qwen3_moe"), cut);
  Conversion conversion = slicing(arch_fixture("qwen3_moe"), directory_ / "copies", cut);
  conversion.plan.links = false;
  conversion.run();
  std::set<std::uint64_t> inodes;
  std::size_t n_files = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(directory_ / "copies")) {
    if (!entry.is_regular_file()) continue;
    inodes.insert(inode_of(entry.path()));
    ++n_files;
  }
  EXPECT_EQ(inodes.size(), n_files);
  EXPECT_EQ(first_difference(payload(directory_ / "copies"), payload(linked)), "");
}

TEST_F(TopologyLayout, SmallerFilesAreCountedByOwner) {
  const Cut cut = {.tp = 2, .ep = 2};
  Conversion conversion = slicing(arch_fixture("qwen3_moe"), directory_ / "small", cut);
  conversion.plan.shards.max_shard_bytes = 100'000;
  conversion.run();
  const auto names = weights_of(directory_ / "small" / "rank-00001-of-00002");
  for (const char* owner : {"all", "ep-01-of-02", "tp-01-of-02"}) {
    const auto n = std::count_if(names.begin(), names.end(),
                                 [&](const std::string& name) { return name.starts_with(owner); });
    EXPECT_GT(n, 0) << owner;
    for (std::ptrdiff_t i = 1; i <= n; ++i)
      EXPECT_THAT(names,
                  ::testing::Contains(fmt::format("{}-{:05}-of-{:05}.safetensors", owner, i, n)));
  }
  EXPECT_GT(names.size(), 5U);
  expect_each_accepted_alone(directory_ / "small", cut);
}

TEST_F(TopologyLayout, RankIndexListsItsTensorsOnly) {
  const Cut cut = {.tp = 2, .ep = 2, .pp = 2};
  for (const auto& rank : rank_directories(cut_into(arch_fixture("deepseek_v2"), cut), cut)) {
    const formats::Json index =
        formats::read_json_file(rank / "model.safetensors.index.json", 1 << 20);
    std::map<std::string, std::string> listed, there;
    for (const auto& [name, file] : index.at("weight_map").items())
      listed[name] = file.get<std::string>();
    std::uint64_t n_bytes = 0;
    for (const auto& [name, tensor] : read_output(rank)) {
      there[name] = tensor.file;
      n_bytes += tensor.bytes.size();
    }
    EXPECT_EQ(listed, there);
    EXPECT_EQ(index.at("metadata").at("total_size"), n_bytes);
  }
}

TEST_F(TopologyLayout, EveryRankHasTheSideFiles) {
  Conversion whole(tiny_v32(), directory_ / "whole");
  whole.run();
  Conversion sliced = whole;
  sliced.output = directory_ / "sliced";
  const Cut cut = {.tp = 4, .ep = 2, .pp = 2};
  sliced.plan = cut.options();
  sliced.run();
  for (const auto& rank : rank_directories(directory_ / "sliced", cut)) {
    for (const char* name : {"config.json", "generation_config.json", "tokenizer.json",
                             "tokenizer_config.json", "PROVENANCE.md", "README.md"}) {
      EXPECT_EQ(read_text_file(rank / name, 1 << 24),
                read_text_file(directory_ / "whole" / name, 1 << 24))
          << rank << name;
    }
    EXPECT_EQ(top_level(rank).size(), 6 + weights_of(rank).size() + 3) << "index and manifest";
  }
}

// The differences between two JSON documents, by pointer.
std::vector<std::string> changed(const formats::Json& from, const formats::Json& to) {
  std::vector<std::string> paths;
  for (const auto& step :
       nlohmann::json::diff(nlohmann::json::parse(from.dump()), nlohmann::json::parse(to.dump())))
    paths.push_back(step.at("path").get<std::string>() + " " +
                    step.value("value", nlohmann::json()).dump());
  return paths;
}

TEST_F(TopologyLayout, RankConfigsStateBlocksAndWidths) {
  const auto config = [](const std::filesystem::path& directory) {
    return formats::read_json_file(directory / "config.json", 1 << 20);
  };
  // 640 / 4 = 160 rows, the highest power of two in it is 32; o_proj and down have 64 and 32
  // columns.
  const Cut retiled = {.tp = 4, .fit = TpFit::kRetile};
  for (const auto& rank : rank_directories(cut_into(tiny_v32(), retiled), retiled)) {
    EXPECT_THAT(changed(config(tiny_v32()), config(rank)),
                UnorderedElementsAre("/quantization_config/weight_block_size/0 32",
                                     "/quantization_config/weight_block_size/1 32"));
  }
  Conversion conversion(tiny_bf16(), directory_ / "whole");
  conversion.recipe.to = formats::SchemeId::kFp8Block;
  spare_attention(conversion.recipe);
  conversion.run();
  conversion.output = directory_ / "padded";
  const Cut padded = {.tp = 4, .fit = TpFit::kPad};
  conversion.plan = padded.options();
  conversion.run();
  for (const auto& rank : rank_directories(directory_ / "padded", padded)) {
    EXPECT_THAT(changed(config(directory_ / "whole"), config(rank)),
                UnorderedElementsAre("/intermediate_size 1024", "/moe_intermediate_size 512"));
    EXPECT_EQ(*record_of_rank(rank).whole_config, config(directory_ / "whole"));
  }
}

convert::Plan planned(const formats::Checkpoint& source, const convert::PlanOptions& options) {
  convert::Recipe recipe;
  resolve(recipe, source);
  return plan_for(source, recipe, options);
}

// The claim of a name about the others: 1 for config and index, 2 for records, 3 for a manifest,
// and those at the top after those of ranks.
int claim_of(const std::string& name) {
  const bool is_top = name.find('/') == std::string::npos;
  if (name.ends_with("ingot.json")) return is_top ? 5 : 3;
  if (name.ends_with("ingot.tensors.jsonl.zst")) return is_top ? 4 : 2;
  return name.ends_with("/config.json") || name.ends_with(".index.json") ? 1 : 0;
}

TEST(ManyFiles, AreNamedBeforeFilesThatNameThem) {
  const formats::Checkpoint source = shard::open_source(tiny_bf16());
  const convert::Plan plan = planned(source, Cut{.tp = 2, .ep = 4}.options());
  const std::vector<std::string> names = convert::publish_order(plan);
  EXPECT_TRUE(std::is_sorted(
      names.begin(), names.end(),
      [](const std::string& a, const std::string& b) { return claim_of(a) < claim_of(b); }));
  std::map<int, int> n_of_claim;
  for (const std::string& name : names) ++n_of_claim[claim_of(name)];
  EXPECT_EQ(n_of_claim[1], 8);
  EXPECT_EQ(n_of_claim[3], 4);
  EXPECT_EQ(names.back(), "ingot.json");
}

TEST(ManyFiles, CountPlacesWrittenAtOnce) {
  const formats::Checkpoint fp8 = shard::open_source(tiny_v32());
  const formats::Checkpoint bf16 = shard::open_source(tiny_bf16());
  const auto targets = [](const formats::Checkpoint& source, const Cut& cut) {
    return planned(source, cut.options()).sizes.open_targets;
  };
  EXPECT_EQ(planned(fp8, {}).sizes.open_targets, 1U);
  EXPECT_EQ(targets(fp8, {.ep = 16}), 1U);
  EXPECT_EQ(targets(bf16, {.tp = 8}), 8U);
  // Codes and scales of two slices.
  EXPECT_EQ(targets(fp8, {.tp = 2, .ep = 4, .fit = shard::TpFit::kRetile}), 4U);

  convert::PlanOptions native;
  native.layout = formats::find_layout("deepseek-mp");
  native.slicing.topology = shard::make_topology(4, 4, 1, 1);
  EXPECT_EQ(planned(bf16, native).sizes.open_targets, 4U);
}

}  // namespace
}  // namespace ingot::testing
