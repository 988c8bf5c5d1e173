#include "formats/base/fd.h"
#include "formats/files/named_file.h"
#include "formats/json/json.h"
#include "report/document.h"
#include "report/figures.h"
#include "report/report_file.h"
#include "report/rows.h"
#include "report/table_text.h"
#include "tests/support/test.h"

namespace ingot {
namespace {

using formats::Json;

TEST(Rows, BecomeATableByTheirMembers) {
  const Json rows = {
      {{"name", "a"}, {"tensors", 1234}, {"error", {{"cosine", 1.0}}}, {"roles", {"x", "y"}}},
      {{"name", "b"}, {"tensors", 5}, {"error", {{"cosine", nullptr}}}, {"is_kept", true}}};
  const Table table = table_of(
      rows,
      {{"name"},
       {"n", "tensors"},
       {"cosine", "error.cosine", cosine_text},
       {"roles"},
       {"kept", "is_kept"},
       {"left out", "name", shown, false},
       {"both", "", [](const Json& row) { return row.at("name").get<std::string>() + "!"; }}});
  EXPECT_EQ(table_text(table),
            "  name      n  cosine  roles  kept  both\n"
            "  a     1,234       1  x, y         a!\n"
            "  b         5       –         yes   b!\n");
}

TEST(Rows, WithoutAnyAreATableOfTitles) {
  EXPECT_EQ(table_text(table_of(Json::array(), {{"name"}})), "  name\n");
}

TEST(AsDocument, HoldsOnlyTextAndNumbersOfJson) {
  const Json report = {{"name", "\xff"}, {"list", {std::nan(""), 1.5}}, {"error", HUGE_VAL}};
  EXPECT_EQ(as_document(report),
            formats::parse_json(R"({"name":"\ufffd","list":[null,1.5],"error":null})", "a report"));
}

TEST(WriteText, LongestTableGivesUpRowsFirst) {
  Table longer{.columns = {"long"}}, table{.columns = {"short"}};
  for (int i = 0; i < 9; ++i) longer.rows.push_back({std::to_string(i)});
  table.rows = {{"a"}, {"b"}};
  const Document document{.sections = {{"", "", {longer, table}}}};
  EXPECT_EQ(write_text(document, 8),
            "  long\n  0\n  1\n  2\n  ... 6 more (--worst N or --json)\n  short\n  a\n  b\n");
  const std::string whole = write_text(document, 0);
  EXPECT_EQ(std::count(whole.begin(), whole.end(), '\n'), 13);
}

TEST(WriteHtml, NamesMayBreakBehindDots) {
  const Table table{.columns = {name("tensor"), "text"},
                    .rows = {{"model.norm.weight", "no name. here"}}};
  const std::string html =
      write_html({.sections = {{"", "", {table, Remarks{{.name = "a.b", .text = "c.d"}}}}}});
  EXPECT_NE(html.find(">model.<wbr/>norm.<wbr/>weight<"), std::string::npos) << html;
  EXPECT_NE(html.find("<code>a.<wbr/>b</code> c.d"), std::string::npos) << html;
  EXPECT_NE(html.find("<td>no name. here</td>"), std::string::npos) << html;
}

TEST(Markdown, EscapesWhatWouldBeReadAsMarkup) {
  EXPECT_EQ(markdown_text("a|b __c__ [d] *e* <f>"), "a\\|b \\_\\_c\\_\\_ \\[d\\] \\*e\\* &lt;f>");
}

TEST(Figures, NearlyPerfectCosineIsNotOne) {
  EXPECT_EQ(cosine_text(1), "1");
  EXPECT_EQ(cosine_text(0.9999999), "0.999999900");
  EXPECT_EQ(cosine_text(0.99986), "0.999860");
  EXPECT_EQ(cosine_text(std::nan("")), "NaN");
}

TEST(Figures, FewOfManyAreNotNone) {
  EXPECT_EQ(share_text(0, 1000), "0");
  EXPECT_EQ(share_text(1, 1'000'000'000), "<0.001%");
  EXPECT_EQ(share_text(1, 100), "1.000%");
  EXPECT_EQ(share_text(0, 0), "0");
}

TEST(Figures, NoErrorIsExact) {
  EXPECT_EQ(decibel_text(std::numeric_limits<double>::infinity()), "exact");
  EXPECT_EQ(decibel_text(20.128), "20.13");
}

TEST(Figures, BytesHaveThreeDigitsInDecimalUnits) {
  EXPECT_EQ(bytes_text(0), "0 B");
  EXPECT_EQ(bytes_text(999), "999 B");
  EXPECT_EQ(bytes_text(1000), "1.00 kB");
  EXPECT_EQ(bytes_text(9'994), "9.99 kB");
  EXPECT_EQ(bytes_text(9'996), "10.0 kB");
  EXPECT_EQ(bytes_text(99'960), "100 kB");
  EXPECT_EQ(bytes_text(999'499), "999 kB");
  EXPECT_EQ(bytes_text(999'500), "1.00 MB");
  EXPECT_EQ(bytes_text(688'574'839'360), "689 GB");
  EXPECT_EQ(bytes_text(~std::uint64_t{0}), "18.4 EB");
}

TEST(Figures, SecondsGrowIntoMinutesAndHours) {
  EXPECT_EQ(seconds_text(0), "0.0 s");
  EXPECT_EQ(seconds_text(59.94), "59.9 s");
  EXPECT_EQ(seconds_text(59.96), "1m 00s");
  EXPECT_EQ(seconds_text(185), "3m 05s");
  EXPECT_EQ(seconds_text(3599.6), "1h 00m");
  EXPECT_EQ(seconds_text(3720), "1h 02m");
  EXPECT_EQ(seconds_text(-1), "0.0 s");
}

TEST(Figures, CommasStandBetweenThousands) {
  EXPECT_EQ(count_text(0), "0");
  EXPECT_EQ(count_text(999), "999");
  EXPECT_EQ(count_text(1000), "1,000");
  EXPECT_EQ(count_text(~std::uint64_t{0}), "18,446,744,073,709,551,615");
}

TEST(TableText, AlignsByCharactersWithoutTrailingSpace) {
  const Table table{.columns = {"a", number("bytes")}, .rows = {{"\xc3\xa4\xc3\xb6", "1"}, {"c"}}};
  EXPECT_EQ(table_text(table), "  a   bytes\n  \xc3\xa4\xc3\xb6      1\n  c\n");
  EXPECT_EQ(table_text(Table{}), "");
}

TEST(TableText, HasNoLineOfEmptyTitles) {
  EXPECT_EQ(table_text({.columns = {"", ""}, .rows = {{"a\033[2Jb", "c"}}}), "  a\\x1b[2Jb  c\n");
}

TEST(TableText, WordsMoveToFurtherLines) {
  const Table table{.columns = {"name", number("n"), "meaning"},
                    .rows = {{"a", "1", "words that go on and on"}, {"b", "22", "few"}}};
  EXPECT_EQ(table_text(table, 26),
            "  name   n  meaning\n"
            "  a      1  words that go\n"
            "            on and on\n"
            "  b     22  few\n");
  EXPECT_EQ(table_text(table, 200), table_text(table));
}

TEST(TableText, LongWordsLoseTheirMiddle) {
  const Table table{.columns = {""}, .rows = {{"model.layers.3.mlp.experts \xc3\xa4\xc3\xb6"}}};
  EXPECT_EQ(table_text(table, 18), "  model....experts\n  \xc3\xa4\xc3\xb6\n");
}

TEST(TableText, ColumnsGoBeforeNamesBreak) {
  const Table table{
      .columns = {"tensor", number("error"), number("dB"), number("cosine"), "by"},
      .rows = {{"model.layers.3.down_proj.weight", "0.0823", "21.69", "0.996605", "a word"}}};
  EXPECT_EQ(table_text(table, 50),
            "  tensor                            error     dB\n"
            "  model.layers.3.down_proj.weight  0.0823  21.69\n"
            "  no room in 50 columns: cosine, by\n");
  // Two numbers stay.
  EXPECT_EQ(table_text(table, 40),
            "  tensor                    error     dB\n"
            "  model.laye...roj.weight  0.0823  21.69\n"
            "  no room in 40 columns: cosine, by\n");
}

TEST(WrappedText, GoesOnBehindTheLabel) {
  EXPECT_EQ(wrapped_text("disk     12 GB needed at the peak\nfew\n", 24),
            "disk     12 GB needed at\n         the peak\nfew\n");
  EXPECT_EQ(wrapped_text("error: a: is no engine of these\n  lists as this one\n", 20),
            "error: a: is no\n  engine of these\n  lists as this one\n");
  EXPECT_EQ(wrapped_text("error: a: is no engine\n", 0), "error: a: is no engine\n");
}

TEST(WrappedText, CommandsStayWhole) {
  EXPECT_EQ(wrapped_text("  ingot convert IN OUT --to int8   a remark on it\n", 24),
            "  ingot convert IN OUT --to int8\n      a remark on it\n");
  EXPECT_EQ(wrapped_text("serve with   vllm serve OUT --quantization modelopt\n", 24),
            "serve with\n  vllm serve OUT --quantization modelopt\n");
}

TEST(WrappedText, MarksTakeNoColumns) {
  EXPECT_EQ(wrapped_text("\xfe"
                         "bold\xff words\n",
                         10),
            "\xfe"
            "bold\xff words\n");
}

TEST(TableText, TooManyTextsBecomeRecords) {
  const Table table{.columns = {"engine", "scheme", "reason"},
                    .rows = {{"vLLM-Ascend", "int8-channel", ""},
                             {"transformers", "mxfp4-block", "has no kernel for it"}}};
  EXPECT_EQ(table_text(table, 30),
            "  engine  vLLM-Ascend\n  scheme  int8-channel\n\n"
            "  engine  transformers\n  scheme  mxfp4-block\n  reason  has no kernel for it\n");
}

TEST(TableText, NumbersAreNeverBroken) {
  const Table table{.columns = {number("bytes")}, .rows = {{"688,574,839,360"}}};
  EXPECT_EQ(table_text(table, 8), table_text(table));
}

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
