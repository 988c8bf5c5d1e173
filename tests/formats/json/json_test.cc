#include "formats/json/json.h"

#include "formats/base/fd.h"
#include "formats/json/json_fields.h"
#include "formats/json/json_form.h"
#include "tests/support/cpu_seconds.h"
#include "tests/support/test.h"

namespace ingot::formats {
namespace {

using namespace ingot::testing;
using enum ErrorCode;

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

// Each byte in turn becomes another one, or is left out.
TEST(Json, IsReadAsTheLibraryReadsIt) {
  const std::string document =
      "{\"name\": [0, -1, 20, 1.5e-3, true, false, null], \"\\u00e9\\n\": {\"\xC3\xA9\": "
      "\"\\\\\"},\t"
      "\"whole\": [9999999999999999999, 18446744073709551615]}\r\n ";
  const std::string_view bytes = "{}[],:\"\\ 0-.+eEtu/a\x7F\x1F\xC3\xA9";
  std::size_t n_read = 0;
  const auto compare = [&](const std::string& text) {
    if (!Json::accept(text)) {
      EXPECT_THROW(parse_json(text, "f"), Error) << text;
      return;
    }
    const Json read = Json::parse(text);
    // More bits than 64 are refused here, and rounded there.
    if (read.dump().find("e+") != std::string::npos) return;
    ++n_read;
    EXPECT_EQ(parse_json(text, "f").dump(), read.dump()) << text;
  };
  compare(document);
  for (std::size_t i = 0; i < document.size(); ++i) {
    std::string text = document;
    text.erase(i, 1);
    compare(text);
    for (const char byte : bytes) {
      text = document;
      text[i] = byte;
      compare(text);
    }
  }
  EXPECT_GT(n_read, 200U);
}

TEST(Json, ReadsEverySignAtEveryPlaceOfAText) {
  for (std::size_t size = 0; size < 20; ++size) {
    for (std::size_t at = 0; at <= size; ++at) {
      const std::string before(at, '~'), after(size - at, ' ');
      for (int sign = 0; sign < 128; ++sign) {
        const std::string value = before + static_cast<char>(sign) + after;
        if (sign >= ' ' && sign != '"' && sign != '\\') {
          EXPECT_EQ(parse_json("\"" + value + "\"", "x.json"), Json(value)) << sign << " at " << at;
        } else if (sign < ' ') {
          expect_error(kCorrupt, {"x.json"}, [&] { parse_json("\"" + value + "\"", "x.json"); });
        }
      }
      for (const auto& [written, sign] : std::map<std::string, std::string>{
               {R"(\")", "\""}, {R"(\\)", "\\"}, {R"(\u0001)", "\x01"}, {"é", "é"}}) {
        EXPECT_EQ(parse_json("\"" + before + written + after + "\"", "x.json"),
                  Json(before + sign + after))
            << written << " at " << at;
      }
      expect_error(kCorrupt, {"x.json"},
                   [&] { parse_json("\"" + before + "\xFF" + after + "\"", "x.json"); });
    }
  }
}

// Eight million numbers in 16 MB once took a gigabyte.
TEST(Json, OfAConfigHasALimitOfValues) {
  std::string numbers = "[0";
  for (std::size_t n = 2; n < kMaxConfigValues; ++n) numbers += ",0";
  EXPECT_EQ(parse_config(numbers + "]", "config.json").size(), kMaxConfigValues - 1);
  for (const char* last : {",0]", ",NaN]", ",{}]"}) {
    expect_error(kLimit, {"config.json", "1048576 values"},
                 [&] { parse_config(numbers + last, "config.json"); });
  }
  EXPECT_EQ(parse_json(numbers + ",0]", "tokenizer.json").size(), kMaxConfigValues);
  TempDir dir;
  write_text_file(dir / "tokenizer_config.json", numbers + ",0]");
  expect_error(kLimit, {"tokenizer_config.json"},
               [&] { read_json_file(dir / "tokenizer_config.json", 1 << 24); });
}

TEST(Json, OfAConfigHasALimitOfMembers) {
  std::string members = R"({"a": 0)";
  for (std::size_t n = 1; n < kMaxConfigMembers; ++n) members += ",\"" + std::to_string(n) + "\":0";
  EXPECT_EQ(parse_config(members + "}", "config.json").size(), kMaxConfigMembers);
  expect_error(kLimit, {"config.json", "131072 members"},
               [&] { parse_config(members + R"(,"b": 0})", "config.json"); });
}

/// An array of so many copies of an element.
std::string array_of(std::string_view element, std::size_t n) {
  std::string text = "[0";
  for (std::size_t i = 0; i < n; ++i) text.append(",").append(element);
  return text + "]";
}

// Fewer than a million values: objects and long words take more memory than numbers.
TEST(Json, OfAConfigHasALimitOfMemory) {
  for (const auto& [element, n] :
       {std::pair(R"({"a":{}})", std::size_t{470000}),
        std::pair(R"({"aaaaaaaaaaaaaaaa":"bbbbbbbbbbbbbbbb"})", std::size_t{320000}),
        std::pair(R"("bbbbbbbbbbbbbbbbbbbbbbbb")", std::size_t{700000})}) {
    EXPECT_NO_THROW(parse_config(array_of(element, n / 2), "config.json")) << element;
    expect_error(kLimit, {"config.json", "bytes of memory"},
                 [&] { parse_config(array_of(element, n), "config.json"); });
  }
}

TEST(PythonWords, AreReadAndWrittenAsTheyStood) {
  const std::string text =
      "{\n  \"a\": [\n    0.0,\n    Infinity,\n    -Infinity\n  ],\n  \"b\": NaN,\n  "
      "\"NaN\": \"say \\\"Infinity\\\"\"\n}\n";
  const Json value = parse_config(text, "f");
  EXPECT_EQ(value["a"][1].get<double>(), std::numeric_limits<double>::infinity());
  EXPECT_EQ(value["a"][2].get<double>(), -std::numeric_limits<double>::infinity());
  EXPECT_TRUE(std::isnan(value["b"].get<double>()));
  EXPECT_EQ(value["NaN"], "say \"Infinity\"");
  EXPECT_EQ(json_text(value), text);
  EXPECT_EQ(json_text(value, json_form_of(text)), text);
}

// As tokenizer_config.json of Llama 2, Kimi K2 and many others has it.
TEST(PythonWords, LongIntegersOfFilesAreTheNearestNumber) {
  const TempDir dir;
  const auto path = dir / "tokenizer_config.json";
  write_text_file(path, R"({"a": 1000000000000000019884624838656, "b": [-9223372036854775809, 7],
                            "c": 0.10000000000000000555111512312578, "d": 18446744073709551615,
                            "e": "1000000000000000019884624838656"})");
  const Json read = read_json_file(path, 1 << 20);
  EXPECT_EQ(read["a"], 1e30);
  EXPECT_EQ(read["b"], Json({-0x1p63, 7}));
  EXPECT_EQ(read["c"], 0.1);
  EXPECT_TRUE(read["d"].is_number_unsigned());
  EXPECT_EQ(read["d"], 18446744073709551615U);
  EXPECT_EQ(read["e"], "1000000000000000019884624838656");
}

TEST(PythonWords, AreNoOtherWords) {
  for (const char* text : {"infinity", "+Infinity", "Infinity1", "nan", "[NaN NaN]", "{NaN: 1}"})
    expect_error(ErrorCode::kCorrupt, {"f"}, [&] { static_cast<void>(parse_config(text, "f")); });
}

TEST(PythonWords, AreNoStringsWithControlCharacters) {
  const std::string text = "[\n  Infinity,\n  null,\n  \"\\u0002\",\n  \"null \\\"n\",\n  NaN\n]\n";
  const Json value = parse_config(text, "f");
  EXPECT_EQ(value[2], "\x02");
  EXPECT_EQ(json_text(value), text);
}

TEST(PythonWords, BytesInErrorsAreThoseOfTheFile) {
  const TempDir dir;
  write_text_file(dir / "config.json", "[NaN, -Infinity, 1000000000000000019884624838656, tru]");
  expect_error(kCorrupt, {"byte 53: ", "']' in line 1, column 54"},
               [&] { read_json_file(dir / "config.json", 1 << 10); });
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
    expect_error(kCorrupt, {"dir/config.json: "}, [&] { parse_json(text, "dir/config.json"); });
  }
}

