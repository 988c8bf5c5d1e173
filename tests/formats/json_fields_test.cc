#include "formats/json/json_fields.h"

#include <functional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "formats/json/json.h"
#include "tests/support/expect_error.h"

namespace ingot::formats {
namespace {

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
    testing::expect_error(ErrorCode::kCorrupt, {"a.json: " + fact}, read);
  }
}

}  // namespace
}  // namespace ingot::formats
