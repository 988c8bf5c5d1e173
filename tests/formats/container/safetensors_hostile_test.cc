#include "formats/container/safetensors.h"
#include "tests/formats/container/safetensors_text.h"
#include "tests/support/test.h"

namespace ingot::formats {
namespace {

using namespace ingot::testing;

struct HostileHeader {
  const char* what;
  std::string file;
  const char* fragment;
  ErrorCode code = ErrorCode::kCorrupt;
};

std::vector<HostileHeader> hostile_headers() {
  const std::string a = entry("a", "U8", "[2]", "[0,2]");
  const auto with = [](const std::string& json, std::size_t n_data = 2) {
    return file_text(json, n_data);
  };
  const auto of_shape = [](const char* shape) { return one_tensor("U8", shape, "[0,2]", 2); };
  const auto of_offsets = [](const char* at) { return one_tensor("U8", "[2]", at, 2); };
  using enum ErrorCode;
  std::string deep = R"({"a":{"x":)" + std::string(80, '[') + std::string(80, ']') + "}}";
  std::string many_keys;
  for (int i = 0; i < 65; ++i) many_keys += fmt::format(R"("k{}":0,)", i);
  return {
      // Rule 1: at least eight bytes.
      {"empty file", "", "truncated"},
      {"seven bytes", std::string(7, '\0'), "truncated"},
      // Rule 2: at most 100,000,000 bytes of header.
      {"header one byte too long", length_prefix(100'000'001) + "{}", "100000001", kLimit},
      {"header length of all ones", length_prefix(~std::uint64_t{0}) + "{}", "safetensors", kLimit},
      {"a web page", "<!DOCTYPE html><html></html>", "is a web page"},
      {"an answer of a server", "Entry not found", "begins with the text 'Entry no'"},
      {"GGUF", std::string("GGUF\3\0\0\0", 8) + "{}", "is a GGUF file"},
      {"a pickle", std::string("PK\3\4\24\0\0\0", 8) + "{}", "is a PyTorch pickle"},
      // Rule 3: the header lies within the file.
      {"header longer than the file", length_prefix(3) + "{}",
       "header ends at byte 11, file has 10"},
      {"header of the greatest length, file short", length_prefix(100'000'000) + "{}", "truncated"},
      // Rule 4: UTF-8.
      {"invalid UTF-8 in a name", with(json_object(entry("\xFF", "U8", "[2]", "[0,2]"))), "UTF-8"},
      {"overlong UTF-8", with(json_object(entry("\xC0\xAF", "U8", "[2]", "[0,2]"))), "UTF-8"},
      {"invalid UTF-8 in an ignored value",
       with(R"({"a":{"x":")"
            "\xFF"
            R"(","dtype":"U8","shape":[2],"data_offsets":[0,2]}})"),
       "UTF-8"},
      {"byte order mark", with("\xEF\xBB\xBF{" + a + "}"), "byte order mark"},
      // Rule 5: exactly one JSON value of the expected structure.
      {"no header", with("", 0), "begins with zeros"},
      {"spaces only", with("        ", 0), "JSON"},
      {"cut off", with("{" + a), "JSON"},
      {"trailing comma", with("{" + a + ",}"), "JSON"},
      {"second value", with("{" + a + "}{}"), "JSON"},
      {"garbage after the value", with("{" + a + "} x"), "JSON"},
      {"NUL padding", with(json_object(a) + std::string(4, '\0')), "NUL"},
      {"form feed as padding", with("{" + a + "}\f"), "JSON"},
      {"an array", with("[]", 0), "not a JSON object"},
      {"a string", with("\"a\"", 0), "not a JSON object"},
      {"null", with("null", 0), "not a JSON object"},
      {"entry is a list", with(R"({"a":["U8",[2],[0,2]]})"), "tensor 'a': entry is not an object"},
      {"entry is null", with(R"({"a":null})"), "tensor 'a': entry is not an object"},
      {"entry is a number", with(R"({"a":1})"), "tensor 'a': entry is not an object"},
      {"empty entry", with(R"({"a":{}})"), "tensor 'a': entry has no dtype"},
      {"no dtype", with(R"({"a":{"shape":[2],"data_offsets":[0,2]}})"), "no dtype"},
      {"no shape", with(R"({"a":{"dtype":"U8","data_offsets":[0,2]}})"), "no shape"},
      {"no offsets", with(R"({"a":{"dtype":"U8","shape":[2]}})"), "no data_offsets"},
      {"fields of the entry before do not count",
       with("{" + a + R"(,"b":{"dtype":"U8","shape":[0]}})"),
       "tensor 'b': entry has no data_offsets"},
      {"dtype is a number", with(R"({"a":{"dtype":1,"shape":[2],"data_offsets":[0,2]}})"),
       "dtype is not a string"},
      {"dtype is a list", with(R"({"a":{"dtype":["U8"],"shape":[2],"data_offsets":[0,2]}})"),
       "dtype is not a string"},
      {"dtype is null", with(R"({"a":{"dtype":null,"shape":[2],"data_offsets":[0,2]}})"),
       "dtype is not a string"},
      {"dtype is an object", with(R"({"a":{"dtype":{},"shape":[2],"data_offsets":[0,2]}})"),
       "dtype is not a string"},
      {"shape is a number", of_shape("2"), "shape is not a list"},
      {"shape is null", of_shape("null"), "shape is not a list"},
      {"shape is an object", of_shape("{}"), "shape is not a list"},
      {"shape is nested", of_shape("[[2]]"), "shape is not a list"},
      {"shape holds an object", of_shape("[{}]"), "shape is not a list"},
      {"negative dimension", of_shape("[-2]"), "shape holds -2"},
      {"two negative dimensions", of_shape("[-1,-2]"), "shape holds -1"},
      {"fractional dimension", of_shape("[2.5]"), "shape holds 2.5"},
      {"dimension 2.0", of_shape("[2.0]"), "shape holds 2.0"},
      {"dimension with an exponent", of_shape("[2e0]"), "shape holds"},
      {"dimension as text", of_shape("[\"2\"]"), "shape holds string"},
      {"dimension is true", of_shape("[true]"), "shape holds boolean"},
      {"dimension of 2^64", of_shape("[18446744073709551616]"), "64 bits"},
      {"dimension minus zero", one_tensor("U8", "[-0]", "[0,0]", 0), "shape holds"},
      {"offsets are a number", of_offsets("2"), "data_offsets is not a list"},
      {"no offsets in the list", of_offsets("[]"), "data_offsets is not a list of two"},
      {"one offset", of_offsets("[0]"), "data_offsets is not a list of two"},
      {"three offsets", of_offsets("[0,2,2]"), "data_offsets is not a list of two"},
      {"nested offsets", of_offsets("[[0,2]]"), "data_offsets is not a list of two"},
      {"negative offset", of_offsets("[-2,0]"), "data_offsets holds -2"},
      {"fractional offset", of_offsets("[0.5,2.5]"), "data_offsets holds 0.5"},
      {"offset as text", of_offsets(R"(["0","2"])"), "data_offsets holds string"},
      {"offset null", of_offsets("[null,2]"), "data_offsets holds null"},
      {"offset of 2^64", of_offsets("[0,18446744073709551616]"), "64 bits"},
      {"repeated dtype",
       with(R"({"a":{"dtype":"U8","dtype":"U8","shape":[2],"data_offsets":[0,2]}})"),
       "key 'dtype' occurs twice"},
      {"repeated shape",
       with(R"({"a":{"dtype":"U8","shape":[2],"shape":[2],"data_offsets":[0,2]}})"),
       "key 'shape' occurs twice"},
      {"repeated offsets",
       with(R"({"a":{"dtype":"U8","data_offsets":[0,2],"shape":[2],"data_offsets":[0,2]}})"),
       "key 'data_offsets' occurs twice"},
      {"repeated unknown key",
       with(R"({"a":{"x":1,"dtype":"U8","shape":[2],"x":1,"data_offsets":[0,2]}})"),
       "key 'x' occurs twice"},
      {"malformed JSON in an ignored value",
       with(R"({"a":{"x":[1,},"dtype":"U8","shape":[2],"data_offsets":[0,2]}})"), "JSON"},
      {"ignored value nested too deep", with(deep, 0), "nested deeper"},
      {"metadata value is a number", with(R"({"__metadata__":{"k":1},)" + a + "}"),
       "'k' is not a string"},
      {"metadata value is null", with(R"({"__metadata__":{"k":null},)" + a + "}"),
       "'k' is not a string"},
      {"metadata value is an object", with(R"({"__metadata__":{"k":{}},)" + a + "}"),
       "'k' is not a string"},
      {"metadata value is a list", with(R"({"__metadata__":{"k":[]},)" + a + "}"),
       "'k' is not a string"},
      {"metadata is a list", with(R"({"__metadata__":[],)" + a + "}"),
       "__metadata__ is not an object"},
      {"metadata is a string", with(R"({"__metadata__":"pt",)" + a + "}"),
       "__metadata__ is not an object"},
      {"metadata twice", with(R"({"__metadata__":{},)" + a + R"(,"__metadata__":{}})"),
       "__metadata__ occurs twice"},
      {"metadata key twice", with(R"({"__metadata__":{"k":"1","k":"2"},)" + a + "}"),
       "'k' occurs twice"},
      // Names.
      {"a name twice, same data", with(json_object(a + "," + a)), "tensor 'a'", kDuplicate},
      {"a name twice, data one behind the other",
       with(json_object(a + "," + entry("a", "U8", "[2]", "[2,4]")), 4), "tensor 'a'", kDuplicate},
      {"a name twice, once escaped",
       with(json_object(a + "," + entry("\\u0061", "U8", "[2]", "[2,4]")), 4), "tensor 'a'",
       kDuplicate},
      {"an empty tensor's name twice",
       with(json_object(entry("a", "U8", "[0]", "[0,0]") + "," + entry("a", "U8", "[0]", "[0,0]")),
            0),
       "tensor 'a'", kDuplicate},
      // dtypes of newer formats.
      {"unknown dtype", one_tensor("F2_E1M0", "[2]", "[0,2]", 2), "'F2_E1M0'", kUnsupported},
      {"dtype in lower case", one_tensor("u8", "[2]", "[0,2]", 2), "'u8'", kUnsupported},
      {"empty dtype", one_tensor("", "[2]", "[0,2]", 2), "dtype ''", kUnsupported},
      // Rule 6: no hole, no overlap, nothing backwards.
      {"first tensor not at 0", one_tensor("U8", "[1]", "[1,2]", 2), "a hole"},
      {"a hole", with(json_object(a + "," + entry("b", "U8", "[2]", "[3,5]")), 5),
       "tensor 'b': data start at byte"},
      {"an overlap", with(json_object(a + "," + entry("b", "U8", "[2]", "[1,3]")), 3),
       "an overlap"},
      {"an overlap within the file's size",
       with(json_object(a + "," + entry("b", "U8", "[2]", "[1,3]")), 4), "an overlap"},
      {"an alias", with(json_object(a + "," + entry("b", "U8", "[2]", "[0,2]"))), "an overlap"},
      {"one inside the other",
       with(json_object(entry("a", "U8", "[4]", "[0,4]") + "," + entry("b", "U8", "[2]", "[1,3]")),
            4),
       "an overlap"},
      {"an empty tensor inside another",
       with(json_object(a + "," + entry("b", "U8", "[0]", "[1,1]"))), "an overlap"},
      {"an empty tensor beyond a hole",
       with(json_object(a + "," + entry("b", "U8", "[0]", "[3,3]")), 3), "a hole"},
      {"end before begin", of_offsets("[2,0]"), "end before they begin"},
      // Rule 7: nothing overflows.
      {"elements overflow", of_shape("[8589934592,8589934592]"), "overflows 64 bits"},
      {"elements overflow to 0", one_tensor("U8", "[4294967296,4294967296]", "[0,0]", 0),
       "overflows 64 bits"},
      {"elements overflow before a 0", one_tensor("U8", "[4294967296,4294967296,0]", "[0,0]", 0),
       "overflows 64 bits"},
      {"bits overflow to 0", one_tensor("U64", "[288230376151711744]", "[0,0]", 0),
       "overflows 64 bits"},
      {"greatest dimension",
       one_tensor("U8", "[18446744073709551615]", "[0,18446744073709551615]", 2),
       "overflows 64 bits"},
      // Rule 8: whole bytes.
      {"F4 one element short", one_tensor("F4", "[3]", "[0,2]", 2), "whole bytes"},
      {"F6 of three elements", one_tensor("F6_E3M2", "[3]", "[0,3]", 3), "whole bytes"},
      // Rule 9: the size is that of the shape.
      {"one byte too few", of_shape("[3]"), "takes 3 bytes"},
      {"one byte too many", of_shape("[1]"), "takes 1 bytes"},
      {"wrong width", one_tensor("F32", "[2]", "[0,2]", 2), "takes 8 bytes"},
      {"scalar without bytes", one_tensor("F32", "[]", "[0,0]", 0), "takes 4 bytes"},
      {"empty shape with bytes", one_tensor("F32", "[0]", "[0,4]", 4), "takes 0 bytes"},
      // Rule 10: the data end where the file ends.
      {"one byte missing", one_tensor("U8", "[2]", "[0,2]", 1), "(truncated? fetch it again)"},
      {"all data missing", one_tensor("U8", "[2]", "[0,2]", 0), "(truncated? fetch it again)"},
      {"one byte too many at the end", one_tensor("U8", "[2]", "[0,2]", 3),
       "1 bytes belong to nothing"},
      {"data without tensors", with("{}", 1), "1 bytes belong to nothing"},
      {"end far beyond the file",
       one_tensor("U8", "[1152921504606846976]", "[0,1152921504606846976]", 2), "truncated"},
      // Our own bounds.
      {"a name beyond 64 KiB",
       with(json_object(entry(std::string(65'537, 'x'), "U8", "[2]", "[0,2]"))),
       "name of 65537 bytes", kLimit},
      {"a long dtype", one_tensor(std::string(65, 'F'), "[2]", "[0,2]", 2),
       "dtype is 65 bytes long"},
      {"65 dimensions", one_tensor("U8", dimensions_of_one(65), "[0,1]", 1),
       "more than 64 dimensions", kLimit},
      {"65 unknown keys",
       with("{\"a\":{" + many_keys + R"("dtype":"U8","shape":[2],"data_offsets":[0,2]}})"),
       "more than 64 unknown keys", kLimit},
  };
}

TEST(SafetensorsHeader, RefusesEveryHostileFileWithItsCode) {
  for (const HostileHeader& row : hostile_headers()) {
    SCOPED_TRACE(row.what);
    expect_error(row.code, {"m.safetensors: ", row.fragment}, [&] { parse_header(row.file); });
  }
}

TEST(SafetensorsHeader, RefusesEveryHostileFileOnDiskToo) {
  const TempDir dir;
  const auto path = dir / "m.safetensors";
  for (const HostileHeader& row : hostile_headers()) {
    SCOPED_TRACE(row.what);
    write_text_file(path, row.file);
    expect_error(row.code, {path.string(), row.fragment},
                 [&] { read_safetensors_header(Fd::open_for_reading(path)); });
  }
}

}  // namespace
}  // namespace ingot::formats
