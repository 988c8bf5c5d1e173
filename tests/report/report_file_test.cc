#include "report/report_file.h"

#include <gtest/gtest.h>

#include "formats/base/fd.h"
#include "formats/files/named_file.h"
#include "report/document.h"
#include "tests/support/expect_error.h"
#include "tests/support/temp_dir.h"

namespace ingot {
namespace {

namespace fs = std::filesystem;
using testing::expect_error;
using testing::TempDir;
using enum ErrorCode;

std::string text_of(const fs::path& file) {
  return read_text_file(file, 1 << 20);
}

Document document(const std::string& finding) {
  return {.title = "Verification",
          .verdict = "PASS",
          .finding = finding,
          .subject = "a and b",
          .made_by = "ingot verify 0.1.0"};
}

struct Sample {
  ReportForm form;
  std::string text;
};
std::vector<Sample> samples() {
  const std::string long_finding(1000, 'x');
  return {
      {ReportForm::kPage, write_html(document(long_finding))},
      {ReportForm::kMarkdown, write_markdown(document(long_finding))},
      {ReportForm::kEventLog, "[2026-11-28 19:00:00.123] [ingot] [info] begin\n"},
      {ReportForm::kStepLog, "{\"step\":0,\"tokens\":{}}\n"},
      {ReportForm::kManPage,
       ".TH ingot\\-convert 1 \"\" \"ingot 0.1.0\" \"ingot manual\"\n.SH NAME\n"},
  };
}

TEST(ReportFile, ReplacesOnlyAnEarlierReportOfItsForm) {
  const TempDir dir;
  const fs::path file = dir / "report";
  const std::vector<Sample> all = samples();
  for (const Sample& there : all) {
    for (const Sample& next : all) {
      write_text_file(file, there.text);
      if (there.form == next.form) {
        write_report_file(file, next.text, next.form);
      } else {
        expect_error(kExists, {file.string(), "stays as it is"},
                     [&] { write_report_file(file, "new", next.form); });
      }
      EXPECT_EQ(text_of(file), there.text);
    }
  }
}

TEST(ReportFile, KeepsWhatItDoesNotKnow) {
  const TempDir dir;
  const fs::path file = dir / "mine";
  const std::string page = write_html(document("found"));
  for (const std::string& mine :
       {std::string("notes\n"), std::string("{\"model_type\": \"llama\"}"),
        std::string("## Notes\n"), page.substr(0, page.size() - 9),
        std::string("<!DOCTYPE html>\n<html lang=\"en\">\n"), std::string("[a] [other] [info] b\n"),
        std::string(3, '\0')}) {
    write_text_file(file, mine);
    for (const Sample& next : samples())
      expect_error(kExists, {}, [&] { require_report_place(file, next.form); });
    EXPECT_EQ(text_of(file), mine);
  }
}

TEST(ReportFile, TakesTheNameOfAnEmptyFile) {
  const TempDir dir;
  write_text_file(dir / "empty", "");
  write_report_file(dir / "empty", "text", ReportForm::kPage);
  EXPECT_EQ(text_of(dir / "empty"), "text");
}

TEST(ReportFile, IsNeverInTheFolderOfAModel) {
  const std::vector<std::vector<std::string>> models = {{"config.json", "weights.safetensors"},
                                                        {"ingot.json"},
                                                        {"model-00001-of-00002.safetensors"},
                                                        {"model.safetensors.index.json"},
                                                        {"params.json", "consolidated.safetensors"},
                                                        {".ingot-partial/journal.jsonl"},
                                                        {"adapter_config.json"}};
  const std::string page = write_html(document("found"));
  for (const auto& names : models) {
    const TempDir dir;
    fs::create_directories(dir / ".ingot-partial");
    if (!names.front().starts_with(".")) fs::remove(dir / ".ingot-partial");
    for (const std::string& name : names) write_text_file(dir / name, "{}");
    fs::create_directory(dir / "docs");
    write_text_file(dir / "docs/old.html", page);
    fs::create_symlink(dir.path(), dir / "docs/link");
    for (const char* name : {"new.html", "docs/new.html", "docs/old.html", "docs/link/new.html"}) {
      expect_error(kInvalidArgument, {"folder of a model"},
                   [&] { write_report_file(dir / name, page, ReportForm::kPage); });
      if (std::string_view(name) == "docs/old.html") continue;
      expect_error(kInvalidArgument, {"folder of a model"},
                   [&] { write_absent_file(dir / name, page); });
      EXPECT_FALSE(fs::exists(dir / name));
    }
  }
}

TEST(ReportFile, IsNowhereInAModelOfTheHubsCache) {
  const TempDir dir;
  const fs::path model = dir / "models--org--name";
  for (const char* folder : {"snapshots/abc", "blobs", "refs"})
    fs::create_directories(model / folder);
  for (const char* name : {"new.html", "refs/new.html", "blobs/new.html", "snapshots/abc/new.html"})
    expect_error(kInvalidArgument, {"folder of a model"},
                 [&] { write_report_file(model / name, "page", ReportForm::kPage); });
  write_report_file(dir / "new.html", "page", ReportForm::kPage);
}

TEST(ReportFile, MayLieBesideStatisticsAndOtherConfigs) {
  const TempDir dir;
  write_text_file(dir / "statistics.safetensors", "");
  write_report_file(dir / "load.html", "page", ReportForm::kPage);
  fs::remove(dir / "statistics.safetensors");
  write_text_file(dir / "config.json", "{}");
  write_report_file(dir / "other.html", "page", ReportForm::kPage);
}

TEST(ReportFile, GoesThroughALinkToTheReport) {
  const TempDir dir, other;
  const std::string page = write_html(document("found"));
  write_text_file(other / "real.html", page);
  fs::create_symlink(other / "real.html", dir / "link.html");
  write_report_file(dir / "link.html", page, ReportForm::kPage);
  EXPECT_TRUE(fs::is_symlink(dir / "link.html"));
  EXPECT_EQ(text_of(other / "real.html"), page);
  fs::remove(other / "real.html");
  expect_error(kExists, {"link to nothing"},
               [&] { write_report_file(dir / "link.html", page, ReportForm::kPage); });
}

TEST(ReportFile, LeavesOtherNamesOfTheOldFileAlone) {
  const TempDir dir;
  const std::string before = write_html(document("before")), after = write_html(document("after"));
  write_text_file(dir / "a.html", before);
  fs::create_hard_link(dir / "a.html", dir / "b.html");
  fs::permissions(dir / "a.html", fs::perms::owner_read | fs::perms::owner_write);
  write_report_file(dir / "a.html", after, ReportForm::kPage);
  EXPECT_EQ(text_of(dir / "a.html"), after);
  EXPECT_EQ(text_of(dir / "b.html"), before);
  EXPECT_EQ(fs::status(dir / "a.html").permissions(),
            fs::perms::owner_read | fs::perms::owner_write);
  EXPECT_EQ(std::distance(fs::directory_iterator(dir.path()), fs::directory_iterator()), 2);
}

TEST(NamedFile, IsMadeOnlyWhereNothingIs) {
  const TempDir dir;
  write_absent_file(dir / "map.json", "one");
  expect_error(kExists, {"map.json"}, [&] { write_absent_file(dir / "map.json", "two"); });
  EXPECT_EQ(text_of(dir / "map.json"), "one");
  fs::create_symlink(dir / "nothing", dir / "link");
  expect_error(kExists, {"link"}, [&] { write_absent_file(dir / "link", "two"); });
  expect_error(kNotFound, {"no such folder"},
               [&] { write_absent_file(dir / "no/map.json", "two"); });
}

}  // namespace
}  // namespace ingot
