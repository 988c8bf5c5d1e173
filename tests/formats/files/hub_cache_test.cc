#include "formats/files/hub_cache.h"

#include "formats/checkpoint/checkpoint.h"
#include "tests/support/test.h"
#include "tests/support/tiny_checkpoint.h"

namespace ingot::formats {
namespace {

namespace fs = std::filesystem;
using namespace ingot::testing;

constexpr const char* kCommit = "0123456789abcdef0123456789abcdef01234567";

// A model in a cache as the hub's programs write it: each file is a link to a blob.
class CachedModel : public ::testing::Test {
 protected:
  CachedModel() {
    TempDir plain;
    TinyCheckpoint tiny = tiny_deepseek_v3();
    tiny.index_files();
    tiny.write(plain.path());
    fs::create_directories(folder_ / "blobs");
    fs::create_directories(snapshot_);
    for (const auto& entry : fs::directory_iterator(plain.path())) {
      const fs::path name = entry.path().filename();
      fs::copy_file(entry.path(), folder_ / "blobs" / name);
      fs::create_symlink(fs::path("../../blobs") / name, snapshot_ / name);
    }
    write_bytes(folder_ / "refs/main", kCommit);
    write_bytes(folder_ / "refs/v1/final", kCommit);
  }

  TempDir cache_;
  fs::path folder_ = cache_ / "models--Org--Tiny-V3.2";
  fs::path snapshot_ = folder_ / "snapshots" / kCommit;
};

TEST(HubName, IsTwoWordsWithASlash) {
  for (const char* good : {"org/name", "Qwen/Qwen3-30B-A3B", "a/b.c_d-e", "1/2"}) {
    SCOPED_TRACE(good);
    ASSERT_TRUE(parse_hub_name(good));
    EXPECT_EQ(parse_hub_name(good)->model, good);
    EXPECT_EQ(parse_hub_name(good)->revision, "main");
  }
  for (const char* bad :
       {"", "name", "/name", "org/", "./name", "../name", "org/..", "a/b/c", "a b/c", "-a/b",
        "a/b.", "a--b/c", "a/b@", "a/b@../c", "a/b@/c", "a/b@c/"}) {
    SCOPED_TRACE(bad);
    EXPECT_FALSE(parse_hub_name(bad));
  }
  EXPECT_EQ(parse_hub_name("org/name@refs/pr/1")->revision, "refs/pr/1");
}

TEST_F(CachedModel, IsFoundByBranchTagAndCommit) {
  for (const char* name : {"Org/Tiny-V3.2", "Org/Tiny-V3.2@v1/final",
                           "Org/Tiny-V3.2@0123456789abcdef0123456789abcdef01234567"}) {
    SCOPED_TRACE(name);
    EXPECT_EQ(find_hub_snapshot(cache_.path(), *parse_hub_name(name)), snapshot_);
  }
  EXPECT_FALSE(find_hub_snapshot(cache_.path(), *parse_hub_name("Org/Other")));
  EXPECT_FALSE(find_hub_snapshot(fs::path(), *parse_hub_name("Org/Tiny-V3.2")));
  expect_error(ErrorCode::kNotFound,
               {"models--Org--Tiny-V3.2", "has no refs/v2",
                "hf download Org/Tiny-V3.2 --revision v2", kCommit},
               [&] { find_hub_snapshot(cache_.path(), *parse_hub_name("Org/Tiny-V3.2@v2")); });
}

TEST_F(CachedModel, IsReadThroughItsLinks) {
  const Checkpoint checkpoint = Checkpoint::open(snapshot_);
  std::vector<std::byte> bytes(8);
  checkpoint.read_file(0, 0, bytes);
  EXPECT_FALSE(checkpoint.tensors().empty());
}

TEST_F(CachedModel, IsKnownByItsPath) {
  ASSERT_TRUE(hub_snapshot_at(snapshot_));
  EXPECT_EQ(hub_snapshot_at(snapshot_)->model, "Org/Tiny-V3.2");
  EXPECT_EQ(hub_snapshot_at(snapshot_)->commit, kCommit);
  fs::create_directory_symlink(snapshot_, cache_ / "link");
  EXPECT_EQ(hub_snapshot_at(cache_ / "link")->model, "Org/Tiny-V3.2");
  for (const fs::path& other : {cache_.path(), folder_, snapshot_ / "sub", folder_ / "blobs"}) {
    SCOPED_TRACE(other);
    EXPECT_FALSE(hub_snapshot_at(other));
  }
}

TEST_F(CachedModel, HoldsPathsOfSnapshotsAndBlobs) {
  fs::create_directory_symlink(snapshot_, cache_ / "link");
  for (const fs::path& inside : {snapshot_, snapshot_ / "new/deeper", folder_ / "blobs/x",
                                 cache_ / "link", cache_ / "link/new", snapshot_ / "config.json"}) {
    SCOPED_TRACE(inside);
    EXPECT_EQ(hub_folder_around(inside), fs::canonical(folder_));
  }
  for (const fs::path& outside : {cache_.path(), cache_ / "other", folder_ / "other", folder_}) {
    SCOPED_TRACE(outside);
    EXPECT_FALSE(hub_folder_around(outside));
  }
  for (const fs::path& inside : {folder_, folder_ / "other", folder_ / "refs/main"}) {
    SCOPED_TRACE(inside);
    EXPECT_EQ(hub_folder_around(inside, true), fs::canonical(folder_));
  }
  fs::create_directories(cache_ / "datasets--Org--Texts/snapshots/x");
  EXPECT_TRUE(hub_folder_around(cache_ / "datasets--Org--Texts/snapshots/x"));
  fs::create_directories(cache_ / "models--Org--Output");  // the name tells nothing
  EXPECT_FALSE(hub_folder_around(cache_ / "models--Org--Output/x", true));
}

TEST_F(CachedModel, NamesTheCommandForMissingFiles) {
  const std::string fetch =
      std::string("is not complete: hf download Org/Tiny-V3.2 --revision ") + kCommit;
  const auto expect_fetch = [&](const std::string& fact) {
    expect_error(ErrorCode::kNotFound, {fact, fetch}, [&] { Checkpoint::open(snapshot_); });
  };
  // A link whose file did not arrive, and one that was never made.
  fs::remove(folder_ / "blobs/model.safetensors");
  expect_fetch("model.safetensors.index.json names it");
  fs::remove(snapshot_ / "model.safetensors");
  expect_fetch("model.safetensors.index.json names it");
  fs::remove(snapshot_ / "model.safetensors.index.json");
  expect_fetch("holds no weights");
  fs::remove(snapshot_ / "config.json");
  expect_fetch("config.json");
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