TEST(Json, SaysWhatIsWrong) {
  expect_error(kCorrupt, {"line 2, column 3"}, [] { parse_json("{\n  1}", "f"); });
  expect_error(kCorrupt, {"byte 4: ", "not valid JSON"}, [] { parse_json("[1, \x01", "f"); });
  expect_error(kCorrupt, {"byte order mark"}, [] { parse_json("\xEF\xBB\xBF{}", "f"); });
  expect_error(kCorrupt, {"byte 2: ", "NUL"}, [] { parse_json(std::string("{}\0", 3), "f"); });
  expect_error(kCorrupt, {"integer 18446744073709551616 does not fit 64 bits"},
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
    expect_error(kCorrupt, {"config.json: ", "'k' occurs twice"},
                 [&] { parse_json(text, "config.json"); });
  }
}

TEST(Json, AcceptsOneKeyInDifferentObjects) {
  const char* text = R"({"k":{"k":{"k":1}},"l":[{"k":1},{"k":2}]})";
  EXPECT_EQ(parse_json(text, "f").dump(), text);
}

TEST(Json, LimitsNestingTo64) {
  EXPECT_NO_THROW(parse_json(nested(64), "f"));
  expect_error(kCorrupt, {"nested deeper than 64"}, [] { parse_json(nested(65), "f"); });
  expect_error(kCorrupt, {"nested deeper than 64"},
               [] { parse_json(std::string(1'000'000, '['), "f"); });
  std::string objects;
  for (int i = 0; i < 65; ++i) objects += "{\"k\":";
  expect_error(kCorrupt, {"nested deeper than 64"}, [&] { parse_json(objects, "f"); });
}

