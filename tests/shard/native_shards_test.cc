#include <filesystem>
#include <set>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "formats/base/fd.h"
#include "shard/join/deepseek_shards.h"
#include "shard/join/source.h"
#include "tests/shard/sliced_model.h"
#include "tests/support/expect_error.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_checkpoint.h"

namespace ingot::shard {
namespace {

namespace fs = std::filesystem;
using formats::Checkpoint;
using namespace ingot::testing;

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

TEST(NativeShards, JoinsForeignShardsByFamilyRules) {
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

TEST(NativeShards, JoinsScalesCutAtBlocks) {
  const SlicedModel model = fp8_model();
  TempDir dir;
  write_native(model, 2, false, dir.path());
  write_bytes(dir / "config.json", model.config.dump());
  const Checkpoint joined = open_source(dir.path());
  EXPECT_LT(joined.tensors().size(), joined.stored().size());
  expect_model(joined, model);
}

TEST(NativeShards, RefusesScalesCutInsideABlock) {
  // 448 rows are four blocks, so both halves have two scales, for 224 rows each.
  const SlicedModel model = fp8_model(448);
  TempDir dir;
  write_native(model, 2, false, dir.path());
  write_bytes(dir / "config.json", model.config.dump());
  expect_error(ErrorCode::kUnsupported,
               {"layers.0.ffn.w1.weight", "224 rows per shard", "blocks of 128",
                "layers.0.ffn.w2.weight", "224 columns per shard"},
               [&] { open_source(dir.path()); });
}

TEST(NativeShards, NamesTheOptionForAMissingConfig) {
  const SlicedModel model = small_model();
  TempDir dir;
  write_native(model, 2, false, dir.path());
  expect_error(ErrorCode::kNotFound, {"config.json of the hub", "--config"},
               [&] { open_source(dir.path()); });
  // That of DeepSeek's inference code is another.
  write_bytes(dir / "config.json", R"({"vocab_size": 16, "dim": 8, "n_layers": 2})");
  expect_error(ErrorCode::kNotFound, {"--config"}, [&] { open_source(dir.path()); });
  expect_error(ErrorCode::kNotFound, {"other.json"},
               [&] { open_source(dir.path(), {.config = dir / "other.json"}); });
}

TEST(NativeShards, NamesEveryShardThatIsMissing) {
  const SlicedModel model = small_model();
  TempDir dir;
  write_native(model, 4, false, dir.path());
  write_bytes(dir / "config.json", model.config.dump());
  fs::remove(dir / "model1-mp4.safetensors");
  fs::remove(dir / "model3-mp4.safetensors");
  expect_error(ErrorCode::kNotFound,
               {"model1-mp4.safetensors: is missing, one of 4 shards", "model3-mp4.safetensors"},
               [&] { open_source(dir.path()); });
}

TEST(NativeShards, RefusesShardsOfTwoConversions) {
  const SlicedModel model = small_model();
  TempDir dir;
  write_native(model, 2, false, dir.path());
  write_native(model, 4, false, dir.path());
  write_bytes(dir / "config.json", model.config.dump());
  expect_error(ErrorCode::kMismatch, {"mp4.safetensors", "is a shard of 4, the others are of 2"},
               [&] { open_source(dir.path()); });
}

TEST(NativeShards, RefusesAShardThatLacksATensor) {
  const SlicedModel model = small_model();
  SlicedModel less = model;
  less.tensors.erase("lm_head.weight");
  TempDir dir;
  write_native(less, 2, false, dir.path());
  fs::copy_file(dir / "model1-mp2.safetensors", dir / "kept");
  write_native(model, 2, false, dir.path());
  fs::rename(dir / "kept", dir / "model1-mp2.safetensors");
  write_bytes(dir / "config.json", model.config.dump());
  expect_error(ErrorCode::kMismatch, {"'lm_head.weight'", "of 2 slices, nobody has 1"},
               [&] { open_source(dir.path()); });
}

TEST(NativeShards, ComparesReplicas) {
  const SlicedModel model = small_model();
  SlicedModel other = model;
  other.tensors["model.norm.weight"].data[3] ^= 1;
  TempDir dir;
  write_native(other, 2, false, dir.path());
  fs::copy_file(dir / "model1-mp2.safetensors", dir / "kept");
  write_native(model, 2, false, dir.path());
  fs::rename(dir / "kept", dir / "model1-mp2.safetensors");
  write_bytes(dir / "config.json", model.config.dump());
  expect_model(open_source(dir.path()), model);
  const Checkpoint joined = open_source(dir.path(), {.compare_replicas = true});
  for (std::uint32_t i = 0; i < joined.stored().size(); ++i) {
    if (joined.stored()[i].name != "model.norm.weight") continue;
    std::vector<std::byte> out(joined.stored()[i].n_bytes);
    expect_error(ErrorCode::kMismatch,
                 {"differs between model0-mp2.safetensors and model1-mp2.safetensors at byte 3"},
                 [&] { joined.read(i, 0, out); });
  }
}

TEST(NativeShards, ReportsUnknownNamesAsStored) {
  SlicedModel model = small_model();
  model.tensors["model.layers.1.extra.weight"] = random_tensor("F32", 4, {3}, 5);
  TempDir dir;
  write_native(model, 2, false, dir.path());
  write_bytes(dir / "config.json", model.config.dump());
  expect_error(ErrorCode::kUnknownTensor, {"layers.1.extra.weight"},
               [&] { open_source(dir.path()); });
}

TEST(NativeShards, JoinsOurOwnByTheirRecords) {
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

TEST(NativeShards, FindsOurOwnChanged) {
  const SlicedModel model = small_model();
  TempDir dir;
  write_native(model, 2, true, dir.path());
  write_bytes(dir / "config.json", model.config.dump());
  fs::resize_file(dir / "model1-mp2.safetensors", 64);
  expect_error(ErrorCode::kMismatch, {"model1-mp2.safetensors", "has 64 bytes"},
               [&] { open_source(dir.path()); });
  fs::remove(dir / "model0-mp2.safetensors");
  expect_error(ErrorCode::kNotFound, {"model0-mp2.safetensors: is missing"},
               [&] { open_source(dir.path()); });
}

}  // namespace
}  // namespace ingot::shard
