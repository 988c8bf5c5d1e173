#include <fstream>
#include <functional>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "check/check.h"
#include "check/stored_hashes.h"
#include "formats/records/manifest.h"
#include "tests/check/rank_directory.h"
#include "tests/check/rules/spelled_checkpoint.h"
#include "tests/support/expect_error.h"
#include "tests/support/temp_dir.h"

// A sliced checkpoint as a whole: every directory of its ranks, or every file of layout
// deepseek-mp.

namespace ingot::formats {

using namespace check;

namespace {

namespace fs = std::filesystem;
using namespace ingot::testing;
using namespace ::testing;

const CutPlan kPlan = {.tp = 2, .ep = 2};

void flip_last_byte(const fs::path& path) {
  std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
  file.seekg(-1, std::ios::end);
  const int byte = file.get();
  file.seekp(-1, std::ios::end);
  file.put(static_cast<char>(byte ^ 0x40));
}

class SlicedCheck : public ::testing::Test {
 protected:
  SlicedCheck() { write_all_ranks(plain_model(), kPlan, dir_.path()); }

  std::vector<Finding> findings() { return check_checkpoint(dir_.path(), {}).findings; }
  void expect_finding(ErrorCode code, const std::string& file,
                      std::initializer_list<std::string> facts) {
    const Finding found = only(findings());
    EXPECT_EQ(error_code_name(found.code), error_code_name(code));
    EXPECT_EQ(found.file, file);
    for (const std::string& fact : facts) EXPECT_THAT(found.message, HasSubstr(fact));
  }

