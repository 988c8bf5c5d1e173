#include "formats/records/calibration.h"

#include "check/model_fingerprint.h"
#include "tests/support/bytes.h"
#include "tests/support/test.h"
#include "tests/support/tiny_checkpoint.h"

// Directories of statistics that a test makes by hand, and what is refused of them.

namespace ingot::formats {
namespace {

using namespace ingot::testing;
using ingot::testing::expect_error;

std::string f32(std::initializer_list<float> values) {
  std::string bytes;
  for (const float value : values)
    bytes.append(reinterpret_cast<const char*>(&value), sizeof value);  // NOLINT
  return bytes;
}

std::string i64(std::initializer_list<std::int64_t> values) {
  std::string bytes;
  for (const std::int64_t value : values)
    bytes.append(reinterpret_cast<const char*>(&value), sizeof value);  // NOLINT
  return bytes;
}

class StatsDirectory : public ::testing::Test {
 protected:
  StatsDirectory() {
    std::string square(2 * 2 * 4, '\0'), blocks(16 * 16 * 4, '\0');
    square.replace(0, 4, f32({2}));
    blocks.replace(4, 4, f32({0.5F}));
    files_[std::string(kInputsName)] = {
        {"a.input_amax", "F32", {1}, f32({3})},
        {"a.input_mean_square", "F32", {2}, f32({1, 2})},
        {"model.layers.1.expert_saliency", "F32", {2}, f32({0.25F, 0})},
        {"model.layers.1.expert_tokens", "I64", {2}, i64({7, 0})}};
    files_[std::string(kCacheName)] = {
        {"model.layers.0.self_attn.k_amax", "F32", {2}, f32({1, 2})},
        {"model.layers.0.self_attn.v_amax", "F32", {2}, f32({3, 4})}};
    files_[std::string(kBlocksName)] = {{"a.input_block_moments", "F32", {1, 16, 16}, blocks}};
    files_["moments/model.layers.0.safetensors"] = {{"a.input_moments", "F32", {2, 2}, square}};
    record_ = {.tool_version = "1.2.3",
               .source = Hash128::from_hex("00112233445566778899aabbccddeeff"),
               .text = {.high = 1, .low = 2},
               .documents = 3,
               .tokens = 40,
               .quantized = "nvfp4",
               .files = {},
               .shared_blocks = {{"a", "b", "c"}},
               .shared_moments = {{"a", "d"}}};
  }

  CalibrationStatistics open() {
    write();
    return CalibrationStatistics::open(directory_.path());
  }
  void write() {
    record_.files.clear();
    for (const auto& [name, tensors] : files_) {
      const std::string bytes = safetensors_bytes(tensors);
      write_bytes(directory_ / name, bytes);
      record_.files.push_back({.name = name, .n_bytes = bytes.size(), .hash = hash_of(bytes)});
    }
    write_bytes(directory_ / std::string(kCalibrationName), calibration_text(record_));
  }
  void refuse(std::initializer_list<std::string> facts) {
    expect_error(ErrorCode::kCorrupt, facts, [&] { open(); });
  }
  void refuse_record(const std::string& from, const std::string& to,
                     std::initializer_list<std::string> facts) {
    write();
    std::string text = calibration_text(record_);
    ASSERT_NE(text.find(from), std::string::npos) << from;
    text.replace(text.find(from), from.size(), to);
    expect_error(ErrorCode::kCorrupt, facts, [&] { parse_calibration(text, "calibration.json"); });
  }

