#include "engines/verdicts.h"
#include "formats/base/stop_scope.h"
#include "formats/json/json.h"
#include "formats/records/manifest.h"
#include "shard/join/source.h"
#include "tests/convert/slicing/sliced.h"
#include "tests/support/test.h"
#include "tests/support/tiny_checkpoint.h"
#include "verify/structure/structure_check.h"

// Rank slices of the example: each rank's own files must agree with those of the others.

namespace ingot::verify {
namespace {

namespace fs = std::filesystem;
using check::Finding;
using formats::Json;
using ingot::testing::TempDir;

class SlicedStructure : public ::testing::Test {
 protected:
  SlicedStructure() {
    ingot::testing::Conversion conversion =
        ingot::testing::slicing(ingot::testing::tiny_v32(), top(), {.tp = 2, .ep = 2});
    conversion.recipe.to = formats::SchemeId::kInt8Channel;
    conversion.run();
    // Gathered: only the ranks' own records.
    fs::remove(top() / formats::kManifestName);
    fs::remove(top() / formats::kRecordsName);
  }

  [[nodiscard]] fs::path top() const { return directory_ / "ranks"; }
  [[nodiscard]] fs::path rank(std::uint32_t number) const {
    return ingot::testing::rank_directory(top(), number, {.tp = 2, .ep = 2});
  }

  // Changes a byte in the middle of the first norm that every rank holds.
  void change_replica(std::uint32_t number) const {
    const fs::path path = rank(number) / "all-00001-of-00001.safetensors";
    std::string bytes = read_text_file(path, 1 << 24);
    const Fd file = Fd::open_for_reading(path);
    for (const formats::StoredTensor& tensor : formats::read_safetensors_header(file).tensors) {
      if (tensor.name == "model.layers.2.input_layernorm.weight")
        bytes[tensor.offset + tensor.n_bytes / 2] ^= 1;
    }
    fs::remove(path);
    ingot::testing::write_bytes(path, bytes);
  }

  [[nodiscard]] StructureReport check(const StructureOptions& options = {}) const {
    return check_structure(open_compared(ingot::testing::tiny_v32(), {}), top(), options);
  }

