#include "check/check.h"

#include <xxhash.h>

#include "check/rules/loader_rules.h"
#include "check/stored_hashes.h"
#include "engines/verdicts.h"
#include "formats/base/stop_scope.h"
#include "formats/family/families.h"
#include "formats/records/manifest.h"
#include "synth/synth.h"
#include "tests/check/editable_checkpoint.h"
#include "tests/check/findings.h"
#include "tests/support/test.h"

namespace ingot::formats {

using namespace check;

namespace {

namespace fs = std::filesystem;
using namespace ingot::testing;
using namespace ::testing;

std::string read_all(const fs::path& path) {
  std::string text(fs::file_size(path), '\0');
  std::ifstream(path, std::ios::binary)
      .read(text.data(), static_cast<std::streamsize>(text.size()));
  return text;
}

// Hashes as docs/records.md specifies them, written down a second time.
std::string canonical(const std::string& bytes) {
  XXH128_canonical_t digits;
  XXH128_canonicalFromHash(&digits, XXH3_128bits(bytes.data(), bytes.size()));
  return {reinterpret_cast<const char*>(digits.digest), sizeof digits.digest};
}

Hash128 tensor_hash(const std::string& bytes) {
  constexpr std::size_t kChunk = 4 << 20;
  std::string hashes;
  for (std::size_t begin = 0; begin < bytes.size(); begin += kChunk)
    hashes += canonical(bytes.substr(begin, kChunk));
  for (int shift = 0; shift < 64; shift += 8)
    hashes.push_back(static_cast<char>(bytes.size() >> shift));
  const XXH128_hash_t hash = XXH3_128bits(hashes.data(), hashes.size());
  return {hash.high64, hash.low64};
}

std::string big_endian(const Hash128& hash) {
  std::string bytes;
  for (const std::uint64_t word : {hash.high, hash.low}) {
    for (int shift = 56; shift >= 0; shift -= 8) bytes.push_back(static_cast<char>(word >> shift));
  }
  return bytes;
}

// Puts a manifest next to a checkpoint, as if it had been converted from itself.
void write_manifest(const fs::path& directory) {
  Manifest manifest;
  manifest.tool_version = "0";
  manifest.family = "deepseek_v32";
  manifest.dialect = "deepseek";
  manifest.layout = "hf";
  std::vector<TensorRecord> records;
  for (const auto& entry : fs::directory_iterator(directory)) {
    const std::string name = entry.path().filename().string();
    const std::string bytes = read_all(entry.path());
    if (entry.path().extension() != ".safetensors") {
      manifest.side_files.push_back({name, bytes.size(), tensor_hash(bytes), ""});
      continue;
    }
    const Fd file = Fd::open_for_reading(entry.path());
    const SafetensorsHeader header = read_safetensors_header(file);
    std::string all = bytes.substr(0, header.data_start);
    for (const StoredTensor& tensor : header.tensors) {
      const TensorHash hash{tensor.name, name, std::string(dtype_name(tensor.dtype)), tensor.shape,
                            tensor_hash(bytes.substr(tensor.offset, tensor.n_bytes))};
      TensorRecord record;
      record.name = tensor.name;
      record.role = "other";
      record.action = "copy";
      record.source = record.output = {hash};
      records.push_back(record);
      all += big_endian(hash.hash);
    }
    manifest.files.push_back({name, bytes.size(), tensor_hash(all), ""});
  }
  manifest.n_tensors = records.size();
  manifest.records_hash = write_tensor_records(directory / kRecordsName, records);
  std::ofstream(directory / kManifestName) << manifest_text(manifest);
}

void make_tiny(const fs::path& directory, std::uint64_t seed = 0) {
  SynthOptions options;
  options.family = find_family("deepseek_v32");
  options.size = SynthSize::kTiny;
  options.shards = 2;
  options.seed = seed;
  write_synthetic_checkpoint(directory, options);
  write_tokenizer(directory);
}

const fs::path kFirst = "model-00001-of-00002.safetensors";

void flip_byte(const fs::path& path, std::uint64_t offset) {
  std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
  file.seekg(static_cast<std::streamoff>(offset));
  const int byte = file.get();
  file.seekp(static_cast<std::streamoff>(offset));
  file.put(static_cast<char>(byte ^ 1));
}

std::size_t n_errors(const CheckResult& result) {
  return static_cast<std::size_t>(
      std::count_if(result.findings.begin(), result.findings.end(),
                    [](const Finding& f) { return f.severity == Severity::kError; }));
}

class Check : public ::testing::Test {
 protected:
  Check() { make_tiny(dir_.path()); }

