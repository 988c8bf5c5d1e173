#include "formats/records/manifest.h"

#include <xxhash.h>
#include <zstd.h>

#include "formats/container/tensor.h"
#include "formats/json/json.h"
#include "tests/support/json_edit.h"
#include "tests/support/listed.h"
#include "tests/support/test.h"

namespace ingot::formats {
namespace {

using namespace ingot::testing;
using enum ErrorCode;

constexpr std::string_view kHash = "00112233445566778899aabbccddeeff";

Manifest example_manifest() {
  Manifest manifest;
  manifest.tool_version = "0.1.0";
  manifest.family = "deepseek_v32";
  manifest.dialect = "deepseek";
  manifest.layout = "hf";
  manifest.recipe = Json{{"rules", Json::array({{{"pattern", "*"}, {"to", "bf16"}}})}};
  manifest.source = Json{{"files", 2}};
  manifest.files = {{"model-00001-of-00002.safetensors", 4301250560, Hash128{1, 2}, ""},
                    {"model-00002-of-00002.safetensors", 17, Hash128{3, 4}, std::string(64, 'a')}};
  manifest.side_files = {{"sub/tokenizer.json", 5, Hash128{5, 6}, ""}};
  manifest.n_tensors = 92425;
  manifest.records_hash = Hash128::from_hex(kHash);
  return manifest;
}

TensorRecord example_record() {
  TensorRecord record;
  record.name = "model.layers.3.mlp.experts.17.up_proj.weight";
  record.role = "expert-up";
  record.layer = 3;
  record.expert = 17;
  record.action = "cast";
  record.from = "fp8-block";
  record.to = "bf16";
  record.source = {{record.name, "a.safetensors", "F8_E4M3", {2048, 7168}, Hash128{7, 8}},
                   {record.name + "_scale_inv", "b.safetensors", "F32", {16, 56}, Hash128{9, 10}}};
  record.output = {{record.name, "a.safetensors", "BF16", {2048, 7168}, Hash128{11, 12}}};
  return record;
}

std::string edited_manifest(const JsonEdit& edit) {
  return edited(Json::parse(manifest_text(example_manifest())), {edit}).dump();
}

std::string edited_record(const JsonEdit& edit) {
  return edited(Json::parse(tensor_record_line(example_record())), {edit}).dump();
}

void write_zstd(const std::filesystem::path& path, const std::string& text,
                const std::string& after = "") {
  std::string packed(ZSTD_compressBound(text.size()), '\0');
  const std::size_t n = ZSTD_compress(packed.data(), packed.size(), text.data(), text.size(), 1);
  ASSERT_FALSE(ZSTD_isError(n));
  std::ofstream(path, std::ios::binary) << packed.substr(0, n) << after;
}

// The tensor hash as documented, from only XXH3; only for texts of one chunk.
Hash128 reference_hash(const std::string& text) {
  std::string chunks;
  if (!text.empty()) {
    XXH128_canonical_t canonical;
    XXH128_canonicalFromHash(&canonical, XXH3_128bits(text.data(), text.size()));
    chunks.assign(reinterpret_cast<const char*>(canonical.digest), sizeof canonical.digest);
  }
  const std::uint64_t length = text.size();
  chunks.append(reinterpret_cast<const char*>(&length), sizeof length);
  const XXH128_hash_t hash = XXH3_128bits(chunks.data(), chunks.size());
  return {hash.high64, hash.low64};
}

TEST(Manifest, RoundTrips) {
  const std::string text = manifest_text(example_manifest());
  const Manifest back = parse_manifest(text, "ingot.json");
  EXPECT_EQ(manifest_text(back), text);
  EXPECT_EQ(back.tool_version, "0.1.0");
  ASSERT_EQ(back.files.size(), 2U);
  EXPECT_EQ(back.files[0].n_bytes, 4301250560U);
  EXPECT_EQ(back.files[0].hash, (Hash128{1, 2}));
  EXPECT_EQ(back.files[1].sha256, std::string(64, 'a'));
  ASSERT_EQ(back.side_files.size(), 1U);
  EXPECT_EQ(back.side_files[0].name, "sub/tokenizer.json");
  EXPECT_EQ(back.n_tensors, 92425U);
  EXPECT_EQ(back.records_hash.hex(), kHash);
  EXPECT_EQ(back.recipe->at("rules").size(), 1U);
}

TEST(Manifest, BeginsWithItsSchemaAndTool) {
  EXPECT_TRUE(
      manifest_text(example_manifest())
          .starts_with("{\n  \"schema\": 1,\n  \"tool\": \"ingot\",\n  \"version\": \"0.1.0\","));
}

TEST(Manifest, RefusesANewerSchema) {
  expect_error(kUnsupported, {"schema 2"}, [] {
    parse_manifest(edited_manifest({"/schema", 2}), "ingot.json");
  });
}

TEST(Manifest, RefusesAnotherTool) {
  expect_error(kCorrupt, {"not written by ingot"}, [] {
    parse_manifest(edited_manifest({"/tool", "ninja"}), "ingot.json");
  });
}

TEST(Manifest, RefusesWhatIsMissingWrongOrUnknown) {
  const std::vector<std::string> edits =
      listed(R"(/version; /version 1; /extra 1; /schema -1; /schema 1.0; /files {}; /files/0 3;
      /files/0/bytes; /files/0/bytes -5; /files/0/bytes 1.5; /files/0/hash "12";
      /files/0/hash "GGGGGGGGGGGGGGGGGGGGGGGGGGGGGGGG"; /files/0/sha256 "ab"; /files/0/sha256 7;
      /tensors/count "many"; /tensors/records "../elsewhere"; /tensors/hash)");
  for (const std::string& edit : edits) {
    const std::string text = edited_manifest(edit);
    SCOPED_TRACE(text);
    expect_error(kCorrupt, {"ingot.json"}, [&] { parse_manifest(text, "ingot.json"); });
  }
}

TEST(Manifest, RefusesFileNamesThatLeaveTheDirectory) {
  for (const char* name : {"", "/etc/passwd", "../x", "a/../../x", "a//b", "./a", "a/", ".."}) {
    SCOPED_TRACE(name);
    expect_error(kCorrupt, {"inside the directory"}, [&] {
      parse_manifest(edited_manifest({"/side_files/0/name", name}), "m");
    });
  }
}

TEST(Manifest, RefusesOneNameTwice) {
  expect_error(kDuplicate, {"sub/tokenizer.json"}, [] {
    parse_manifest(
        edited_manifest(
            {"/side_files/-", Json::parse(manifest_text(example_manifest()))["side_files"][0]}),
        "m");
  });
}

TEST(Manifest, IsNothingWhereThereIsNone) {
  const TempDir dir;
  EXPECT_FALSE(read_manifest(dir.path()).has_value());
}

TEST(Manifest, IsRefusedWhenTooLarge) {
  const TempDir dir;
  std::ofstream(dir / "ingot.json") << "{}";
  std::filesystem::resize_file(dir / "ingot.json", (std::uint64_t{256} << 20) + 1);
  expect_error(kLimit, {"ingot.json"}, [&] { read_manifest(dir.path()); });
}

using TensorRecords = InTempDir;

TEST_F(TensorRecords, RoundTripThroughAFile) {
  std::vector<TensorRecord> records;
  for (std::uint32_t i = 0; i < 3000; ++i) {
    records.push_back(example_record());
    records.back().expert = i;
    if (i % 2 == 0) records.back().layer.reset();
  }
  const Hash128 hash = write_tensor_records(dir_ / "r.zst", records);
  const std::vector<TensorRecord> back = read_tensor_records(dir_ / "r.zst", hash);
  ASSERT_EQ(back.size(), records.size());
  for (std::size_t i = 0; i < back.size(); ++i) {
    EXPECT_EQ(tensor_record_line(back[i]), tensor_record_line(records[i]));
  }
  EXPECT_FALSE(back[0].layer.has_value());
  EXPECT_EQ(back[1].layer, 3U);
  EXPECT_EQ(back[1].source[1].shape, (Shape{16, 56}));
}

TEST_F(TensorRecords, HashIsTheTensorHashOfTheText) {
  const std::vector<TensorRecord> records = {example_record(), example_record()};
  const std::string text =
      tensor_record_line(records[0]) + "\n" + tensor_record_line(records[1]) + "\n";
  EXPECT_EQ(write_tensor_records(dir_ / "r.zst", records), reference_hash(text));
}

TEST_F(TensorRecords, MayBeEmpty) {
  const Hash128 hash = write_tensor_records(dir_ / "r.zst", {});
  EXPECT_EQ(hash, reference_hash(""));
  EXPECT_TRUE(read_tensor_records(dir_ / "r.zst", hash).empty());
}

TEST_F(TensorRecords, CompressesWell) {
  const std::vector<TensorRecord> records(1000, example_record());
  (void)write_tensor_records(dir_ / "r.zst", records);
  EXPECT_LT(std::filesystem::file_size(dir_ / "r.zst"), 20'000U);
}

TEST_F(TensorRecords, RefusesOtherContentThanPromised) {
  (void)write_tensor_records(dir_ / "r.zst", std::vector{example_record()});
  expect_error(kMismatch, {"r.zst"}, [&] { read_tensor_records(dir_ / "r.zst", Hash128{1, 2}); });
}

TEST_F(TensorRecords, RefusesATruncatedStream) {
  const Hash128 hash = write_tensor_records(dir_ / "r.zst", std::vector(50, example_record()));
  const std::uint64_t size = std::filesystem::file_size(dir_ / "r.zst");
  for (const std::uint64_t cut : {std::uint64_t{0}, std::uint64_t{3}, size / 2, size - 1}) {
    SCOPED_TRACE(cut);
    std::filesystem::copy_file(dir_ / "r.zst", dir_ / "cut.zst",
                               std::filesystem::copy_options::overwrite_existing);
    std::filesystem::resize_file(dir_ / "cut.zst", cut);
    expect_error(kCorrupt, {"cut.zst"}, [&] { read_tensor_records(dir_ / "cut.zst", hash); });
  }
}

TEST_F(TensorRecords, RefusesBytesAfterTheStream) {
  write_zstd(dir_ / "r.zst", tensor_record_line(example_record()) + "\n", "x");
  expect_error(kCorrupt, {"after the end"}, [&] { read_tensor_records(dir_ / "r.zst", {}); });
}

TEST_F(TensorRecords, RefusesWhatIsNotZstd) {
  std::ofstream(dir_ / "r.zst") << tensor_record_line(example_record()) << "\n";
  expect_error(kCorrupt, {"zstd"}, [&] { read_tensor_records(dir_ / "r.zst", {}); });
}

TEST_F(TensorRecords, RefusesALastLineWithoutNewline) {
  write_zstd(dir_ / "r.zst", tensor_record_line(example_record()));
  expect_error(kCorrupt, {"middle of a line"}, [&] { read_tensor_records(dir_ / "r.zst", {}); });
}

TEST_F(TensorRecords, RefusesAnEndlessLineBeforeHoldingIt) {
  write_zstd(dir_ / "r.zst", std::string((std::size_t{16} << 20) + 1, ' ') + "\n");
  expect_error(kLimit, {"16 MiB"}, [&] { read_tensor_records(dir_ / "r.zst", {}); });
}

TEST_F(TensorRecords, RefuseABombUnderItsRightHash) {
  const std::string line =
      tensor_record_line(example_record()) + std::string(std::size_t{1} << 20, ' ') + "\n";
  std::string text;
  while (text.size() <= (std::size_t{33} << 20)) text += line;
  write_zstd(dir_ / "r.zst", text);
  expect_error(kLimit, {"r.zst", "64 times its size"},
               [&] { read_tensor_records(dir_ / "r.zst", reference_hash(text)); });
}

TEST_F(TensorRecords, NamesTheLineThatIsWrong) {
  write_zstd(dir_ / "r.zst", tensor_record_line(example_record()) + "\n{}\n");
  expect_error(kCorrupt, {"line 2"}, [&] { read_tensor_records(dir_ / "r.zst", {}); });
}

TEST_F(TensorRecords, RefuseWhatIsMissingWrongOrUnknown) {
  const std::vector<std::string> edits = listed(
      R"(/name; /name 5; /layer -1; /layer 4294967296; /expert "three"; /action "burn"; /source 1;
      /source/0/dtype "F9"; /source/0/shape [-1]; /source/0/shape [1.5]; /source/0/file "../x";
      /output/0/hash "zz"; /output/0/more 1; /more 1)");
  for (const std::string& edit : edits) {
    const std::string line = edited_record(edit);
    SCOPED_TRACE(line);
    expect_error(kCorrupt, {"r line"}, [&] { parse_tensor_record(line, "r line"); });
  }
}

TEST(WeightsFileHash, CoversHeaderAndTensorsInOrder) {
  const std::string header = "header";
  const std::vector<Hash128> tensors = {Hash128::from_hex(kHash),
                                        Hash128{0x0102030405060708, 0x090a0b0c0d0e0f10}};
  std::string bytes = header;
  for (const int value : {0x00, 0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88, 0x99, 0xaa,
                          0xbb, 0xcc, 0xdd, 0xee, 0xff, 1,    2,    3,    4,    5,    6,
                          7,    8,    9,    10,   11,   12,   13,   14,   15,   16}) {
    bytes.push_back(static_cast<char>(value));
  }
  EXPECT_EQ(weights_file_hash(std::as_bytes(std::span(header)), tensors), reference_hash(bytes));
}

}  // namespace
}  // namespace ingot::formats