  TempDir dir_;
};

TEST_F(SlicedCheck, AcceptsAllRanksAndAddsThemUp) {
  const CheckResult all = check_checkpoint(dir_.path(), {.threads = 2});
  EXPECT_THAT(all.findings, IsEmpty());
  EXPECT_TRUE(all.has_manifest);
  EXPECT_EQ(all.family, "deepseek_v32");
  std::uint64_t n_tensors = 0, n_bytes = 0;
  for (const std::uint32_t rank : {0U, 1U}) {
    const CheckResult one = check_checkpoint(dir_ / rank_name(rank, 2), {});
    n_tensors += one.n_tensors;
    n_bytes += one.n_bytes;
  }
  EXPECT_GT(n_tensors, 100U);
  EXPECT_EQ(all.n_tensors, n_tensors);
  EXPECT_EQ(all.n_hashed, n_tensors);
  EXPECT_EQ(all.n_bytes, n_bytes);
  EXPECT_EQ(all.n_files, 2U);
}

TEST_F(SlicedCheck, MissesARank) {
  fs::remove_all(dir_ / rank_name(1, 2));
  expect_finding(ErrorCode::kNotFound, "rank-00001-of-00002", {"is missing", "rank 1"});
}

TEST_F(SlicedCheck, ReportsADirectoryOfAnotherCut) {
  fs::create_directory(dir_ / "rank-00002-of-00004");
  fs::create_directory(dir_ / "tokenizer");
  expect_finding(ErrorCode::kMismatch, "rank-00002-of-00004", {"not one of the 2 directories"});
}

TEST_F(SlicedCheck, NamesTheRankWhoseTensorDiffers) {
  flip_last_byte(dir_ / "rank-00001-of-00002/model.safetensors");
  expect_finding(ErrorCode::kMismatch, "rank-00001-of-00002/model.safetensors",
                 {"its bytes have hash"});
  EXPECT_THAT(findings()[0].tensor, Not(IsEmpty()));
}

TEST_F(SlicedCheck, PutsTheRankBeforeStructureFiles) {
  fs::remove(dir_ / "rank-00000-of-00002/model.safetensors");
  for (const Finding& finding : findings())
    EXPECT_TRUE(finding.file.starts_with("rank-00000-of-00002")) << finding.file << finding.message;
  EXPECT_FALSE(findings().empty());
}

TEST_F(SlicedCheck, RefusesAManifestThatWasChanged) {
  std::ofstream(dir_ / "rank-00001-of-00002/ingot.json", std::ios::app) << "\n";
  expect_finding(ErrorCode::kMismatch, "rank-00001-of-00002/ingot.json",
                 {"has hash", "changed since it was written"});
}

TEST_F(SlicedCheck, RefusesARankOfAnotherConversion) {
  RankDirectory other = cut_for_rank(plain_model(), kPlan, 1);
  other.slicing.job = {7, 7};
  fs::remove_all(dir_ / rank_name(1, 2));
  other.write(dir_ / rank_name(1, 2));
  expect_finding(ErrorCode::kMismatch, "rank-00001-of-00002/ingot.json",
                 {"it is of another conversion"});
}

TEST_F(SlicedCheck, RefusesRanksInEachOthersPlaces) {
  fs::rename(dir_ / rank_name(0, 2), dir_ / "aside");
  fs::rename(dir_ / rank_name(1, 2), dir_ / rank_name(0, 2));
  fs::rename(dir_ / "aside", dir_ / rank_name(1, 2));
  const std::vector<Finding> found = findings();
  ASSERT_THAT(found, SizeIs(2));
  EXPECT_THAT(found[0].message, HasSubstr("it is that of rank 1"));
  EXPECT_THAT(found[1].message, HasSubstr("it is that of rank 0"));
}

TEST_F(SlicedCheck, RefusesAnUnslicedCheckpointInTheirPlace) {
  fs::remove_all(dir_ / rank_name(1, 2));
  fs::create_directory(dir_ / rank_name(1, 2));
  plain_model().write(dir_ / rank_name(1, 2));
  expect_finding(ErrorCode::kNotFound, "rank-00001-of-00002/ingot.json", {});
}

TEST_F(SlicedCheck, EndsAtARankLinkedToTheWhole) {
  fs::remove_all(dir_ / rank_name(1, 2));
  fs::create_directory_symlink(dir_.path(), dir_ / rank_name(1, 2));
  const std::vector<Finding> found = findings();
  ASSERT_THAT(found, SizeIs(2));
  EXPECT_EQ(found[0].file, "rank-00001-of-00002/ingot.json");
  EXPECT_EQ(found[1].code, ErrorCode::kUnsupported);
  EXPECT_THAT(found[1].message, HasSubstr("cut for 2 ranks"));
}

TEST_F(SlicedCheck, ComparesSideFilesOfTheTop) {
  std::ofstream(dir_ / "config.json") << "{}";
  Manifest manifest = *read_manifest(dir_.path());
  manifest.side_files = {{"config.json", 2, hash_file(dir_ / "config.json"), ""}};
  std::ofstream(dir_ / "ingot.json") << manifest_text(manifest);
  EXPECT_THAT(findings(), IsEmpty());
  std::ofstream(dir_ / "config.json") << "[]";
  expect_finding(ErrorCode::kMismatch, "config.json", {"its bytes have hash"});
}

TEST_F(SlicedCheck, ComparesRecordsOfTheTop) {
  Manifest manifest = *read_manifest(dir_.path());
  manifest.n_tensors = 1;
  std::ofstream(dir_ / "ingot.json") << manifest_text(manifest);
  expect_finding(ErrorCode::kNotFound, "ingot.tensors.jsonl.zst", {});
  manifest.n_tensors = 0;
  manifest.records_hash = write_tensor_records(dir_ / "ingot.tensors.jsonl.zst", {});
  std::ofstream(dir_ / "ingot.json") << manifest_text(manifest);
  EXPECT_THAT(findings(), IsEmpty());
  manifest.records_hash = {1, 2};
  std::ofstream(dir_ / "ingot.json") << manifest_text(manifest);
  expect_finding(ErrorCode::kMismatch, "ingot.tensors.jsonl.zst", {"the manifest promises"});
}

TEST_F(SlicedCheck, SaysThatTheConversionHasNotEnded) {
  fs::create_directory(dir_ / ".ingot-partial");
  const Finding found = only(findings());
  EXPECT_EQ(found.code, ErrorCode::kExists);
}

TEST_F(SlicedCheck, IsNotOpenedAsOneCheckpoint) {
  expect_error(ErrorCode::kUnsupported, {"cut for 2 ranks", "rank-00000-of-00002"},
               [&] { Checkpoint::open(dir_.path()); });
}

// Bytes that count how often they are read.
class CountingBytes final : public StoredBytes {
 public:
  explicit CountingBytes(std::string file) { files_.push_back({std::move(file), 64, 16}); }
  [[nodiscard]] std::span<const SourceFile> files() const override { return files_; }
  void read(std::uint32_t, const StoredTensor&, std::uint64_t,
            std::span<std::byte> out) const override {
    ++n_read;
    std::fill(out.begin(), out.end(), std::byte{1});
  }
  [[nodiscard]] std::vector<std::byte> header_bytes(std::uint32_t) const override { return {}; }
  [[nodiscard]] bool has_data(std::uint32_t) const override { return true; }
  void read_file(std::uint32_t, std::uint64_t, std::span<std::byte>) const override {}
  void close_file(std::uint32_t) const override {}