TEST(Json, ManyKeysTakeLinearTime) {
  std::string text = "{";
  for (int i = 0; i < 200'000; ++i) text += (i == 0 ? "\"k" : ",\"k") + std::to_string(i) + "\":0";
  text += "}";
  EXPECT_LT(cpu_seconds([&] { EXPECT_EQ(parse_json(text, "f").size(), 200'000U); }), 10);
}

TEST(Json, EventsComeInTheOrderOfTheText) {
  struct Log final : JsonEvents {
    std::string shown;
    void begin_object() override { shown += "{"; }
    void begin_array() override { shown += "["; }
    void end() override { shown += "."; }
    void key(std::string_view name) override { shown.append(name) += ":"; }
    void value(Json&& scalar) override { shown += scalar.dump() + " "; }
  } log;
  parse_json_events(R"({"a":[1,-1,{"b":null}],"a":"x"})", "f", log);
  EXPECT_EQ(log.shown, R"({a:[1 -1 {b:null ..a:"x" .)");
}

TEST(Json, EventsReportTheByteInTheFile) {
  struct Ignore final : JsonEvents {
    void begin_object() override {}
    void begin_array() override {}
    void end() override {}
    void key(std::string_view /*name*/) override {}
    void value(Json&& /*scalar*/) override {}
  } ignore;
  expect_error(kCorrupt, {"byte 9: "}, [&] { parse_json_events("[!]", "f", ignore, 8); });
}

TEST(Json, TextIsIndentedByTwoWithFinalNewline) {
  Json value = Json::object();
  value["z"] = 1;
  value["a"] = Json::array({1, "\xC3\xA9"});
  EXPECT_EQ(json_text(value), "{\n  \"z\": 1,\n  \"a\": [\n    1,\n    \"\xC3\xA9\"\n  ]\n}\n");
  EXPECT_EQ(parse_json(json_text(value), "f"), value);
}

TEST(Json, TextOfInvalidUtf8IsRefused) {
  expect_error(kCorrupt, {"cannot be written as JSON"}, [] { (void)json_text(Json("\xFF")); });
}

TEST(Json, ReadsFilesUpToTheGivenSize) {
  const testing::TempDir dir;
  const auto path = dir / "config.json";
  write_text_file(path, R"({"a":1})");
  EXPECT_EQ(read_json_file(path, 7)["a"], 1);
  expect_error(kLimit, {"config.json", "7 bytes"}, [&] { read_json_file(path, 6); });
  expect_error(kNotFound, {"absent.json"}, [&] { read_json_file(dir / "absent.json", 10); });
  write_text_file(path, "{");
  expect_error(kCorrupt, {path.string()}, [&] { read_json_file(path, 10); });
}

TEST(JsonForm, IsFoundInATextAndGivenBack) {
  const char* texts[] = {
      "{\n  \"a\": {\n    \"b\": [\n      1,\n      2\n    ]\n  },\n  \"c\": []\n}\n",
      "{\n \"a\": {\n  \"b\": 1\n }\n}",
      "{\n\t\"a\": [\n\t\t1\n\t]\n}\n",
      "{\n\"a\": [\n1\n]\n}\n",
      R"({"a,\\": {"b": [1, 2]}, "c": "x, y: \n"})",
      R"({"a\":":{"b":[1,2]},"c":"x, y"})",
      "{\"a\":1}\n",
      "{\n    \"a\": \"\\u00e9\\ud83d\\ude00\"\n}",
      "{\n    \"a\": \"\xC3\xA9\"\n}",
      "[\n    \"a\",\n    {}\n]",
      "[\"a\", {}]",
      "{}",
      "[]\n",
      "null",
      "7\n",
  };
  for (const char* text : texts)
    EXPECT_EQ(json_text(parse_json(text, "f"), json_form_of(text)), text);
  EXPECT_EQ(json_form_of(json_text(Json{{"a", 1}})), JsonForm());
}

TEST(JsonForm, StrangeMarginGivesTheDefault) {
  for (const std::string& margin : {std::string(17, ' '), std::string("\t "), std::string("  \t")})
    EXPECT_EQ(json_form_of("{\n" + margin + "\"a\": 1\n}\n"), JsonForm()) << margin.size();
  EXPECT_EQ(json_form_of("{\r\n  \"a\": 1\r\n}\r\n"), JsonForm());
}

TEST(JsonFields, TakeMissingAndNullForTheDefault) {
  const Json json = {{"nothing", nullptr}};
  const JsonFields fields(json, "a.json");
  for (const char* key : {"nothing", "absent"}) {
    EXPECT_EQ(fields.find(key), nullptr);
    EXPECT_TRUE(fields.boolean(key, true));
    EXPECT_EQ(fields.text(key, "x"), "x");
    EXPECT_FALSE(fields.optional_text(key) || fields.optional_real(key, 0, 1) ||
                 fields.optional_number(key, 9) || fields.optional_number32(key) ||
                 fields.optional_child(key));
    EXPECT_EQ(fields.optional_array(key), nullptr);
    EXPECT_TRUE(fields.optional_numbers(key).empty() && fields.optional_inner_path(key).empty());
  }
}

TEST(JsonFields, NameFileKeyAndFact) {
  const Json json = {{"text", "one"},   {"number", 1},     {"negative", -1},
                     {"fraction", 0.5}, {"huge", 1e300},   {"list", {1, "two"}},
                     {"path", "../a"},  {"null", nullptr}, {"object", {{"inner", true}}}};
  const JsonFields fields(json, "a.json");
  const std::vector<std::pair<std::string, std::function<void()>>> kCases{
      {"'absent' is missing", [&] { return fields.text("absent"); }},
      {"'null' is null, not a string", [&] { return fields.text("null"); }},
      {"'number' is 1, not a string", [&] { return fields.text("number", ""); }},
      {"'number' is 1, not true or false", [&] { return fields.boolean("number", false); }},
      {"'text' is a string, not a number", [&] { return fields.real("text"); }},
      {"'huge' is 1e+300, more than 10", [&] { return fields.optional_real("huge", 0, 10); }},
      {"'negative' is -1, less than 0", [&] { return fields.optional_real("negative", 0, 10); }},
      {"'negative' is -1, less than 0", [&] { return fields.number("negative"); }},
      {"'fraction' is 0.5, not a whole number", [&] { return fields.number("fraction"); }},
      {"'number' is 1, at most 0 is plausible", [&] { return fields.number("number", 0); }},
      {"'object' is an object, not an array", [&] { return fields.array("object"); }},
      {"'list' is a string, not a whole number", [&] { return fields.numbers("list"); }},
      {"'list' is not an object", [&] { return fields.child("list"); }},
      {"'object.inner' is a boolean, not a string",
       [&] { return fields.child("object").text("inner"); }},
      {"'path' is not a path inside the directory", [&] { return fields.inner_path("path"); }},
      {"is not a JSON object", [&] { return JsonFields(json.at("list"), "a.json"); }},
      {"'object' has a key that is not ours", [&] { fields.child("object").expect_no_more(); }}};
  for (const auto& [fact, read] : kCases) {
    SCOPED_TRACE(fact);
    testing::expect_error(kCorrupt, {"a.json: " + fact}, read);
  }
}

}  // namespace
}  // namespace ingot::formats
