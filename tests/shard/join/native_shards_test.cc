#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "formats/base/fd.h"
#include "formats/json/zstd_lines.h"
#include "formats/records/manifest.h"
#include "shard/join/deepseek_shards.h"
#include "shard/join/slice_files.h"
#include "shard/join/source.h"
#include "tests/shard/sliced_model.h"
#include "tests/support/expect_error.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_checkpoint.h"

namespace ingot::shard {
namespace {

using namespace formats;
using namespace ingot::testing;
namespace fs = std::filesystem;
using formats::Checkpoint;

void expect_model(const Checkpoint& joined, const SlicedModel& model) {
  EXPECT_EQ(joined.stored().size(), model.tensors.size());
  for (std::uint32_t i = 0; i < joined.stored().size(); ++i) {
    const formats::StoredTensor& stored = joined.stored()[i];
    const auto found = model.tensors.find(stored.name);
    ASSERT_NE(found, model.tensors.end()) << stored.name;
    EXPECT_EQ(stored.shape, found->second.shape) << stored.name;
    std::string data(stored.n_bytes, '?');
    joined.read(i, 0, std::as_writable_bytes(std::span(data)));
    EXPECT_TRUE(data == found->second.data) << stored.name;
  }
}

// Every cut of it falls between blocks for two shards.
SlicedModel fp8_model(std::uint64_t intermediate = 512) {
  SlicedModel model = small_model({.heads = 4,
                                   .nope = 64,
                                   .rope = 64,
                                   .v = 128,
                                   .intermediate = intermediate,
                                   .moe_intermediate = 256});
  make_fp8(model);
  return model;
}

using NativeShards = InTempDir;
using RecordedSlices = InTempDir;

TEST_F(NativeShards, JoinsForeignShardsByFamilyRules) {
  const SlicedModel model = small_model();
  for (const std::uint32_t n_shards : {1U, 2U, 4U}) {
    SCOPED_TRACE(n_shards);
    TempDir dir;
    write_native(model, n_shards, false, dir / "shards");
    write_bytes(dir / "hub.json", model.config.dump());
    EXPECT_TRUE(is_sliced(dir / "shards"));
    const Checkpoint joined =
        open_source(dir / "shards",
                    {.open = {.threads = 2}, .compare_replicas = true, .config = dir / "hub.json"});
    EXPECT_EQ(joined.dialect().name, "deepseek");
    EXPECT_EQ(joined.files().size(), n_shards);
    EXPECT_EQ(joined.files()[0].name, fmt::format("model0-mp{}.safetensors", n_shards));
    EXPECT_EQ(joined.home_file(0), "");
    expect_model(joined, model);
  }
}

TEST_F(NativeShards, JoinsScalesCutAtBlocks) {
  const SlicedModel model = fp8_model();
  write_native(model, 2, false, dir_.path());
  write_bytes(dir_ / "config.json", model.config.dump());
  const Checkpoint joined = open_source(dir_.path());
  EXPECT_LT(joined.tensors().size(), joined.stored().size());
  expect_model(joined, model);
}

TEST_F(NativeShards, RefusesScalesCutInsideABlock) {
  // 448 rows are four blocks, so both halves have two scales, for 224 rows each.
  const SlicedModel model = fp8_model(448);
  write_native(model, 2, false, dir_.path());
  write_bytes(dir_ / "config.json", model.config.dump());
  expect_error(ErrorCode::kUnsupported,
               {"layers.0.ffn.w1.weight", "224 rows per shard", "blocks of 128",
                "layers.0.ffn.w2.weight", "224 columns per shard"},
               [&] { open_source(dir_.path()); });
}

TEST_F(NativeShards, NamesTheOptionForAMissingConfig) {
  const SlicedModel model = small_model();
  write_native(model, 2, false, dir_.path());
  expect_error(ErrorCode::kNotFound, {"config.json of the hub", "--config"},
               [&] { open_source(dir_.path()); });
  // That of DeepSeek's inference code is another.
  write_bytes(dir_ / "config.json", R"({"vocab_size": 16, "dim": 8, "n_layers": 2})");
  expect_error(ErrorCode::kNotFound, {"--config"}, [&] { open_source(dir_.path()); });
  expect_error(ErrorCode::kNotFound, {"other.json"},
               [&] { open_source(dir_.path(), {.config = dir_ / "other.json"}); });
}

TEST_F(NativeShards, NamesEveryShardThatIsMissing) {
  const SlicedModel model = small_model();
  write_native(model, 4, false, dir_.path());
  write_bytes(dir_ / "config.json", model.config.dump());
  fs::remove(dir_ / "model1-mp4.safetensors");
  fs::remove(dir_ / "model3-mp4.safetensors");
  expect_error(ErrorCode::kNotFound,
               {"model1-mp4.safetensors: is missing, one of 4 shards", "model3-mp4.safetensors"},
               [&] { open_source(dir_.path()); });
}

TEST_F(NativeShards, RefusesShardsOfTwoConversions) {
  const SlicedModel model = small_model();
  write_native(model, 2, false, dir_.path());
  write_native(model, 4, false, dir_.path());
  write_bytes(dir_ / "config.json", model.config.dump());
  expect_error(ErrorCode::kMismatch, {"mp4.safetensors", "is a shard of 4, the others are of 2"},
               [&] { open_source(dir_.path()); });
}

TEST_F(NativeShards, RefusesAShardThatLacksATensor) {
  const SlicedModel model = small_model();
  SlicedModel less = model;
  less.tensors.erase("lm_head.weight");
  write_native(less, 2, false, dir_.path());
  fs::copy_file(dir_ / "model1-mp2.safetensors", dir_ / "kept");
  write_native(model, 2, false, dir_.path());
  fs::rename(dir_ / "kept", dir_ / "model1-mp2.safetensors");
  write_bytes(dir_ / "config.json", model.config.dump());
  expect_error(ErrorCode::kMismatch, {"'lm_head.weight'", "no file has slice 1 of 2"},
               [&] { open_source(dir_.path()); });
}

TEST_F(NativeShards, ComparesReplicas) {
  const SlicedModel model = small_model();
  SlicedModel other = model;
  other.tensors["model.norm.weight"].data[3] ^= 1;
  write_native(other, 2, false, dir_.path());
  fs::copy_file(dir_ / "model1-mp2.safetensors", dir_ / "kept");
  write_native(model, 2, false, dir_.path());
  fs::rename(dir_ / "kept", dir_ / "model1-mp2.safetensors");
  write_bytes(dir_ / "config.json", model.config.dump());
  expect_model(open_source(dir_.path()), model);
  const Checkpoint joined = open_source(dir_.path(), {.compare_replicas = true});
  for (std::uint32_t i = 0; i < joined.stored().size(); ++i) {
    if (joined.stored()[i].name != "model.norm.weight") continue;
    std::vector<std::byte> out(joined.stored()[i].n_bytes);
    expect_error(ErrorCode::kMismatch,
                 {"differs between model0-mp2.safetensors and model1-mp2.safetensors at byte 3"},
                 [&] { joined.read(i, 0, out); });
  }
}

TEST_F(NativeShards, ReportsUnknownNamesAsStored) {
  SlicedModel model = small_model();
  model.tensors["model.layers.1.extra.weight"] = random_tensor("F32", 4, {3}, 5);
  write_native(model, 2, false, dir_.path());
  write_bytes(dir_ / "config.json", model.config.dump());
  expect_error(ErrorCode::kUnknownTensor, {"layers.1.extra.weight"},
               [&] { open_source(dir_.path()); });
}

TEST_F(NativeShards, JoinsOurOwnByTheirRecords) {
  for (const bool is_fp8 : {false, true}) {
    const SlicedModel model = is_fp8 ? fp8_model() : small_model();
    TempDir dir;
    write_native(model, 2, true, dir / "shards");
    write_bytes(dir / "hub.json", model.config.dump());
    const Checkpoint joined =
        open_source(dir / "shards", {.compare_replicas = true, .config = dir / "hub.json"});
    expect_model(joined, model);
    for (std::uint32_t i = 0; i < joined.stored().size(); ++i) {
      const bool is_first = joined.stored()[i].name.find("layers.0.") != std::string::npos;
      EXPECT_EQ(joined.home_file(i), is_first ? "first.safetensors" : "second.safetensors");
    }
  }
}

TEST_F(NativeShards, FindsOurOwnChanged) {
  const SlicedModel model = small_model();
  write_native(model, 2, true, dir_.path());
  write_bytes(dir_ / "config.json", model.config.dump());
  fs::resize_file(dir_ / "model1-mp2.safetensors", 64);
  expect_error(ErrorCode::kMismatch, {"model1-mp2.safetensors", "has 64 bytes"},
               [&] { open_source(dir_.path()); });
  fs::remove(dir_ / "model0-mp2.safetensors");
  expect_error(ErrorCode::kNotFound, {"model0-mp2.safetensors: is missing"},
               [&] { open_source(dir_.path()); });
}

struct Taken {
  std::string name, file, home_file;
  std::optional<SliceRecord> slice;
};

std::vector<Taken> read(const std::filesystem::path& path, const Hash128& hash) {
  std::vector<Taken> taken;
  read_recorded_slices(path, hash, [&](const RecordedSlice& recorded) {
    taken.push_back({std::string(recorded.name), std::string(recorded.file),
                     std::string(recorded.home_file),
                     recorded.slice == nullptr ? std::nullopt : std::optional(*recorded.slice)});
  });
  return taken;
}

SliceRecord slice_at(std::uint64_t offset) {
  SliceRecord slice;
  slice.axis = 1;
  slice.offset = offset;
  slice.whole = {2, 8};
  return slice;
}

TEST_F(RecordedSlices, AreTheOutputsOfEveryRecord) {
  TensorRecord weight{.name = "a.weight",
                      .role = "other",
                      .action = "copy",
                      .from = "bf16",
                      .to = "bf16",
                      .source = {},
                      .output = {}};
  weight.source.push_back(
      {.name = "source only", .file = "s", .dtype = "BF16", .shape = {2, 8}, .hash = {}});
  weight.output.push_back({.name = "a.weight",
                           .file = "tp-01.safetensors",
                           .dtype = "BF16",
                           .shape = {2, 4},
                           .hash = {1, 2},
                           .slice = slice_at(4)});
  weight.output.push_back(
      {.name = "a.scale", .file = "all.safetensors", .dtype = "F32", .shape = {2}, .hash = {}});
  weight.home_file = "home of \"a\".safetensors";
  TensorRecord other = weight;
  other.source.clear();
  other.output = {{.name = "b",
                   .file = "f",
                   .dtype = "BF16",
                   .shape = {2, 4},
                   .hash = {},
                   .slice = slice_at(0)},
                  {.name = "c",
                   .file = "f",
                   .dtype = "BF16",
                   .shape = {2, 4},
                   .hash = {},
                   .slice = slice_at(4)}};
  other.home_file.clear();
  const std::vector<TensorRecord> records = {weight, other};
  const Hash128 hash = formats::write_tensor_records(dir_ / "records", records);

  const std::vector<Taken> taken = read(dir_ / "records", hash);
  ASSERT_EQ(taken.size(), 4U);
  EXPECT_EQ(taken[0].name, "a.weight");
  EXPECT_EQ(taken[0].file, "tp-01.safetensors");
  EXPECT_EQ(taken[0].home_file, "home of \"a\".safetensors");
  EXPECT_EQ(taken[0].slice, slice_at(4));
  EXPECT_EQ(taken[1].name, "a.scale");
  EXPECT_EQ(taken[1].slice, std::nullopt);
  EXPECT_EQ(taken[2].slice, slice_at(0));
  EXPECT_EQ(taken[2].home_file, "");
  EXPECT_EQ(taken[3].slice, slice_at(4));
}

TEST_F(RecordedSlices, KeepTheirOwnWholeFile) {
  formats::ZstdLineWriter writer(dir_ / "records");
  writer.append(R"({"output":[{"name":"a","file":"f","home_file":"own"},{"name":"b","file":"f"}],)"
                R"("home_file":"common"})");
  const std::vector<Taken> taken = read(dir_ / "records", writer.finish());
  ASSERT_EQ(taken.size(), 2U);
  EXPECT_EQ(taken[0].home_file, "own");
  EXPECT_EQ(taken[1].home_file, "common");
}

TEST_F(RecordedSlices, MayBeSpacedAndEscaped) {
  formats::ZstdLineWriter writer(dir_ / "records");
  writer.append(
      R"({ "output" : [ { "odd":[{"slice":1},["}"]], "slice" : { "axis" : 1, "offset":4 , "whole":[2, 8] } ,)"
      R"( "name" : "a\u002eb", "\u0066ile":"f", "shape":null } ], "slice":{"axis":0} } )");
  const std::vector<Taken> taken = read(dir_ / "records", writer.finish());
  ASSERT_EQ(taken.size(), 1U);
  EXPECT_EQ(taken[0].name, "a.b");
  EXPECT_EQ(taken[0].file, "f");
  EXPECT_EQ(taken[0].slice, slice_at(4));
}

TEST_F(RecordedSlices, RefusesWhatIsNoRecord) {
  for (const char* line :
       {"", "[]", "{\"output\":{}}", "{\"output\":[1]}", R"({"output":[{"name":"a"}]})",
        R"({"output":[{"file":"f"}]})", R"({"output":[{"name":1,"file":"f"}]})",
        R"({"output":[{"name":"a","file":"f","slice":{"axis":3,"offset":0,"whole":[1]}}]})",
        R"({"output":[{"name":"a","file":"f","slice":[}]})", R"({"output":[)",
        R"({"home_file":1})"}) {
    SCOPED_TRACE(line);
    TempDir dir;
    formats::ZstdLineWriter writer(dir / "records");
    writer.append(R"({"output":[]})");
    writer.append(line);
    const Hash128 hash = writer.finish();
    expect_error(ErrorCode::kCorrupt, {"records line 2"}, [&] { read(dir / "records", hash); });
  }
}

TEST_F(RecordedSlices, RefusesRecordsThatTheManifestDoesNotPromise) {
  formats::ZstdLineWriter writer(dir_ / "records");
  writer.append(R"({"output":[]})");
  static_cast<void>(writer.finish());
  expect_error(ErrorCode::kMismatch, {"records", "the manifest promises"}, [&] {
    read(dir_ / "records", {1, 2});
  });
}

}  // namespace
}  // namespace ingot::shard