  ingot::testing::TempDir directory_;
};

TEST_F(SlicedStructure, FindsNothingInGoodRanks) {
  const StructureReport report = check();
  EXPECT_THAT(report.findings, ::testing::IsEmpty());
  EXPECT_GT(report.tensors, 300U);
  EXPECT_GT(report.hashed, report.tensors);
}

TEST_F(SlicedStructure, SeesOneBitInAReplicaWithoutHashes) {
  change_replica(1);
  const StructureReport report = check({.hashes = false});
  ASSERT_EQ(report.errors(), 1U);
  EXPECT_EQ(report.findings[0].rule, "structure.replica");
  EXPECT_EQ(report.findings[0].tensor, "model.layers.2.input_layernorm.weight");
}

TEST_F(SlicedStructure, ComparesConfigAndSideFilesOfEveryRank) {
  for (const char* name : {"config.json", "tokenizer_config.json"}) {
    const fs::path path = rank(1) / name;
    formats::Json json = formats::read_json_file(path, 1 << 20);
    json["rms_norm_eps"] = 0.5;
    fs::remove(path);
    ingot::testing::write_bytes(path, formats::json_text(json));
  }
  std::vector<std::string> found;
  for (const Finding& finding : check({.hashes = false}).findings) {
    if (finding.rule.starts_with("structure.")) found.push_back(finding.file);
  }
  EXPECT_THAT(found, ::testing::UnorderedElementsAre("rank-00001-of-00002/config.json",
                                                     "rank-00001-of-00002/tokenizer_config.json"));
}

TEST_F(SlicedStructure, TakesOneRankForNoModel) {
  const StructureReport report =
      check_structure(open_compared(ingot::testing::tiny_v32(), {}), rank(1), {});
  ASSERT_EQ(report.errors(), 1U);
  EXPECT_EQ(report.findings[0].rule, "structure.slice");
  EXPECT_THAT(report.findings[0].message, ::testing::HasSubstr("rank 1 of 2"));
}

TEST(PaddedStructure, MayWidenButNotNarrow) {
  const ingot::testing::TempDir directory;
  const fs::path top = directory / "ranks";
  ingot::testing::Conversion conversion = ingot::testing::slicing(
      ingot::testing::tiny_v32(), top, {.tp = 2, .ep = 2, .fit = shard::TpFit::kPad});
  ingot::testing::spare_attention(conversion.recipe);
  conversion.run();
  const ComparedCheckpoint source = open_compared(ingot::testing::tiny_v32(), {});
  const fs::path config = top / "rank-00001-of-00002/config.json";
  formats::Json json = formats::read_json_file(config, 1 << 20);
  ASSERT_GT(json.at("intermediate_size"), source.model.config().intermediate_size);
  EXPECT_THAT(check_structure(source, top, {}).findings, ::testing::IsEmpty());

  json["intermediate_size"] = 512;
  fs::remove(config);
  ingot::testing::write_bytes(config, formats::json_text(json));
  std::vector<std::string> found;
  for (const Finding& finding : check_structure(source, top, {}).findings) {
    if (finding.rule == "structure.config") found.push_back(finding.file + " " + finding.message);
  }
  EXPECT_THAT(found, ::testing::ElementsAre("rank-00001-of-00002/config.json intermediate_size is "
                                            "512, in the source 640"));
}

TEST_F(SlicedStructure, StopsWhenAsked) {
  try {
    const StopScope stop([] { return true; }, "it was checked");
    (void)check({.hashes = false});
    FAIL() << "was not stopped";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInterrupted);
  }
}

// MTP layers of the example: kept, dropped on purpose, or lost.

StructureReport check(const fs::path& output) {
  return check_structure(open_compared(ingot::testing::tiny_v32(), {}), output, {});
}

std::vector<std::string> rules_of(const StructureReport& report) {
  std::vector<std::string> rules;
  for (const Finding& finding : report.findings) rules.emplace_back(finding.rule);
  return rules;
}

fs::path dropping(const TempDir& directory) {
  ingot::testing::Conversion conversion(ingot::testing::tiny_v32(), directory / "output");
  conversion.recipe.mtp = convert::MtpPolicy::kDrop;
  conversion.run();
  return conversion.output;
}

using MtpStructure = ingot::testing::InTempDir;

TEST_F(MtpStructure, RecordedDropPassesSilently) {
  const StructureReport report = check(dropping(dir_));
  EXPECT_THAT(rules_of(report), ::testing::IsEmpty());
  EXPECT_GT(report.hashed, 200U);
  EXPECT_TRUE(report.has_manifest);
}

TEST_F(MtpStructure, UnexplainedAbsenceWarnsOnce) {
  const fs::path output = dropping(dir_);
  fs::remove(output / formats::kManifestName);
  const StructureReport report = check(output);
  EXPECT_THAT(rules_of(report), ::testing::ElementsAre("structure.mtp"));
  EXPECT_EQ(report.errors(), 0U);
}

TEST_F(MtpStructure, IsAnErrorWhereTheConfigPromisesIt) {
  const fs::path output = dropping(dir_);
  fs::remove(output / formats::kManifestName);
  fs::remove(output / "config.json");
  ingot::testing::Conversion(ingot::testing::tiny_v32(), dir_ / "whole").run();
  fs::copy_file(dir_ / "whole/config.json", output / "config.json");
  const StructureReport report = check(output);
  EXPECT_EQ(report.errors(), 1U);
  EXPECT_EQ(report.findings.at(0).rule, "structure.mtp");
}

// The dialect is that of the source's codes, and no config says anything of it.
TEST(SlicedPlainStructure, HasNoConfigThatEnginesRead) {
  const TempDir directory;
  ingot::testing::Conversion codes(ingot::testing::tiny_v32(), directory / "codes");
  codes.recipe.to = formats::SchemeId::kInt8Channel;
  codes.run();
  ingot::testing::Conversion plain =
      ingot::testing::slicing(codes.output, directory / "ranks", {.tp = 2});
  plain.recipe.to = formats::SchemeId::kBf16;
  plain.run();
  const StructureReport report = check_structure(open_compared(codes.output, {}), plain.output, {});
  EXPECT_THAT(report.findings, ::testing::IsEmpty());
  const formats::Checkpoint joined = shard::open_source(plain.output, {});
  EXPECT_EQ(joined.dialect().name, "compressed-tensors");
  for (const engines::EngineRow* engine : engines::judged_versions())
    EXPECT_NO_THROW((void)engines::engine_view(joined, *engine, {})) << engine->name;
}

}  // namespace
}  // namespace ingot::verify
