#include "formats/json/zstd_lines.h"
#include "formats/records/manifest.h"
#include "shard/join/slice_files.h"
#include "tests/support/test.h"

namespace ingot::shard {
namespace {

using namespace formats;
using namespace ingot::testing;

using RecordedSlices = InTempDir;

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
