#include "formats/json/json_form.h"

#include <string>

#include <gtest/gtest.h>

#include "formats/json/json.h"

namespace ingot::formats {
namespace {

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

}  // namespace
}  // namespace ingot::formats
