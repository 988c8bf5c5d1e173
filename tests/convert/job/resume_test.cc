#include "convert/job/resume.h"

#include "convert/job/journal.h"
#include "convert/output/output_directory.h"
#include "formats/json/json.h"
#include "formats/records/manifest.h"
#include "tests/convert/targets.h"
#include "tests/support/test.h"

namespace ingot::convert {
namespace {

using namespace ingot::testing;
using formats::Json;
using ingot::testing::TempDir;

using Resume = InTempDir;

TEST_F(Resume, TakesOverWhatTheJournalProves) {
  Conversion conversion(small_v32(), dir_ / "out");
  ASSERT_TRUE(run_stopped(conversion, 110));
  conversion.execute.resume = true;
  const ExecuteReport report = conversion.run();
  EXPECT_GT(report.tensors_resumed, 0U);
  EXPECT_EQ(report.tensors_redone, 0U);
}

TEST_F(Resume, BytesThatDidNotSurviveAreWrittenAgain) {
  Conversion conversion(small_v32(), dir_ / "out");
  ASSERT_TRUE(run_stopped(conversion, 110));
  const OutputPaths paths(conversion.output);
  const auto journal = Journal::read(paths.journal);
  ASSERT_FALSE(journal->items.empty());
  for (const auto& staged : std::filesystem::directory_iterator(paths.staged)) {
    std::string text = read_text_file(staged.path(), 1 << 30);
    for (char& c : text) c = static_cast<char>(c ^ 0x55);
    write_text_file(staged.path(), text);
  }
  conversion.execute.resume = true;
  const ExecuteReport report = conversion.run();
  EXPECT_EQ(report.tensors_resumed, 0U);
  EXPECT_GT(report.tensors_redone, 0U);
  EXPECT_TRUE(tree(small_bf16()) == tree(conversion.output));
}

TEST_F(Resume, FinishedOutputIsReportedAndKept) {
  Conversion conversion(small_v32(), dir_ / "out");
  conversion.run();
  const auto before = tree(conversion.output);
  conversion.execute.resume = true;
  EXPECT_TRUE(conversion.run().already_done);
  EXPECT_TRUE(tree(conversion.output) == before);
  conversion.recipe.mtp = MtpPolicy::kDrop;
  expect_error(ErrorCode::kMismatch, {"other options: --mtp convert (now drop)"},
               [&] { conversion.run(); });
}

TEST_F(Resume, RefusesOtherOptionsAndNamesThem) {
  Conversion conversion(small_v32(), dir_ / "out");
  ASSERT_TRUE(run_stopped(conversion, 70));
  conversion.execute.resume = true;
  conversion.recipe.mtp = MtpPolicy::kDrop;
  expect_error(ErrorCode::kMismatch, {"begun with other options: --mtp convert (now drop) ("},
               [&] { conversion.run(); });
  conversion.recipe.mtp = MtpPolicy::kConvert;
  conversion.plan.shards.max_shard_bytes = 1'000'000;
  conversion.recipe.to = formats::SchemeId::kF32;
  conversion.recipe.rules.push_back(parse_rule("lm_head.weight=bf16"));
  expect_error(ErrorCode::kMismatch,
               {"begun with other options", "--max-shard-size not given (now 1000000)",
                "--rule not given (now lm_head.weight=bf16)", "--to bf16 (now f32)", "--force"},
               [&] { conversion.run(); });
}

TEST_F(Resume, TakesFurtherAllowancesAndKeepsThem) {
  Conversion conversion(small_v32(), dir_ / "out");
  conversion.recipe.allow.add("nan-code=lm_head.weight");
  ASSERT_TRUE(run_stopped(conversion, 70));
  conversion.execute.resume = true;
  conversion.recipe.allow.add("zero-scale=*");
  // Far enough to have begun.
  ASSERT_TRUE(run_stopped(conversion, 150));
  conversion.recipe.allow = {};
  conversion.recipe.allow.add("nan-code=lm_head.weight");
  expect_error(ErrorCode::kMismatch,
               {"--allow nan-code=lm_head.weight zero-scale=* (now nan-code=lm_head.weight)",
                "not taken back"},
               [&] { conversion.run(); });
  conversion.recipe.allow.add("zero-scale=*");
  conversion.run();
  Conversion whole(small_v32(), dir_ / "whole");
  whole.recipe.allow = conversion.recipe.allow;
  whole.run();
  EXPECT_TRUE(tree(dir_ / "out") == tree(dir_ / "whole"));
}

TEST_F(Resume, RefusesASourceChangedUnderTheSameTime) {
  Conversion conversion(copy_small(dir_ / "in"), dir_ / "out");
  ASSERT_TRUE(run_stopped(conversion, 70));
  const auto file = dir_ / "in" / "model-00002-of-00002.safetensors";
  const auto time = std::filesystem::last_write_time(file);
  {
    // The last sample ends at the end of the file.
    const Fd fd = Fd::open_for_writing(file, 02);
    std::array<std::byte, 1> last{};
    const std::uint64_t at = std::filesystem::file_size(file) - 1;
    fd.read_exact(last, at);
    last[0] ^= std::byte{1};
    fd.write_exact(last, at);
  }
  std::filesystem::last_write_time(file, time);
  conversion.execute.resume = true;
  expect_error(ErrorCode::kMismatch, {"model-00002-of-00002.safetensors has changed"},
               [&] { conversion.run(); });
}

TEST_F(Resume, RefusesAChangedSideFile) {
  Conversion conversion(copy_small(dir_ / "in"), dir_ / "out");
  ASSERT_TRUE(run_stopped(conversion, 70));
  write_text_file(dir_ / "in" / "tokenizer_config.json", "{}");
  conversion.execute.resume = true;
  expect_error(ErrorCode::kMismatch, {"tokenizer_config.json has changed"},
               [&] { conversion.run(); });
}

// A line of the journal whose hash is right.
std::string journal_line(const std::string& text) {
  return hash_bytes(std::as_bytes(std::span(text))).hex() + " " + text + "\n";
}

TEST_F(Resume, NamesTheVersionThatBeganTheJob) {
  Conversion conversion(small_v32(), dir_ / "out");
  ASSERT_TRUE(run_stopped(conversion, 110));
  const OutputPaths paths(conversion.output);
  const std::string text = read_text_file(paths.journal, 1 << 20);
  const std::size_t end = text.find('\n');
  Json fact = Json::parse(text.substr(33, end - 33));
  fact["identity"]["version"] = "0.0.9";
  write_text_file(paths.journal, journal_line(fact.dump()) + text.substr(end + 1));
  conversion.execute.resume = true;
  expect_error(ErrorCode::kMismatch, {"it was begun by version 0.0.9, this is "},
               [&] { conversion.run(); });
}

TEST_F(Resume, RefusesFactsOfAnotherKindInOwnWords) {
  for (const char* fact :
       {R"({"publishing":5})", R"({"item":0,"source":[],"output":[],"quality":{"x":1}})",
        R"({"item":"0"})", R"({"item":0,"source":5,"output":[]})",
        R"({"item":0,"source":["zz"],"output":[]})", R"({"run":[]})", R"({"run":{"replacing":1}})",
        R"({"consumed":[]})", R"({"item":0,"source":[],"output":[],"global":[]})",
        R"({"publishing":"new","names":5})",
        // Words of a version that had no settings.
        R"({"run":{"replacing":false,"gate":[],"allow":{},"sources":{}}})"}) {
    SCOPED_TRACE(fact);
    Conversion conversion(small_v32(), dir_ / "out");
    std::filesystem::remove_all(conversion.output);
    ASSERT_TRUE(run_stopped(conversion, 100));
    const OutputPaths paths(conversion.output);
    write_text_file(paths.journal, read_text_file(paths.journal, 1 << 20) + journal_line(fact));
    conversion.execute.resume = true;
    try {
      conversion.run();
      ADD_FAILURE() << "no error";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kCorrupt) << error.what();
      EXPECT_NE(std::string(error.what()).find("journal"), std::string::npos) << error.what();
    }
  }
}

TEST_F(Resume, RefusesAManifestOfAnotherKindInOwnWords) {
  Conversion conversion(small_v32(), dir_ / "out");
  conversion.run();
  const Json whole = formats::read_json_file(dir_ / "out/ingot.json", 1 << 20);
  conversion.execute.resume = true;
  for (const char* path : {"/recipe", "/recipe/shards", "/recipe/rules/0/match", "/recipe/allow",
                           "/recipe/choices", "/source", "/source/files", "/source/files/0/name"}) {
    SCOPED_TRACE(path);
    Json changed = whole;
    changed[Json::json_pointer(path)] = 5;
    write_text_file(dir_ / "out/ingot.json", changed.dump());
    try {
      conversion.run();
      ADD_FAILURE() << "no error";
    } catch (const Error& error) {
      EXPECT_NE(error.code(), ErrorCode::kInternal) << error.what();
    }
  }
}

TEST_F(Resume, FinishedOutputRemembersItsAlignment) {
  Conversion conversion(small_v32(), dir_ / "out");
  conversion.plan.shards.align = 4096;
  conversion.run();
  conversion.execute.resume = true;
  EXPECT_TRUE(conversion.run().already_done);
  conversion.plan.shards.align = 0;
  expect_error(ErrorCode::kMismatch, {"--align 4096 (now not given)"}, [&] { conversion.run(); });
}

TEST(ConsumeSource, RefusesLinksWhoseDataWouldStay) {
  const TempDir directory;
  copy_small(directory / "in");
  const auto file = directory / "in" / "model-00002-of-00002.safetensors";
  std::filesystem::rename(file, directory / "blob");
  std::filesystem::create_symlink(directory / "blob", file);
  Conversion conversion(directory / "in", directory / "out");
  conversion.execute.consume_source = true;
  expect_error(ErrorCode::kUnsupported, {"symbolic link"}, [&] { conversion.run(); });
  EXPECT_FALSE(std::filesystem::exists(directory / "out"));
  conversion.execute.consume_source = false;
  conversion.run();
}

std::map<std::uint32_t, TensorResult> item(std::uint32_t id) {
  return {{id, {.source = {{id, 1}, {id, 2}}, .output = {{{id, 3}}}}}};
}

TEST(Journal, ReadsBackWhatWasWritten) {
  const TempDir directory;
  Journal journal = Journal::create(directory / "j", Json{{"plan", "p"}});
  journal.add_results(item(7));
  journal.add_results(item(2));
  journal.add_consumed("model.safetensors");
  const auto contents = Journal::read(directory / "j");
  ASSERT_TRUE(contents.has_value());
  EXPECT_EQ(contents->identity, (Json{{"plan", "p"}}));
  ASSERT_EQ(contents->items.size(), 2U);
  EXPECT_EQ(contents->items.at(7).source, item(7).at(7).source);
  EXPECT_EQ(contents->items.at(2).output, item(2).at(2).output);
  EXPECT_EQ(contents->consumed, std::set<std::string>{"model.safetensors"});
  EXPECT_FALSE(contents->publishing);
}

TEST(Journal, RemembersWhetherPublishingReplacesAnOlderCheckpoint) {
  for (const bool replacing : {false, true}) {
    for (const bool inspected : {false, true}) {
      const TempDir directory;
      Journal journal = Journal::create(directory / "j", Json{{"plan", "p"}});
      journal.add_publishing(replacing, inspected);
      const auto contents = Journal::read(directory / "j");
      EXPECT_TRUE(contents->publishing);
      EXPECT_EQ(contents->replacing, replacing);
      EXPECT_EQ(contents->inspected, inspected);
    }
  }
}

TEST(Journal, TornTailsAreCutAndContinued) {
  const TempDir directory;
  {
    Journal journal = Journal::create(directory / "whole", Json{{"plan", "p"}});
    journal.add_results(item(1));
    journal.add_results(item(2));
  }
  std::ifstream stream(directory / "whole");
  const std::string whole((std::istreambuf_iterator<char>(stream)), {});
  for (std::size_t length = 0; length <= whole.size(); ++length) {
    std::ofstream(directory / "torn") << whole.substr(0, length);
    const auto lines = static_cast<std::size_t>(
        std::count(whole.begin(), whole.begin() + static_cast<long>(length), '\n'));
    const auto contents = Journal::read(directory / "torn");
    ASSERT_EQ(contents.has_value(), lines >= 1) << length;
    if (!contents) continue;
    EXPECT_EQ(contents->items.size(), lines - 1);
    Journal::append_to(directory / "torn", *contents).add_results(item(9));
    EXPECT_EQ(Journal::read(directory / "torn")->items.size(), lines) << length;
  }
}

TEST(Journal, AGarbledLineEndsTheReadablePart) {
  const TempDir directory;
  {
    Journal journal = Journal::create(directory / "j", Json{{"plan", "p"}});
    journal.add_results(item(1));
    journal.add_results(item(2));
  }
  std::fstream file(directory / "j", std::ios::in | std::ios::out | std::ios::binary);
  std::string text((std::istreambuf_iterator<char>(file)), {});
  const std::size_t second = text.find('\n') + 1;
  file.clear();
  file.seekp(static_cast<std::streamoff>(second + 60));
  file.put('#');
  file.close();
  EXPECT_TRUE(Journal::read(directory / "j")->items.empty());
}

TEST(Journal, NoFileIsNoJournal) {
  const TempDir directory;
  EXPECT_FALSE(Journal::read(directory / "missing").has_value());
}

// The results for quantized tensors, to the last bit.
TensorResult written_and_read(const TensorResult& record) {
  const TempDir directory;
  Journal::create(directory / "j", formats::Json{{"plan", "p"}}).add_results({{3, record}});
  return Journal::read(directory / "j")->items.at(3);
}

TEST(JournalQuality, SumsComeBackBitForBit) {
  TensorResult record{.source = {{1, 2}}, .output = {{{3, 4}}, {{5, 6}, {7, 8}}}};
  record.quality = {.elements = 12'345'678'901,
                    .blocks = 96'450'616,
                    .exact_blocks = 17,
                    .saturated = 3,
                    .zeroed = 99,
                    .error2 = 0.1 + 0.2,
                    .reference2 = std::nextafter(1e300, 2e300),
                    .product = -1.0 / 3,
                    .max_error = std::numeric_limits<double>::denorm_min()};
  EXPECT_EQ(written_and_read(record).quality, record.quality);
}

TEST(JournalQuality, PeakOfAGroupRoundTripsExactly) {
  for (const float amax : {0.0F, 0.1F, 0x1p-149F, 0x1.fffffep127F, 1.0F / 3}) {
    TensorResult record{.source = {{1, 2}}, .output = {{{3, 4}}}};
    record.amax = amax;
    EXPECT_EQ(written_and_read(record).amax, amax);
  }
}

TEST(JournalQuality, WhatIsNotThereStaysAway) {
  const TensorResult record = written_and_read({.source = {{1, 2}}, .output = {{{3, 4}}}});
  EXPECT_FALSE(record.amax);
  EXPECT_FALSE(record.quality);
  EXPECT_FALSE(record.inexact_global);
  TensorResult inexact{.source = {{1, 2}}, .output = {{{3, 4}}}};
  inexact.inexact_global = true;
  EXPECT_TRUE(written_and_read(inexact).inexact_global);
}

}  // namespace
}  // namespace ingot::convert