  void replace_by(const EditableCheckpoint& edited) const {
    fs::remove_all(dir_.path());
    fs::create_directory(dir_.path());
    edited.write(dir_.path());
  }

  const TempDir dir_;
};

TEST_F(Check, FindsNothingWrongWithTheExample) {
  const CheckResult result = check_checkpoint(fs::path(INGOT_SOURCE_DIR) / "examples/tiny-v32",
                                              {.deep = true, .threads = 2});
  EXPECT_THAT(result.findings, IsEmpty());
  EXPECT_EQ(result.family, "deepseek_v32");
  EXPECT_EQ(result.dialect, "deepseek");
  EXPECT_EQ(result.n_files, 2U);
  EXPECT_GT(result.n_tensors, 600U);
  EXPECT_FALSE(result.has_manifest);
}

TEST_F(Check, ThrowsOnlyWhenThereIsNothingToRead) {
  const TempDir dir;
  expect_error(ErrorCode::kNotFound, {"absent"}, [&] { check_checkpoint(dir / "absent", {}); });
}

TEST_F(Check, ReportsAnEmptyDirectory) {
  const TempDir dir;
  EXPECT_GE(n_errors(check_checkpoint(dir.path(), {})), 1U);
}

TEST_F(Check, ReportsAnUnfinishedConversion) {
  fs::create_directory(dir_ / ".ingot-partial");
  EXPECT_THAT(text_of(check_checkpoint(dir_.path(), {}).findings), HasSubstr(".ingot-partial"));
}

TEST_F(Check, ReportsIndependentFaultsTogether) {
  EditableCheckpoint edited = EditableCheckpoint::load(dir_.path());
  edited.tensors.erase("model.norm.weight");
  edited.tensors.erase("model.layers.0.self_attn.o_proj.weight_scale_inv");
  edited.tensors.erase("model.layers.1.mlp.gate.e_score_correction_bias");
  edited.config.at("quantization_config").erase("activation_scheme");
  edited.put_zeros("model.layers.1.extra.weight", DType::kBf16, {4});
  edited.with_metadata = false;
  replace_by(edited);
  const CheckResult result = check_checkpoint(dir_.path(), {});
  const std::string text = text_of(result.findings);
  EXPECT_THAT(text, HasSubstr("model.complete||model.norm.weight"));
  EXPECT_THAT(text, HasSubstr("o_proj.weight"));
  EXPECT_THAT(text, HasSubstr("router.correction-bias|"));
  EXPECT_THAT(text, HasSubstr("fp8.activation-scheme|"));
  EXPECT_THAT(text, HasSubstr("model.layers.1.extra.weight"));
  EXPECT_THAT(text, HasSubstr("container.metadata-format|"));
  EXPECT_EQ(text_of(check_checkpoint(dir_.path(), {.threads = 3}).findings), text)
      << "the order is not stable";
}

TEST_F(Check, SaysOneFactOnce) {
  EditableCheckpoint edited = EditableCheckpoint::load(dir_.path());
  edited.tensors.erase("model.layers.0.self_attn.o_proj.weight_scale_inv");
  replace_by(edited);
  EXPECT_EQ(check_checkpoint(dir_.path(), {}).findings.size(), 1U);
}

TEST_F(Check, WithoutValuesReadsHeadersAndJsonAlone) {
  const std::string scale = "model.layers.0.self_attn.o_proj.weight_scale_inv";
  EditableCheckpoint edited = EditableCheckpoint::load(dir_.path());
  edited.put_zeros(scale, DType::kF32, edited.at(scale).shape);
  replace_by(edited);
  EXPECT_EQ(only(check_checkpoint(dir_.path(), {}).findings).rule, "fp8.scale-values");
  EXPECT_THAT(check_checkpoint(dir_.path(), {.most_bytes = 0}).findings, IsEmpty());
}

TEST_F(Check, CountsScalesThatAreTooLargeToRead) {
  const std::string scale = "model.layers.0.self_attn.o_proj.weight_scale_inv";
  EditableCheckpoint edited = EditableCheckpoint::load(dir_.path());
  edited.put_zeros(scale, DType::kF32, edited.at(scale).shape);
  replace_by(edited);
  EXPECT_EQ(check_checkpoint(dir_.path(), {}).unread.n_tensors, 0U);
  EXPECT_EQ(only(check_checkpoint(dir_.path(), {.most_bytes = kSmallBytes}).findings).rule,
            "fp8.scale-values");
  const CheckResult by_numbers = check_checkpoint(dir_.path(), {.most_bytes = 3});
  EXPECT_THAT(by_numbers.findings, IsEmpty());
  EXPECT_GT(by_numbers.unread.n_tensors, 0U);
  EXPECT_GE(by_numbers.unread.n_bytes, 4 * by_numbers.unread.n_tensors);
}

// A head and an embedding are no scales: their line is that of codes and plain weights.
TEST_F(Check, CountsNoTablesAsUnreadScales) {
  EditableCheckpoint edited = EditableCheckpoint::load(dir_.path());
  edited.config["tie_word_embeddings"] = true;
  replace_by(edited);
  const CheckResult all = check_checkpoint(dir_.path(), {});
  EXPECT_TRUE(std::ranges::any_of(
      all.findings, [](const Finding& finding) { return finding.rule == "model.tied-head"; }));
  const CheckResult small = check_checkpoint(dir_.path(), {.most_bytes = 64});
  EXPECT_EQ(small.unread.n_tensors, 0U) << small.unread.n_bytes;
}

TEST_F(Check, ReportsAbsentMtpLayersAsAWarning) {
  EditableCheckpoint edited = EditableCheckpoint::load(dir_.path());
  edited.erase_prefix("model.layers.2.");
  replace_by(edited);
  const Finding finding = only(check_checkpoint(dir_.path(), {}).findings);
  EXPECT_EQ(finding.rule, "mtp.present");
  EXPECT_EQ(finding.severity, Severity::kWarning);
}

TEST_F(Check, ReportsATruncatedFileAndGoesOn) {
  fs::resize_file(dir_.path() / kFirst, fs::file_size(dir_.path() / kFirst) - 1);
  const CheckResult result = check_checkpoint(dir_.path(), {});
  EXPECT_GE(n_errors(result), 1U);
  EXPECT_THAT(result.findings[0].file, HasSubstr(kFirst.string()));
  EXPECT_EQ(result.n_files, 2U);
}

TEST_F(Check, ReportsABrokenConfigOnce) {
  std::ofstream(dir_ / "config.json") << "{";
  const Finding finding = only(check_checkpoint(dir_.path(), {}).findings);
  EXPECT_EQ(finding.code, ErrorCode::kCorrupt);
}

TEST_F(Check, ReportsABlockSizeOfOneNumber) {
  EditableCheckpoint edited = EditableCheckpoint::load(dir_.path());
  edited.config.at("quantization_config")["weight_block_size"] = {128};
  replace_by(edited);
  const Finding finding = only(check_checkpoint(dir_.path(), {}).findings);
  EXPECT_EQ(finding.code, ErrorCode::kCorrupt);
  EXPECT_THAT(finding.message, HasSubstr("weight_block_size"));
}

TEST_F(Check, ReadsAnyNamesAsGeneric) {
  EditableCheckpoint edited = EditableCheckpoint::load(dir_.path());
  edited.put_zeros("something.else", DType::kBf16, {4});
  replace_by(edited);
  EXPECT_EQ(check_checkpoint(dir_.path(), {}).findings.size(), 1U);
  EXPECT_THAT(check_checkpoint(dir_.path(), {.family = "generic"}).findings, IsEmpty());
}

TEST_F(Check, AcceptsAnIntactManifest) {
  write_manifest(dir_.path());
  for (const std::size_t threads : {std::size_t{1}, std::size_t{3}}) {
    const CheckResult result = check_checkpoint(dir_.path(), {.threads = threads});
    EXPECT_THAT(result.findings, IsEmpty());
    EXPECT_TRUE(result.has_manifest);
    EXPECT_EQ(result.n_hashed, result.n_tensors);
  }
}

TEST_F(Check, StopsBetweenPiecesWhenAsked) {
  const auto check = [&](bool deep) {
    expect_error(ErrorCode::kInterrupted, {"stopped"}, [&] {
      const StopScope stop([] { return true; }, "it was checked");
      check_checkpoint(dir_.path(), {.deep = deep});
    });
  };
  check(true);
  write_manifest(dir_.path());
  check(false);
}

TEST_F(Check, StopsBeforeEachTableOfPackedWeights) {
  const fs::path packed = fs::path(INGOT_SOURCE_DIR) / "tests/golden/families/qwen3_moe_awq";
  std::size_t n_weights = 0;
  const Checkpoint source = Checkpoint::open(packed);
  for (const LogicalTensor& tensor : source.tensors()) {
    if (tensor.encoding.stored.has(Part::kZeroPoint)) ++n_weights;
  }
  ASSERT_GT(n_weights, 0U);
  std::size_t polls = 0;
  const auto count = [&] {
    ++polls;
    return false;
  };
  {
    const StopScope stop(count, "it was checked");
    check_checkpoint(packed, {});
  }
  EXPECT_GE(polls, 2 * n_weights) << "scales, and tables";
  const std::size_t all = polls;
  polls = 0;
  expect_error(ErrorCode::kInterrupted, {"stopped"}, [&] {
    const StopScope stop([&] { return ++polls == all; }, "it was checked");
    check_checkpoint(packed, {});
  });
}

TEST_F(Check, StopsWhileSideFilesAreHashed) {
  write_manifest(dir_.path());
  int polls = 0;
  const auto count = [&] {
    ++polls;
    return false;
  };
  std::optional<StopScope> scope(std::in_place, count, "it was checked");
  check_checkpoint(dir_.path(), {});
  const int all = polls;
  // Side files come last, so the last poll is during one.
  const Manifest manifest = *read_manifest(dir_.path());
  ASSERT_FALSE(manifest.side_files.empty());
  fs::remove(dir_.path() / manifest.side_files.back().name);
  polls = 0;
  check_checkpoint(dir_.path(), {});
  EXPECT_LT(polls, all);
  scope.reset();
  expect_error(ErrorCode::kInterrupted, {"stopped"}, [&] {
    const StopScope stop([] { return true; }, "it was hashed");
    hash_file(dir_.path() / kManifestName);
  });
}

TEST_F(Check, FindsAFlippedByteInEveryPlace) {
  write_manifest(dir_.path());
  const Fd file = Fd::open_for_reading(dir_.path() / kFirst);
  const SafetensorsHeader header = read_safetensors_header(file);
  const StoredTensor& last = header.tensors.back();

  const auto findings_after_flip = [&](const std::string& name, std::uint64_t offset) {
    flip_byte(dir_ / name, offset);
    CheckResult result = check_checkpoint(dir_.path(), {});
    flip_byte(dir_ / name, offset);
    return result.findings;
  };
  // The last byte of the last tensor.
  std::vector<Finding> found = findings_after_flip(kFirst.string(), header.file_bytes - 1);
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(found[0].code, ErrorCode::kMismatch);
  EXPECT_EQ(found[0].tensor, last.name);
  EXPECT_EQ(found[0].file, kFirst);
  // The header: one bit away from "pt" is "qt", which still parses.
  const std::string bytes = read_all(dir_.path() / kFirst);
  found = findings_after_flip(kFirst.string(), bytes.find("\"pt\"") + 1);
  ASSERT_FALSE(found.empty());
  EXPECT_EQ(found.back().tensor, "");
  EXPECT_THAT(found.back().message, HasSubstr("manifest says"));
  // A side file, and the records.
  found = findings_after_flip("README.md", 0);
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(found[0].file, "README.md");
  found = findings_after_flip(std::string(kRecordsName), 200);
  ASSERT_FALSE(found.empty());
  EXPECT_THAT(found[0].file, HasSubstr(std::string(kRecordsName)));
  // Untouched again.
  EXPECT_THAT(check_checkpoint(dir_.path(), {}).findings, IsEmpty());
}

TEST_F(Check, WithoutHashesComparesSizesOnly) {
  write_manifest(dir_.path());
  flip_byte(dir_.path() / kFirst, fs::file_size(dir_.path() / kFirst) - 1);
  EXPECT_THAT(check_checkpoint(dir_.path(), {.hashes = false}).findings, IsEmpty());
  std::ofstream(dir_ / "README.md", std::ios::app) << "more";
  const CheckResult result = check_checkpoint(dir_.path(), {.hashes = false});
  ASSERT_EQ(result.findings.size(), 1U);
  EXPECT_EQ(result.findings[0].file, "README.md");
  EXPECT_EQ(result.n_hashed, 0U);
}

TEST_F(Check, FindsWhatTheDirectoryLacks) {
  write_manifest(dir_.path());
  fs::remove(dir_ / "README.md");
  const Finding finding = only(check_checkpoint(dir_.path(), {}).findings);
  EXPECT_EQ(finding.code, ErrorCode::kNotFound);
}

TEST_F(Check, ReportsAManifestThatIsNotOne) {
  std::ofstream(dir_ / "ingot.json") << "[]";
  const CheckResult result = check_checkpoint(dir_.path(), {});
  ASSERT_THAT(result.findings, SizeIs(1));
  EXPECT_EQ(result.findings[0].code, ErrorCode::kCorrupt);
  EXPECT_FALSE(result.has_manifest);
}

class CheckSource : public ::testing::Test {
 protected:
  CheckSource() {
    make_tiny(source_.path());
    fs::copy(source_.path(), converted_.path(), fs::copy_options::recursive);
    write_manifest(converted_.path());
  }

