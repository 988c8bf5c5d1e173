#include <limits>

#include <gtest/gtest.h>

#include "formats/json/json.h"
#include "inference/chat/python_text.h"
#include "tests/support/expect_error.h"

// Every expected text is what CPython 3.11 printed: repr() of the float, json.dumps of the value.

namespace ingot::inference {
namespace {

using formats::Json;

TEST(PythonJson, WritesFloatsAsRepr) {
  EXPECT_EQ(python_float(0.1), "0.1");
  EXPECT_EQ(python_float(1.0 / 3), "0.3333333333333333");
  EXPECT_EQ(python_float(1e22), "1e+22");
  EXPECT_EQ(python_float(1e16), "1e+16");
  EXPECT_EQ(python_float(9999999999999998.0), "9999999999999998.0");
  EXPECT_EQ(python_float(1e15), "1000000000000000.0");
  EXPECT_EQ(python_float(123456789.125), "123456789.125");
  EXPECT_EQ(python_float(1e-4), "0.0001");
  EXPECT_EQ(python_float(0.00012345), "0.00012345");
  EXPECT_EQ(python_float(1e-5), "1e-05");
  EXPECT_EQ(python_float(5e-324), "5e-324");
  EXPECT_EQ(python_float(1.7976931348623157e308), "1.7976931348623157e+308");
  EXPECT_EQ(python_float(-0.0), "-0.0");
  EXPECT_EQ(python_float(0.0), "0.0");
  EXPECT_EQ(python_float(100.0), "100.0");
  EXPECT_EQ(python_float(-2.5), "-2.5");
  EXPECT_EQ(python_float(std::numeric_limits<double>::infinity()), "inf");
  EXPECT_EQ(python_float(-std::numeric_limits<double>::infinity()), "-inf");
  EXPECT_EQ(python_float(std::numeric_limits<double>::quiet_NaN()), "nan");
}

Json sample() {
  return formats::parse_json(
      R"({"b": [1, -2, 18446744073709551615, 1.0, 1e300, true, false, null], "a": {},)"
      R"( "é/\"\\": "\b\f\n\r\t\u0000\u001f\u007f世😀", "l": []})",
      "sample");
}

TEST(PythonJson, KeepsKeyOrderAndText) {
  EXPECT_EQ(python_json(sample()),
            "{\"b\": [1, -2, 18446744073709551615, 1.0, 1e+300, true, false, null], \"a\": {}, "
            "\"é/\\\"\\\\\": \"\\b\\f\\n\\r\\t\\u0000\\u001f\x7f世😀\", \"l\": []}");
}

TEST(PythonJson, EscapesWhatIsNotAsciiWhenAsked) {
  EXPECT_EQ(python_json(sample(), {.ensure_ascii = true}),
            "{\"b\": [1, -2, 18446744073709551615, 1.0, 1e+300, true, false, null], \"a\": {}, "
            "\"\\u00e9/\\\"\\\\\": \"\\b\\f\\n\\r\\t\\u0000\\u001f\\u007f\\u4e16\\ud83d\\ude00\", "
            "\"l\": []}");
}

TEST(PythonJson, IndentsWithoutBlanksAtLineEnds) {
  EXPECT_EQ(python_json(sample(), {.indent = "  "}), R"({
  "b": [
    1,
    -2,
    18446744073709551615,
    1.0,
    1e+300,
    true,
    false,
    null
  ],
  "a": {},
  "é/\"\\": "\b\f\n\r\t\u0000\u001f)"
                                                     "\x7f"
                                                     R"(世😀",
  "l": []
})");
}

TEST(PythonJson, SortsKeysAndTakesSeparators) {
  EXPECT_EQ(python_json(sample(), {.sort_keys = true, .item_separator = ",", .key_separator = ":"}),
            "{\"a\":{},\"b\":[1,-2,18446744073709551615,1.0,1e+300,true,false,null],\"l\":[],"
            "\"é/\\\"\\\\\":\"\\b\\f\\n\\r\\t\\u0000\\u001f\x7f世😀\"}");
}

TEST(PythonJson, WritesWhatPythonWritesForInfinity) {
  const double infinity = std::numeric_limits<double>::infinity();
  EXPECT_EQ(python_json(Json::array({infinity, -infinity})), "[Infinity, -Infinity]");
  EXPECT_EQ(python_json(Json(std::numeric_limits<double>::quiet_NaN())), "NaN");
}

TEST(PythonJson, StopsAtItsLimit) {
  const Json many(1000, 1);
  ingot::testing::expect_error(ErrorCode::kLimit, {"100 bytes"},
                               [&] { static_cast<void>(python_json(many, {.max_bytes = 100})); });
}

}  // namespace
}  // namespace ingot::inference
