#include "shard/join/source.h"

#include <algorithm>
#include <fstream>
#include <set>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "formats/base/fd.h"
#include "formats/records/manifest.h"
#include "tests/shard/sliced_model.h"
#include "tests/support/expect_error.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_checkpoint.h"

namespace ingot::shard {
namespace {

namespace fs = std::filesystem;
using formats::Checkpoint;
using formats::Manifest;
using namespace ingot::testing;
using enum ErrorCode;

// Every stored tensor of the checkpoint is that of the model, and there is no other.
void expect_model(const Checkpoint& joined, const SlicedModel& model) {
  std::set<std::string> names;
  for (std::uint32_t i = 0; i < joined.stored().size(); ++i) {
    const formats::StoredTensor& stored = joined.stored()[i];
    names.insert(stored.name);
    const auto found = model.tensors.find(stored.name);
    ASSERT_NE(found, model.tensors.end()) << stored.name;
    EXPECT_EQ(stored.shape, found->second.shape) << stored.name;
    EXPECT_EQ(dtype_name(stored.dtype), found->second.dtype) << stored.name;
    std::string data(stored.n_bytes, '?');
    joined.read(i, 0, std::as_writable_bytes(std::span(data)));
    EXPECT_TRUE(data == found->second.data) << stored.name;
  }
  EXPECT_EQ(names.size(), joined.stored().size());
  EXPECT_EQ(names.size(), model.tensors.size());
}

void refuse(const fs::path& directory, ErrorCode code, std::initializer_list<std::string> facts) {
  expect_error(code, facts, [&] { open_source(directory); });
}

void edit(const fs::path& path, std::string_view from, std::string_view to) {
  std::string text = read_text_file(path, 1 << 24);
  const std::size_t at = text.find(from);
  ASSERT_NE(at, std::string::npos) << path << " lacks " << from;
  write_bytes(path, text.replace(at, from.size(), to));
}

std::string last_byte_changed(const fs::path& path) {
  std::string bytes = read_text_file(path, 1 << 24);
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  return bytes;
}

using OpenSource = InTempDir;

TEST_F(OpenSource, JoinsRanksToTheModelThatWasCut) {
  const SlicedModel model = small_model();
  for (const RankOptions& options : std::vector<RankOptions>{
           {.tp = 2}, {.ep = 2}, {.tp = 4, .ep = 2}, {.tp = 2, .ep = 4, .pp = 2}, {.pp = 2}}) {
    SCOPED_TRACE(fmt::format("tp {} ep {} pp {}", options.tp, options.ep, options.pp));
    TempDir dir;
    write_ranks(model, options, dir.path());
    EXPECT_TRUE(is_sliced(dir.path()));
    const Checkpoint joined =
        open_source(dir.path(), {.open = {.threads = 3}, .compare_replicas = true});
    EXPECT_EQ(joined.family().name, "deepseek_v3");
    EXPECT_EQ(joined.tensors().size(), model.tensors.size());
    EXPECT_EQ(joined.slicing(), nullptr);
    EXPECT_FALSE(joined.is_whole());
    expect_model(joined, model);
  }
}

TEST_F(OpenSource, JoinsQuantizedWeightsWithTheirScales) {
  SlicedModel model = small_model(
      {.heads = 4, .nope = 64, .rope = 64, .v = 128, .intermediate = 512, .moe_intermediate = 256});
  make_fp8(model);
  write_ranks(model, {.tp = 2, .ep = 2}, dir_.path());
  const Checkpoint joined = open_source(dir_.path(), {.compare_replicas = true});
  EXPECT_LT(joined.tensors().size(), joined.stored().size());
  expect_model(joined, model);
}

TEST_F(OpenSource, TellsWholeFilesAndFirstSlices) {
  write_ranks(small_model(), {.tp = 2, .ep = 2}, dir_.path());
  const Checkpoint joined = open_source(dir_.path());
  // Six files for two ranks; the common one is linked.
  std::vector<std::string> files;
  for (const formats::SourceFile& file : joined.files()) files.push_back(file.name);
  EXPECT_THAT(files, ::testing::ElementsAre("rank-00000-of-00002/all.safetensors",
                                            "rank-00000-of-00002/ep-00.safetensors",
                                            "rank-00000-of-00002/tp-00.safetensors",
                                            "rank-00001-of-00002/ep-01.safetensors",
                                            "rank-00001-of-00002/tp-01.safetensors"));
  for (std::uint32_t i = 0; i < joined.stored().size(); ++i) {
    const formats::StoredTensor& stored = joined.stored()[i];
    const bool is_first = stored.name.find("layers.0.") != std::string::npos;
    EXPECT_EQ(joined.home_file(i), is_first ? "first.safetensors" : "second.safetensors");
    if (stored.name == "lm_head.weight") {
      EXPECT_EQ(files[stored.file], "rank-00000-of-00002/tp-00.safetensors");
    }
  }
  EXPECT_EQ(joined.directory(), dir_ / "rank-00000-of-00002");
  ASSERT_EQ(joined.side_files().size(), 1U);
  EXPECT_EQ(joined.side_files()[0].path, "tokenizer.json");
  const std::vector<std::byte> header = joined.header_bytes(1);
  EXPECT_EQ(header.size(), joined.files()[1].data_start);
  EXPECT_EQ(joined.files()[1].n_bytes,
            fs::file_size(dir_ / "rank-00000-of-00002/ep-00.safetensors"));
}

TEST_F(OpenSource, JoinsRanksThatAUserGathered) {
  const SlicedModel model = small_model();
  write_ranks(model, {.tp = 2, .ep = 2, .links = false, .has_top = false}, dir_.path());
  EXPECT_TRUE(is_sliced(dir_.path()));
  expect_model(open_source(dir_.path(), {.compare_replicas = true}), model);
}

TEST_F(OpenSource, OpensWhatIsNotSlicedAsItIs) {
  tiny_deepseek_v3().write(dir_.path());
  EXPECT_FALSE(is_sliced(dir_.path()));
  EXPECT_FALSE(is_sliced(dir_ / "nowhere"));
  const Checkpoint plain = open_source(dir_.path());
  EXPECT_TRUE(plain.is_whole());
  EXPECT_EQ(plain.files()[0].name, "model.safetensors");
  refuse(dir_ / "nowhere", kNotFound, {"no such directory"});
}

TEST_F(OpenSource, OpensARankAsSlices) {
  write_ranks(small_model(), {.tp = 2, .ep = 2}, dir_.path());
  const fs::path rank = dir_ / rank_name(1, 2);
  EXPECT_FALSE(is_sliced(rank));
  const Checkpoint one = open_source(rank);
  ASSERT_NE(one.slicing(), nullptr);
  EXPECT_EQ(one.slicing()->rank->rank, 1U);
  for (const formats::LogicalTensor& tensor : one.tensors()) {
    if (tensor.name == "lm_head.weight") {
      EXPECT_EQ(tensor.shape, (formats::Shape{8, 8}));
    }
  }
}

TEST_F(OpenSource, TakesTheConfigOfTheWhole) {
  SlicedModel model = small_model();
  const formats::Json whole = model.config;
  model.config["vocab_size"] = 24;
  write_ranks(model, {.tp = 2, .has_top = false}, dir_.path());
  refuse(dir_.path(), kShapeMismatch, {"embed_tokens"});
  for (std::uint32_t r = 0; r < 2; ++r) {
    const fs::path path = dir_ / rank_name(r, 2) / "ingot.json";
    Manifest manifest = formats::parse_manifest(read_text_file(path, 1 << 20), "ingot.json");
    manifest.slicing->rank->whole_config = whole;
    write_bytes(path, formats::manifest_text(manifest));
  }
  const Checkpoint joined = open_source(dir_.path());
  EXPECT_EQ(joined.config().vocab_size, 16U);
  EXPECT_EQ(*joined.config().raw, whole);
  expect_model(joined, model);
}

TEST_F(OpenSource, NamesEveryRankThatIsMissing) {
  for (const bool has_top : {true, false}) {
    TempDir dir;
    write_ranks(small_model(), {.tp = 4, .has_top = has_top}, dir.path());
    fs::remove_all(dir / rank_name(1, 4));
    fs::remove_all(dir / rank_name(3, 4));
    refuse(dir.path(), kNotFound,
           {"rank-00001-of-00004: is missing, one of 4 ranks", "rank-00003-of-00004"});
  }
}

TEST_F(OpenSource, RefusesRanksOfDifferentConversions) {
  TempDir first, second;
  write_ranks(small_model(), {.tp = 2, .has_top = false}, first.path());
  write_ranks(small_model(), {.tp = 2, .job = {1, 3}, .has_top = false}, second.path());
  fs::remove_all(first / rank_name(1, 2));
  fs::copy(second / rank_name(1, 2), first / rank_name(1, 2), fs::copy_options::recursive);
  refuse(first.path(), kMismatch,
         {rank_name(1, 2), "belongs to another conversion than rank-00000-of-00002"});

  write_ranks(small_model(), {.tp = 4, .has_top = false}, first.path());
  refuse(first.path(), kMismatch, {"holds ranks of 2 and of 4"});
}

TEST_F(OpenSource, RefusesAnUnlistedRankManifest) {
  write_ranks(small_model(), {.tp = 2}, dir_.path());
  edit(dir_ / rank_name(1, 2) / "ingot.json", "\"version\": \"0\"", "\"version\": \"1\"");
  refuse(dir_.path(), kMismatch, {rank_name(1, 2), "was changed or belongs to another run"});
  // Under a top manifest that knows it, it is another conversion all the same.
  write_ranks(small_model(), {.tp = 2, .job = {7, 7}, .has_top = false}, dir_.path());
  write_top({.tp = 2}, dir_.path());
  refuse(dir_.path(), kMismatch, {"belongs to another conversion than the manifest above it"});
}

TEST_F(OpenSource, RefusesATopologyThatItsDirectoriesContradict) {
  {
    TempDir dir;
    write_ranks(small_model(), {.tp = 2, .ep = 2, .has_top = false}, dir.path());
    edit(dir / rank_name(1, 2) / "ingot.json", "\"tp_rank\": 1", "\"tp_rank\": 0");
    refuse(dir.path(), kMismatch, {rank_name(1, 2), "tp_rank"});
  }
  {
    TempDir dir;
    write_ranks(small_model(), {.tp = 2, .has_top = false}, dir.path());
    fs::rename(dir / rank_name(0, 2), dir / "other");
    fs::rename(dir / rank_name(1, 2), dir / rank_name(0, 2));
    fs::rename(dir / "other", dir / rank_name(1, 2));
    refuse(dir.path(), kMismatch, {"is of rank 1, in the place of rank 0"});
  }
  {
    TempDir dir, other;
    write_ranks(small_model(), {.tp = 2, .has_top = false}, dir.path());
    write_ranks(small_model(), {.ep = 2, .has_top = false}, other.path());
    fs::remove_all(dir / rank_name(1, 2));
    fs::copy(other / rank_name(1, 2), dir / rank_name(1, 2), fs::copy_options::recursive);
    refuse(dir.path(), kMismatch, {"says tp 1, ep 2", "says tp 2, ep 1"});
  }
}

TEST_F(OpenSource, RefusesFilesUnknownToTheManifest) {
  const auto damaged = [](const auto& damage, ErrorCode code,
                          std::initializer_list<std::string> fragments) {
    TempDir dir;
    write_ranks(small_model(), {.tp = 2, .ep = 2}, dir.path());
    damage(dir / rank_name(1, 2));
    expect_error(code, fragments, [&] { open_source(dir.path()); });
  };
  damaged([](const fs::path& rank) { fs::remove(rank / "tp-01.safetensors"); }, kNotFound,
          {"rank-00001-of-00002/tp-01.safetensors", "fetch this file"});
  damaged([](const fs::path& rank) { fs::resize_file(rank / "tp-01.safetensors", 100); }, kMismatch,
          {"rank-00001-of-00002/tp-01.safetensors", "has 100 bytes"});
  damaged([](const fs::path& rank) { write_bytes(rank / "more.safetensors", "x"); }, kMismatch,
          {"more.safetensors", "is not named by ingot.json"});
  damaged([](const fs::path& rank) { write_bytes(rank / ".ingot-partial/x", "x"); }, kExists,
          {"unfinished conversion"});
  damaged([](const fs::path& rank) { fs::remove(rank / "ingot.json"); }, kNotFound, {"ingot.json"});
  damaged(
      [](const fs::path& rank) {
        fs::remove(rank / "ingot.tensors.jsonl.zst");
        fs::copy_file(rank / "../rank-00000-of-00002/ingot.tensors.jsonl.zst",
                      rank / "ingot.tensors.jsonl.zst");
      },
      kMismatch, {"ingot.tensors.jsonl.zst", "the manifest promises"});
}

TEST_F(OpenSource, RefusesUnmatchedTensorsAndRecords) {
  write_ranks(small_model(), {.tp = 2}, dir_.path());
  // Same length, other name.
  edit(dir_ / rank_name(1, 2) / "tp-01.safetensors", "lm_head.weight", "lm_haed.weight");
  refuse(dir_.path(), kMismatch,
         {"'lm_head.weight'", "the records promise it, but it is not here", "'lm_haed.weight'",
          "is not in ingot.tensors.jsonl.zst"});
}

TEST_F(OpenSource, ComparesReplicasWhenAsked) {
  write_ranks(small_model(), {.tp = 2, .ep = 2, .links = false}, dir_.path());
  const fs::path path = dir_ / rank_name(1, 2) / "all.safetensors";
  write_bytes(path, last_byte_changed(path));
  const std::string last = "model.norm.weight";
  const auto read_all = [&](const Checkpoint& joined) {
    for (std::uint32_t i = 0; i < joined.stored().size(); ++i) {
      std::vector<std::byte> out(joined.stored()[i].n_bytes);
      joined.read(i, 0, out);
    }
  };
  expect_error(kMismatch,
               {last, "differs between rank-00000-of-00002 and rank-00001-of-00002 at byte 15",
                "one of them was changed after it was written"},
               [&] { read_all(open_source(dir_.path(), {.compare_replicas = true})); });
  read_all(open_source(dir_.path()));
}

TEST_F(OpenSource, RefusesAnUnfinishedConversion) {
  write_ranks(small_model(), {.tp = 2}, dir_.path());
  write_bytes(dir_ / ".ingot-partial/journal.jsonl", "");
  refuse(dir_.path(), kExists, {"unfinished conversion", "--resume"});
}

TEST_F(OpenSource, LetsAnUnknownTensorThrough) {
  SlicedModel model = small_model();
  model.tensors["model.extra"] = random_tensor("F32", 4, {3}, 99);
  write_ranks(model, {.tp = 2}, dir_.path());
  expect_model(open_source(dir_.path()), model);
}

}  // namespace
}  // namespace ingot::shard