  const TempDir source_, converted_;
};

TEST_F(CheckSource, RecognisesItself) {
  const CheckResult result = check_is_source_of(source_.path(), converted_.path(), 2);
  EXPECT_THAT(result.findings, IsEmpty());
  EXPECT_EQ(result.n_hashed, result.n_tensors);
}

TEST_F(CheckSource, NamesEveryTensorThatDiffersOrIsMissing) {
  const TempDir changed;
  EditableCheckpoint edited = EditableCheckpoint::load(source_.path());
  edited.at("model.norm.weight").bytes[0] ^= std::byte{1};
  edited.tensors.erase("model.layers.2.enorm.weight");
  edited.write(changed.path());
  const CheckResult result = check_is_source_of(changed.path(), converted_.path(), 1);
  ASSERT_THAT(result.findings, SizeIs(2));
  EXPECT_THAT(text_of(result.findings), HasSubstr("|model.norm.weight|"));
  EXPECT_THAT(text_of(result.findings), HasSubstr("|model.layers.2.enorm.weight|"));
}

TEST_F(CheckSource, NamesTensorsThatWereNotConverted) {
  const TempDir changed;
  EditableCheckpoint edited = EditableCheckpoint::load(source_.path());
  edited.put_zeros("model.layers.0.self_attn.rotary_emb.inv_freq", DType::kF32, {8});
  edited.write(changed.path());
  const Finding finding = only(check_is_source_of(changed.path(), converted_.path(), 1).findings);
  EXPECT_EQ(finding.tensor, "model.layers.0.self_attn.rotary_emb.inv_freq");
}

TEST_F(CheckSource, TellsAnotherCheckpointOfTheSameShape) {
  const TempDir other;
  make_tiny(other.path(), 1);
  const CheckResult result = check_is_source_of(other.path(), converted_.path(), 2);
  EXPECT_EQ(result.findings.size(), result.n_tensors);
}

TEST_F(CheckSource, NeedsAManifest) {
  fs::remove(converted_ / std::string(kManifestName));
  expect_error(ErrorCode::kNotFound, {"ingot.json"},
               [&] { check_is_source_of(source_.path(), converted_.path(), 1); });
}

}  // namespace
}  // namespace ingot::formats