  mutable int n_read = 0;

 private:
  std::vector<SourceFile> files_;
};

TEST(LinkedHashes, ReadFilesThatDirectoriesShareOnce) {
  const TempDir dir;
  fs::create_directory(dir / "a");
  fs::create_directory(dir / "b");
  for (const char* name : {"a/all", "a/own", "b/own"}) std::ofstream(dir / name) << "x";
  fs::create_hard_link(dir / "a/all", dir / "b/all");
  const std::vector<StoredTensor> stored = {{"x", DType::kU8, {4}, 0, 16, 4},
                                            {"y", DType::kU8, {8}, 0, 20, 8}};
  LinkedHashes hashes;
  const auto reads = [&](const char* directory, const char* file) {
    const CountingBytes bytes(file);
    const std::vector<HashedTensor> hashed =
        hashes.hash_stored(dir / directory, {.stored = stored, .bytes = bytes}, 1);
    EXPECT_EQ(hashed.size(), 2U);
    for (const HashedTensor& tensor : hashed) EXPECT_TRUE(tensor.hash.has_value());
    EXPECT_NE(hashed[0].hash, hashed[1].hash);
    return bytes.n_read;
  };
  EXPECT_EQ(reads("a", "all"), 2);
  EXPECT_EQ(reads("b", "all"), 0);
  EXPECT_EQ(reads("a", "own"), 2);
  EXPECT_EQ(reads("b", "own"), 2);
}

// Two files with the same names in them, as DeepSeek's inference code loads them.
class ShardsCheck : public ::testing::Test {
 protected:
  ShardsCheck() {
    for (const char* file : {"model0-mp2.safetensors", "model1-mp2.safetensors"}) {
      EditableCheckpoint shard;
      shard.config = {{"vocab_size", 512}};
      shard.file_name = file;
      shard.put_bytes("head.weight", DType::kU8, {16}, file[5] == '0' ? 3 : 4);
      shard.put_bytes("norm.weight", DType::kU8, {16}, 5);
      shard.write(dir_.path());
    }
    SlicingRecord slicing;
    slicing.tp = slicing.ep = slicing.n_ranks = 2;
    slicing.stage_layers = {0, 2};
    write_manifest_of(dir_.path(), slicing, {}, "deepseek-mp");
  }

  TempDir dir_;
};

TEST_F(ShardsCheck, AcceptsWhatTheManifestSays) {
  const CheckResult result = check_checkpoint(dir_.path(), {});
  EXPECT_THAT(result.findings, IsEmpty());
  EXPECT_EQ(result.n_files, 2U);
  EXPECT_EQ(result.n_tensors, 4U);
  EXPECT_EQ(result.n_hashed, 4U);
}

TEST_F(ShardsCheck, NamesFileAndTensorThatDiffer) {
  flip_last_byte(dir_ / "model1-mp2.safetensors");
  const Finding found = only(check_checkpoint(dir_.path(), {}).findings);
  EXPECT_EQ(found.code, ErrorCode::kMismatch);
  EXPECT_EQ(found.file, "model1-mp2.safetensors");
  EXPECT_EQ(found.tensor, "norm.weight");
}

TEST_F(ShardsCheck, MissesAFileAndReportsAnother) {
  fs::rename(dir_ / "model1-mp2.safetensors", dir_ / "model2-mp2.safetensors");
  std::set<std::pair<std::string, std::string>> found;
  for (const Finding& finding : check_checkpoint(dir_.path(), {}).findings)
    found.emplace(finding.file, finding.tensor);
  EXPECT_EQ(found, (std::set<std::pair<std::string, std::string>>{
                       {"model1-mp2.safetensors", ""},
                       {"model1-mp2.safetensors", "head.weight"},
                       {"model1-mp2.safetensors", "norm.weight"},
                       {"model2-mp2.safetensors", "head.weight"},
                       {"model2-mp2.safetensors", "norm.weight"}}));
}

TEST_F(ShardsCheck, ReportsAHeaderThatCannotBeRead) {
  fs::resize_file(dir_ / "model0-mp2.safetensors", 20);
  const std::vector<Finding> found = check_checkpoint(dir_.path(), {}).findings;
  EXPECT_THAT(found, ::testing::Contains(::testing::Field(&Finding::code, ErrorCode::kCorrupt)));
}

}  // namespace
}  // namespace ingot::formats
