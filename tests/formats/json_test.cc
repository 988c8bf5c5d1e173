#include "formats/json/json.h"

#include <string>

#include <gtest/gtest.h>

#include "formats/base/fd.h"
#include "tests/support/cpu_seconds.h"
#include "tests/support/expect_error.h"
#include "tests/support/temp_dir.h"

namespace ingot::formats {
namespace {

using testing::cpu_seconds;
using testing::expect_error;

std::string nested(std::size_t depth) {
  return std::string(depth, '[') + std::string(depth, ']');
}

TEST(Json, KeepsOrderOfKeysAndTypes) {
  const Json value = parse_json(
      R"( {"z": 1, "a": {"y": [true, null, "x"], "b": -2}, "f": 1.5, "u": 18446744073709551615}
)",
      "config.json");
  EXPECT_EQ(value.dump(),
            R"({"z":1,"a":{"y":[true,null,"x"],"b":-2},"f":1.5,"u":18446744073709551615})");
  EXPECT_TRUE(value["u"].is_number_unsigned());
  EXPECT_TRUE(value["a"]["b"].is_number_integer());
  EXPECT_TRUE(value["f"].is_number_float());
}

TEST(Json, AcceptsAnySingleValue) {
  EXPECT_EQ(parse_json("\"text\"", "f"), Json("text"));
  EXPECT_EQ(parse_json(" null\n", "f"), Json(nullptr));
  EXPECT_EQ(parse_json("[]", "f"), Json::array());
  EXPECT_EQ(parse_json("{}", "f"), Json::object());
  EXPECT_EQ(parse_json("-9223372036854775808", "f").get<std::int64_t>(),
            std::numeric_limits<std::int64_t>::min());
}

TEST(Json, RejectsMalformedTextAsCorruptNamingTheFile) {
  const std::string cases[] = {
      "",
      " ",
      "{",
      "[1,]",
      "{\"a\":1,}",
      "{\"a\" 1}",
      "{a:1}",
      "'a'",
      "nul",
      "01",
      "+1",
      ".5",
      "1.",
      "NaN",
      "Infinity",
      "// comment\n1",
      "1 /* comment */",
      "\"unterminated",
      "\"tab\tinside\"",
      "\"bad escape \\x\"",
      "\"lone surrogate \\ud800\"",
      "1e999",                 // beyond double
      "1 2",                   // second value
      "{} {}",                 // second value
      "[]]",                   // garbage
      std::string("{}\0", 3),  // the library would stop here
      std::string("{}\0garbage", 10),
      "\xEF\xBB\xBF{}",        // byte order mark
      "\"\xFF\"",              // not UTF-8
      "\"\xC0\xAF\"",          // overlong
      "\"\xED\xA0\x80\"",      // encoded surrogate
      "\"\xF4\x90\x80\x80\"",  // beyond U+10FFFF
      "\"\xC3\"",              // cut off
      "{\"k\xC3\": 1}",        // in a key
      "18446744073709551616",  // 2^64
      "-9223372036854775809",  // below -2^63
      "[123456789012345678901234567890]",
  };
  for (const std::string& text : cases) {
    SCOPED_TRACE(text);
    expect_error(ErrorCode::kCorrupt, {"dir/config.json: "},
                 [&] { parse_json(text, "dir/config.json"); });
  }
}

TEST(Json, SaysWhatIsWrong) {
  expect_error(ErrorCode::kCorrupt, {"line 2, column 3"}, [] { parse_json("{\n  1}", "f"); });
  expect_error(ErrorCode::kCorrupt, {"byte 4: ", "not valid JSON"},
               [] { parse_json("[1, \x01", "f"); });
  expect_error(ErrorCode::kCorrupt, {"byte order mark"}, [] { parse_json("\xEF\xBB\xBF{}", "f"); });
  expect_error(ErrorCode::kCorrupt, {"byte 2: ", "NUL"},
               [] { parse_json(std::string("{}\0", 3), "f"); });
  expect_error(ErrorCode::kCorrupt, {"integer 18446744073709551616 does not fit 64 bits"},
               [] { parse_json("18446744073709551616", "f"); });
}

TEST(Json, MessagesStayShortAndValidWhateverTheInput) {
  const std::string huge = "\"" + std::string(1'000'000, 'x') + "\xFF\"";
  try {
    parse_json(huge, "f");
    FAIL() << "accepted invalid UTF-8";
  } catch (const Error& error) {
    EXPECT_LT(std::string(error.what()).size(), 400U);
    EXPECT_NO_THROW((void)Json(error.what()).dump());  // throws on invalid UTF-8
  }
}

TEST(Json, RejectsDuplicateKeysAtEveryLevel) {
  const char* cases[] = {
      R"({"k":1,"k":1})",           R"({"k":1,"x":{},"k":{}})", R"({"a":{"b":[{"k":1,"k":2}]}})",
      R"([{"k":1},{"k":1,"k":2}])",
      R"({"k":1,"\u006b":2})",  // the same key, escaped
  };
  for (const char* text : cases) {
    SCOPED_TRACE(text);
    expect_error(ErrorCode::kCorrupt, {"config.json: ", "'k' occurs twice"},
                 [&] { parse_json(text, "config.json"); });
  }
}

TEST(Json, AcceptsOneKeyInDifferentObjects) {
  const char* text = R"({"k":{"k":{"k":1}},"l":[{"k":1},{"k":2}]})";
  EXPECT_EQ(parse_json(text, "f").dump(), text);
}

TEST(Json, LimitsNestingTo64) {
  EXPECT_NO_THROW(parse_json(nested(64), "f"));
  expect_error(ErrorCode::kCorrupt, {"nested deeper than 64"}, [] { parse_json(nested(65), "f"); });
  expect_error(ErrorCode::kCorrupt, {"nested deeper than 64"},
               [] { parse_json(std::string(1'000'000, '['), "f"); });
  std::string objects;
  for (int i = 0; i < 65; ++i) objects += "{\"k\":";
  expect_error(ErrorCode::kCorrupt, {"nested deeper than 64"}, [&] { parse_json(objects, "f"); });
}

TEST(Json, ManyKeysTakeLinearTime) {
  std::string text = "{";
  for (int i = 0; i < 200'000; ++i) text += (i == 0 ? "\"k" : ",\"k") + std::to_string(i) + "\":0";
  text += "}";
  EXPECT_LT(cpu_seconds([&] { EXPECT_EQ(parse_json(text, "f").size(), 200'000U); }), 10);
}

TEST(Json, EventsComeInTheOrderOfTheText) {
  struct Log final : JsonEvents {
    std::string text;
    void begin_object() override { text += "{"; }
    void begin_array() override { text += "["; }
    void end() override { text += "."; }
    void key(std::string&& name) override { text += name + ":"; }
    void value(Json&& scalar) override { text += scalar.dump() + " "; }
  } log;
  parse_json_events(R"({"a":[1,-1,{"b":null}],"a":"x"})", "f", log);
  EXPECT_EQ(log.text, R"({a:[1 -1 {b:null ..a:"x" .)");
}

TEST(Json, EventsReportTheByteInTheFile) {
  struct Ignore final : JsonEvents {
    void begin_object() override {}
    void begin_array() override {}
    void end() override {}
    void key(std::string&& /*name*/) override {}
    void value(Json&& /*scalar*/) override {}
  } ignore;
  expect_error(ErrorCode::kCorrupt, {"byte 9: "},
               [&] { parse_json_events("[!]", "f", ignore, 8); });
}

TEST(Json, TextIsIndentedByTwoWithFinalNewline) {
  Json value = Json::object();
  value["z"] = 1;
  value["a"] = Json::array({1, "\xC3\xA9"});
  EXPECT_EQ(json_text(value), "{\n  \"z\": 1,\n  \"a\": [\n    1,\n    \"\xC3\xA9\"\n  ]\n}\n");
  EXPECT_EQ(parse_json(json_text(value), "f"), value);
}

TEST(Json, TextOfInvalidUtf8IsRefused) {
  expect_error(ErrorCode::kCorrupt, {"cannot be written as JSON"},
               [] { (void)json_text(Json("\xFF")); });
}

TEST(Json, ReadsFilesUpToTheGivenSize) {
  const testing::TempDir dir;
  const auto path = dir / "config.json";
  write_text_file(path, R"({"a":1})");
  EXPECT_EQ(read_json_file(path, 7)["a"], 1);
  expect_error(ErrorCode::kLimit, {"config.json", "7 bytes"}, [&] { read_json_file(path, 6); });
  expect_error(ErrorCode::kNotFound, {"absent.json"},
               [&] { read_json_file(dir / "absent.json", 10); });
  write_text_file(path, "{");
  expect_error(ErrorCode::kCorrupt, {path.string()}, [&] { read_json_file(path, 10); });
}

}  // namespace
}  // namespace ingot::formats