namespace ingot::check {

using engines::Engine;
using enum ErrorCode;

namespace {

TEST(Findings, ComeOnceErrorsFirstAndKindsCounted) {
  Findings found("/models/out");
  const auto at = [](std::string_view tensor) {
    return violation(kMismatch, "", tensor, "differs");
  };
  found.warning("a", Error(kMismatch, "is odd").in_file("/models/out/config.json"));
  for (const std::string_view tensor : {"1", "2", "3"}) found.add(at(tensor), &found);
  for (const std::string_view tensor : {"x", "y", "x"}) found.add(at(tensor));
  const std::vector<Finding> all = found.take();
  ASSERT_EQ(all.size(), 4U);
  EXPECT_EQ(all[0].tensor, "x");
  EXPECT_EQ(all[1].tensor, "y");
  EXPECT_EQ(all[2].message, "differs (so do 2 more of this kind)");
  EXPECT_EQ(all[3].file, "config.json");
  EXPECT_TRUE(found.take().empty());
}

TEST(EngineFindings, AreThoseOfTheEngine) {
  const auto finding = [](std::string_view rule) {
    Finding made = violation(kUnsupported, "", "", "x");
    made.severity = Severity::kWarning;
    made.rule = rule;
    return made;
  };
  const std::vector<Finding> all = {finding("engine.refused-by-vllm"),
                                    finding("engine.refused-by-sglang"), finding(""),
                                    finding("engine.options-of-vllm")};
  const std::vector<Finding> own = findings_for(Engine::kVllm, all);
  ASSERT_EQ(own.size(), 3U);
  EXPECT_EQ(own[2].severity, Severity::kWarning) << "it loads, and may be right";
  EXPECT_EQ(own[0].rule, "engine.refused-by-vllm");
  EXPECT_EQ(own[0].severity, Severity::kError);
  EXPECT_EQ(own[1].severity, Severity::kWarning);
  EXPECT_EQ(findings_for(Engine::kTransformers, all).size(), 1U);
}

TEST(EngineFindings, OfWrongNumbersAreNoErrorOfTheEngine) {
  for (const auto& [rule, is_silent] :
       {std::pair("nvfp4.fused-global", true), std::pair("awq.unsaid-zeros", true),
        std::pair("model.tied-head", true), std::pair("fused.scheme", false)}) {
    Finding wrong = violation(kMismatch, "", "a.weight", "differs");
    wrong.rule = rule;
    std::vector<engines::EngineVerdict> verdicts(1);
    verdicts[0].engine = &engines::newest(Engine::kSglang);
    verdicts[0].loads = true;
    deny_by_errors({&wrong, 1}, verdicts);
    EXPECT_FALSE(verdicts[0].loads) << rule;
    EXPECT_EQ(verdicts[0].is_silent, is_silent) << rule;
  }
}

TEST(EngineFindings, AMissingTokenizerIsAnOption) {
  Finding missing = violation(kNotFound, "tokenizer.json", "", "there is no tokenizer");
  missing.severity = Severity::kWarning;
  missing.rule = "tokenizer.present";
  EXPECT_EQ(findings_for(Engine::kVllm, {&missing, 1}).at(0).severity, Severity::kWarning);
  std::vector<engines::EngineVerdict> verdicts;
  for (const Engine engine : {Engine::kVllm, Engine::kSglang, Engine::kTrtllm}) {
    engines::EngineVerdict& verdict = verdicts.emplace_back();
    verdict.engine = &engines::newest(engine);
    verdict.loads = true;
  }
  deny_by_errors({&missing, 1}, verdicts);
  EXPECT_TRUE(verdicts[0].loads && verdicts[1].loads);
  EXPECT_THAT(verdicts[0].options, ::testing::ElementsAre("--skip-tokenizer-init"));
  EXPECT_THAT(verdicts[1].options, ::testing::ElementsAre("--skip-tokenizer-init"));
  EXPECT_FALSE(verdicts[2].loads) << "no option is known";
}

}  // namespace
}  // namespace ingot::check