  TempDir directory_;
  std::map<std::string, std::vector<TinyTensor>> files_;
  CalibrationRecord record_;
};

TEST_F(StatsDirectory, GivesEveryStatistic) {
  const CalibrationStatistics stats = open();
  EXPECT_EQ(stats.finite_values(*stats.find("a", kInputMeanSquare)), (std::vector{1.0F, 2.0F}));
  EXPECT_EQ(stats.counts(*stats.find("model.layers.1", kExpertTokens)),
            (std::vector<std::int64_t>{7, 0}));
  EXPECT_EQ(stats.values(*stats.find("model.layers.1", kExpertSaliency)).at(0), 0.25F);
  EXPECT_EQ(stats.values(*stats.find("model.layers.0.self_attn", kValueAmax)).at(1), 4.0F);
  float second = 0;
  stats.read(*stats.find("a", kInputBlockMoments), 1, std::span(&second, 1));
  EXPECT_EQ(second, 0.5F);
  EXPECT_EQ(stats.find("a", kInputMoments)->shape, (Shape{2, 2}));
  EXPECT_EQ(stats.find("a", kInputMin), nullptr);
  EXPECT_EQ(stats.find("z", kInputAmax), nullptr);
  std::vector<std::string> owners;
  stats.for_each(
      kKeyAmax, [&](const std::string& owner, const StatisticTensor&) { owners.push_back(owner); });
  EXPECT_EQ(owners, (std::vector<std::string>{"model.layers.0.self_attn"}));
  EXPECT_EQ(stats.stamps().size(), files_.size() + 1);
}

TEST_F(StatsDirectory, FindsMomentsUnderASharedInput) {
  const CalibrationStatistics stats = open();
  EXPECT_EQ(stats.find("c", kInputBlockMoments), stats.find("a", kInputBlockMoments));
  EXPECT_EQ(stats.find("d", kInputMoments), stats.find("a", kInputMoments));
  EXPECT_EQ(stats.find("c", kInputMoments), nullptr);
  EXPECT_EQ(stats.find("c", kInputAmax), nullptr) << "ranges are stored for every module";
}

TEST_F(StatsDirectory, KeepsItsRecord) {
  const CalibrationStatistics stats = open();
  ASSERT_NE(stats.record(), nullptr);
  EXPECT_EQ(calibration_text(*stats.record()), calibration_text(record_));
  EXPECT_EQ(stats.record()->quantized, "nvfp4");
  EXPECT_EQ(stats.hash(), hash_of(calibration_text(record_)));
}

TEST_F(StatsDirectory, IsOneFileWithoutRecord) {
  write();
  const auto stats = CalibrationStatistics::open(directory_ / std::string(kInputsName));
  EXPECT_EQ(stats.record(), nullptr);
  EXPECT_NE(stats.find("a", kInputAmax), nullptr);
  // Ranges of a cache are known by the name of their file.
  const std::filesystem::path cache = directory_ / std::string(kCacheName);
  EXPECT_EQ(CalibrationStatistics::open(cache).record(), nullptr);
  std::filesystem::rename(cache, directory_ / "ranges.safetensors");
  expect_error(ErrorCode::kCorrupt, {"k_amax", "is none of MODULE.input_min"},
               [&] { CalibrationStatistics::open(directory_ / "ranges.safetensors"); });
}

TEST_F(StatsDirectory, RefusesOtherTensors) {
  files_[std::string(kCacheName)].push_back({"a.input_amax", "F32", {1}});
  refuse({"a.input_amax", "is none of ATTENTION.k_amax", "cache.safetensors"});
}

TEST_F(StatsDirectory, RefusesOtherShapes) {
  files_[std::string(kBlocksName)][0] = {"a.input_block_moments", "F32", {1, 8, 16}};
  refuse({"[1, 8, 16], must be F32 [K/16, 16, 16]"});
  files_[std::string(kBlocksName)][0] = {"a.input_block_moments", "F32", {0, 16, 16}};
  refuse({"[0, 16, 16], must be"});
  files_.erase(std::string(kBlocksName));
  files_["moments/model.layers.0.safetensors"][0] = {"a.input_moments", "F32", {2, 3}};
  refuse({"[2, 3], must be F32 [K, K]"});
  files_["moments/model.layers.0.safetensors"][0] = {"a.input_moments", "BF16", {2, 2}};
  refuse({"is BF16"});
}

TEST_F(StatsDirectory, RefusesNegativeTokens) {
  files_[std::string(kInputsName)].back().data = i64({7, -1});
  refuse({"expert 1 saw -1 tokens"});
}

TEST_F(StatsDirectory, RefusesBytesOtherThanItsHash) {
  write();
  const auto change = [&](const std::string& name, int from_end) {
    std::string bytes = read_text_file(directory_ / name, 1U << 20);
    bytes[bytes.size() - static_cast<std::size_t>(from_end)] ^= 1;
    write_bytes(directory_ / name, bytes);
  };
  change("moments/model.layers.0.safetensors", 1);
  const auto stats = CalibrationStatistics::open(directory_.path());
  for (int i = 0; i < 2; ++i) {
    expect_error(ErrorCode::kCorrupt, {"moments/model.layers.0.safetensors", "calibrate again"},
                 [&] { static_cast<void>(stats.values(*stats.find("a", kInputMoments))); });
  }
  change(std::string(kCacheName), 1);
  expect_error(ErrorCode::kCorrupt, {"cache.safetensors", "is not the file"},
               [&] { CalibrationStatistics::open(directory_.path()); });
  write();
  write_bytes(directory_ / std::string(kBlocksName), "x");
  expect_error(ErrorCode::kCorrupt, {"blocks.safetensors", "is not the file"},
               [&] { CalibrationStatistics::open(directory_.path()); });
}

TEST_F(StatsDirectory, RefusesValuesThatAreNotFinite) {
  files_["moments/model.layers.0.safetensors"][0].data = f32({1, 0, NAN, 1});
  const CalibrationStatistics stats = open();
  expect_error(ErrorCode::kCorrupt, {"has nan at byte", "moments/model.layers.0"},
               [&] { static_cast<void>(stats.finite_values(*stats.find("a", kInputMoments))); });
}

TEST_F(StatsDirectory, RefusesOtherRecords) {
  refuse_record(R"("inputs.safetensors")", R"("../inputs.safetensors")", {"files", "name"});
  refuse_record(R"("inputs.safetensors")", R"("other.safetensors")", {"no file of ours"});
  refuse_record(R"("moments/model.layers.0.safetensors")", R"("moments/../../x.safetensors")",
                {"name"});
  refuse_record(R"("inputs.safetensors")", R"("cache.safetensors")", {"a second time"});
  refuse_record(R"("documents": 3)", R"("documents": -3)", {"documents"});
  refuse_record(R"("documents": 3)", R"("documents": 3, "host": "x")", {"key that is not ours"});
  refuse_record("00112233445566778899aabbccddeeff", "0011", {"is not a hash"});
  refuse_record(R"("c")", "7", {"no name"});
  refuse_record(R"("ingot_calibration": 1)", R"("ingot_calibration": "1")", {"ingot_calibration"});
  expect_error(ErrorCode::kUnsupported, {"has form 2"}, [&] {
    std::string text = calibration_text(record_);
    text.replace(text.find("_calibration\": 1"), 16, "_calibration\": 2");
    parse_calibration(text, "calibration.json");
  });
}

TEST_F(StatsDirectory, BelongsToOneModel) {
  const TempDir models;
  TinyCheckpoint model = tiny_deepseek_v3();
  model.write(models / "own");
  auto& tensor = tensor_of(model, kUpWeight);
  std::uint64_t n_bytes = 2;
  for (const std::uint64_t n : tensor.shape) n_bytes *= n;
  tensor.data.assign(n_bytes, '\0');
  tensor.data[3] = 1;
  model.write(models / "tuned");
  const Checkpoint own = Checkpoint::open(models / "own"),
                   tuned = Checkpoint::open(models / "tuned");
  EXPECT_EQ(check::model_fingerprint(own),
            check::model_fingerprint(Checkpoint::open(models / "own")));
  record_.source = check::model_fingerprint(own).value();
  const CalibrationStatistics stats = open();
  check::require_same_model(stats, own, "--importance");
  expect_error(ErrorCode::kMismatch, {"--importance", "'" + (models / "tuned").string() + "' has"},
               [&] { check::require_same_model(stats, tuned, "--importance"); });
  const auto file = CalibrationStatistics::open(directory_ / std::string(kInputsName));
  check::require_same_model(file, tuned, "--importance");
}

}  // namespace
}  // namespace ingot::formats
