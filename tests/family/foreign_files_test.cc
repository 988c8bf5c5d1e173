#include "formats/base/foreign_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "formats/checkpoint/checkpoint.h"
#include "tests/support/expect_error.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_checkpoint.h"

namespace ingot::formats {
namespace {

using ingot::testing::expect_error;
using ingot::testing::TempDir;
using ingot::testing::tiny_deepseek_v3;
using ingot::testing::TinyCheckpoint;
using ingot::testing::write_bytes;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr const char* kPointer =
    "version https://git-lfs.github.com/spec/v1\noid sha256:0123456789abcdef\nsize 4302000000\n";

/// The tiny model in two shards with an index.
TinyCheckpoint two_shards() {
  TinyCheckpoint tiny = tiny_deepseek_v3();
  auto& all = tiny.files["model.safetensors"];
  tiny.files["model-00002-of-00002.safetensors"] = {all.back()};
  all.pop_back();
  tiny.files["model-00001-of-00002.safetensors"] = std::move(all);
  tiny.files.erase("model.safetensors");
  tiny.index_files();
  return tiny;
}

std::vector<std::string> side_paths(const Checkpoint& model) {
  std::vector<std::string> paths;
  for (const SideFile& file : model.side_files()) paths.push_back(file.path);
  return paths;
}

TEST(StrayFiles, AreLeftOutWithARemark) {
  TempDir dir;
  TinyCheckpoint tiny = two_shards();
  tiny.files["consolidated.safetensors"] = {{"layers.0.attention.wq.weight", "BF16", {8, 8}}};
  tiny.files["merged.safetensors"] = {tiny.files["model-00002-of-00002.safetensors"]};
  tiny.write(dir.path());
  write_bytes(dir / "truncated.safetensors", "short");
  write_bytes(dir / "pytorch_model.bin", "x");
  write_bytes(dir / "model-Q4_K_M.gguf", "x");
  write_bytes(dir / "figures/benchmark.PNG", "x");
  write_bytes(dir / "original/consolidated.00.pth", "x");
  write_bytes(dir / "vision/model.safetensors", "x");
  write_bytes(dir / "tokenizer.json", "{}");
  const Checkpoint model = Checkpoint::open(dir.path());
  EXPECT_EQ(model.files().size(), 2U);
  EXPECT_THAT(side_paths(model), ElementsAre("tokenizer.json"));
  EXPECT_THAT(
      model.remarks(),
      ElementsAre("left out, weights that the checkpoint does not use: consolidated.safetensors, "
                  "merged.safetensors, truncated.safetensors, vision/model.safetensors",
                  "left out, pictures: figures/benchmark.PNG",
                  "left out, weights in GGUF: model-Q4_K_M.gguf",
                  "left out, weights in a format that is not read: original/",
                  "left out, weights in PyTorch's pickles: pytorch_model.bin"));
}

TEST(StrayFiles, AreLeftOutBesideASingleFile) {
  TempDir dir;
  TinyCheckpoint tiny = tiny_deepseek_v3();
  tiny.files["consolidated.safetensors"] = {{"layers.0.attention.wq.weight", "BF16", {8, 8}}};
  tiny.write(dir.path());
  EXPECT_THAT(Checkpoint::open(dir.path()).remarks(),
              ElementsAre(HasSubstr("consolidated.safetensors")));
}

// Each says that the index is not of these files.
TEST(StrayFiles, ThatTheIndexShouldNameAreRefused) {
  const auto refuse = [](const std::string& file, const std::string& tensor) {
    SCOPED_TRACE(file + " " + tensor);
    TempDir dir;
    TinyCheckpoint tiny = two_shards();
    tiny.files[file] = {{tensor, "BF16", {8, 8}}};
    tiny.write(dir.path());
    expect_error(ErrorCode::kMissingTensor, {file, "is not named by", "move the file away"},
                 [&] { Checkpoint::open(dir.path()); });
  };
  refuse("model-00003-of-00003.safetensors", "nothing.of.this.model");
  refuse("model.safetensors", "nothing.of.this.model");
  refuse("extra.safetensors", "model.layers.1.mlp.experts.2.up_proj.weight");
  refuse("extra.safetensors", "model.layers.0.self_attn.rotary_emb.inv_freq");
}

TEST(StrayFiles, LikeShardsAreRefusedWithoutAnIndex) {
  TempDir dir;
  TinyCheckpoint tiny = tiny_deepseek_v3();
  tiny.files["model-00002-of-00002.safetensors"] = {{"other", "BF16", {1}}};
  tiny.write(dir.path());
  expect_error(ErrorCode::kMissingTensor, {"model-00002-of-00002.safetensors", "without an index"},
               [&] { Checkpoint::open(dir.path()); });
}

TEST(ForeignWeights, AreNamedWithTheRemedy) {
  const auto refuse = [](const std::string& file, const std::string& fact) {
    SCOPED_TRACE(file);
    TempDir dir;
    write_bytes(dir / file, "x");
    expect_error(ErrorCode::kUnsupported, {file, fact, "safetensors"},
                 [&] { Checkpoint::open(dir.path()); });
    write_bytes(dir / "config.json", "{}");
    expect_error(ErrorCode::kUnsupported, {file, fact},
                 [&] { Checkpoint::open(dir.path(), {.family = "generic"}); });
  };
  refuse("model-Q4_K_M.gguf", "GGUF");
  refuse("pytorch_model-00001-of-00002.bin", "pickles");
  refuse("consolidated.00.pth", "pickles");
  refuse("tf_model.h5", "not read");
}

TEST(LfsPointer, IsSaidToBeOne) {
  TempDir dir;
  tiny_deepseek_v3().write(dir.path());
  write_bytes(dir / "model.safetensors", kPointer);
  expect_error(ErrorCode::kCorrupt, {"model.safetensors", "Git LFS pointer", "git lfs pull"},
               [&] { Checkpoint::open(dir.path()); });
  write_bytes(dir / "config.json", kPointer);
  expect_error(ErrorCode::kCorrupt, {"config.json", "Git LFS pointer", "git lfs pull"},
               [&] { Checkpoint::open(dir.path()); });
}

TEST(HubFolder, IsReadAtTheSnapshotOfMain) {
  TempDir dir;
  const std::filesystem::path root = dir / "models--org--tiny";
  tiny_deepseek_v3().write(root / "snapshots/0a1b");
  std::filesystem::create_directories(root / "snapshots/2c3d");
  std::filesystem::create_directories(root / "blobs");
  expect_error(ErrorCode::kNotFound, {"models--org--tiny", "has no refs/main", "0a1b, 2c3d"},
               [&] { checkpoint_directory(root); });
  write_bytes(root / "refs/main", "0a1b\n");
  EXPECT_EQ(checkpoint_directory(root), root / "snapshots/0a1b");
  EXPECT_EQ(checkpoint_directory(root / "snapshots/0a1b"), root / "snapshots/0a1b");
  for (const char* hostile : {"gone", "../snapshots/0a1b", "..", "0a1b/../2c3d"}) {
    SCOPED_TRACE(hostile);
    write_bytes(root / "refs/main", hostile);
    expect_error(ErrorCode::kNotFound, {"refs/main names", "0a1b, 2c3d"},
                 [&] { checkpoint_directory(root); });
  }
  expect_error(ErrorCode::kInvalidArgument, {"hub's cache", "models--org--tiny"},
               [&] { Checkpoint::open(dir.path()); });
}

}  // namespace
}  // namespace ingot::formats
