#include "formats/container/checkpoint_index.h"

#include "formats/json/json.h"
#include "tests/support/cpu_seconds.h"
#include "tests/support/test.h"

namespace ingot::formats {
namespace {

using testing::expect_error;
using Pairs = std::vector<std::pair<std::string, std::string>>;

CheckpointIndex parse(std::string_view text) {
  return parse_checkpoint_index(text, "model.safetensors.index.json");
}

TEST(CheckpointIndex, KeepsTheOrderOfTheFile) {
  const auto index = parse(R"({"metadata":{"total_size":7},"weight_map":
      {"b":"model-00001-of-000163.safetensors","a":"model-00002-of-00163.safetensors","c":"x.safetensors"}})");
  const Pairs expected = {{"b", "model-00001-of-000163.safetensors"},
                          {"a", "model-00002-of-00163.safetensors"},
                          {"c", "x.safetensors"}};
  EXPECT_EQ(index.weight_map, expected);
}

TEST(CheckpointIndex, MetadataMayBeAnythingAnObjectHolds) {
  const char* cases[] = {
      R"({"weight_map":{"a":"f.safetensors"}})",
      R"({"metadata":{},"weight_map":{"a":"f.safetensors"}})",
      R"({"metadata":null,"weight_map":{"a":"f.safetensors"}})",
      R"({"weight_map":{"a":"f.safetensors"},"metadata":{"total_size":-1.5,"x":[{"weight_map":{}}]}})",
      R"({"metadata":{"total_size":"wrong"},"weight_map":{"a":"f.safetensors"},"other":[1,{"a":2}]})",
      R"({"version":1,"weight_map":{"a":"f.safetensors"},"x":null})",
  };
  for (const char* text : cases) {
    SCOPED_TRACE(text);
    EXPECT_EQ(parse(text).weight_map, (Pairs{{"a", "f.safetensors"}}));
  }
}

TEST(CheckpointIndex, EmptyMapIsEmpty) {
  EXPECT_TRUE(parse(R"({"weight_map":{}})").weight_map.empty());
}

TEST(CheckpointIndex, RefusesMalformedIndicesWithTheirCode) {
  const struct {
    const char* text;
    ErrorCode code;
    const char* fragment;
  } cases[] = {
      {"", ErrorCode::kCorrupt, "JSON"},
      {"{", ErrorCode::kCorrupt, "JSON"},
      {"[]", ErrorCode::kCorrupt, "not a JSON object"},
      {"null", ErrorCode::kCorrupt, "not a JSON object"},
      {"7", ErrorCode::kCorrupt, "not a JSON object"},
      {"{}", ErrorCode::kCorrupt, "has no weight_map"},
      {R"({"metadata":{"weight_map":{}}})", ErrorCode::kCorrupt, "has no weight_map"},
      {R"({"x":{"weight_map":{"a":"f.safetensors"}}})", ErrorCode::kCorrupt, "has no weight_map"},
      {R"({"weight_map":[]})", ErrorCode::kCorrupt, "weight_map is not an object"},
      {R"({"weight_map":null})", ErrorCode::kCorrupt, "weight_map is not an object"},
      {R"({"weight_map":"f"})", ErrorCode::kCorrupt, "weight_map is not an object"},
      {R"({"metadata":[],"weight_map":{}})", ErrorCode::kCorrupt, "metadata is not an object"},
      {R"({"metadata":1,"weight_map":{}})", ErrorCode::kCorrupt, "metadata is not an object"},
      {R"({"weight_map":{"a":1}})", ErrorCode::kCorrupt, "tensor 'a': weight_map has a value"},
      {R"({"weight_map":{"a":null}})", ErrorCode::kCorrupt, "tensor 'a'"},
      {R"({"weight_map":{"a":["f.safetensors"]}})", ErrorCode::kCorrupt, "tensor 'a'"},
      {R"({"weight_map":{"a":{"f":"f.safetensors"}}})", ErrorCode::kCorrupt, "tensor 'a'"},
      {R"({"weight_map":{},"weight_map":{}})", ErrorCode::kCorrupt, "'weight_map' occurs twice"},
      {R"({"metadata":{},"metadata":{},"weight_map":{}})", ErrorCode::kCorrupt,
       "'metadata' occurs twice"},
      {R"({"weight_map":{"a":"f.safetensors","a":"f.safetensors"}})", ErrorCode::kDuplicate,
       "tensor 'a'"},
      {R"({"weight_map":{"a":"f.safetensors","b":"f.safetensors","a":"g.safetensors"}})",
       ErrorCode::kDuplicate, "tensor 'a'"},
      {R"({"weight_map":{"a":"f.safetensors","\u0061":"g.safetensors"}})", ErrorCode::kDuplicate,
       "tensor 'a'"},
      {R"({"weight_map":{}} {})", ErrorCode::kCorrupt, "JSON"},
      {"{\"weight_map\":{\"\xFF\":\"f.safetensors\"}}", ErrorCode::kCorrupt, "UTF-8"},
      {"\xEF\xBB\xBF{\"weight_map\":{}}", ErrorCode::kCorrupt, "byte order mark"},
  };
  for (const auto& row : cases) {
    SCOPED_TRACE(row.text);
    expect_error(row.code, {"model.safetensors.index.json: ", row.fragment},
                 [&] { parse(row.text); });
  }
}

TEST(CheckpointIndex, RefusesFileNamesThatAreNotBare) {
  const char* names[] = {
      "",
      "/etc/passwd.safetensors",
      "sub/f.safetensors",
      "./f.safetensors",
      "..",
      "../f.safetensors",
      "..safetensors",
      "a..b.safetensors",
      "sub\\\\f.safetensors",
      "f.safetensors/",
      "f.bin",
      "f.safetensors ",
      "f.SAFETENSORS",
      "f.safetensors.index.json",
      "f\\n.safetensors",
      "f\\u0000.safetensors",
      "f\\u001b[2J.safetensors",
      "f\\u007f.safetensors",
  };
  for (const char* name : names) {
    SCOPED_TRACE(name);
    expect_error(ErrorCode::kCorrupt, {"tensor 'a': weight_map names a file "},
                 [&] { parse(fmt::format(R"({{"weight_map":{{"a":"{}"}}}})", name)); });
  }
}

TEST(CheckpointIndex, RefusesNamesOfAbsurdLength) {
  const std::string stem(244, 'f');
  EXPECT_NO_THROW(
      parse(fmt::format(R"({{"weight_map":{{"a":"{}.safetensors"}}}})", stem.substr(1))));
  expect_error(ErrorCode::kCorrupt, {"tensor 'a'", "256 bytes"},
               [&] { parse(fmt::format(R"({{"weight_map":{{"a":"{}.safetensors"}}}})", stem)); });
  expect_error(ErrorCode::kLimit, {"name of 65537 bytes"}, [&] {
    parse(fmt::format(R"({{"weight_map":{{"{}":"f.safetensors"}}}})", std::string(65'537, 'x')));
  });
}

TEST(CheckpointIndex, TextIsSortedAndIndented) {
  const CheckpointIndex index{.weight_map = {{"b", "model-00001-of-00002.safetensors"},
                                             {"a.10", "model-00002-of-00002.safetensors"},
                                             {"a.2", "model-00001-of-00002.safetensors"}}};
  EXPECT_EQ(checkpoint_index_text(index, 1'369'062'772'000),
            "{\n"
            "  \"metadata\": {\n"
            "    \"total_size\": 1369062772000\n"
            "  },\n"
            "  \"weight_map\": {\n"
            "    \"a.10\": \"model-00002-of-00002.safetensors\",\n"
            "    \"a.2\": \"model-00001-of-00002.safetensors\",\n"
            "    \"b\": \"model-00001-of-00002.safetensors\"\n"
            "  }\n"
            "}\n");
}

TEST(CheckpointIndex, WrittenAgainHasItsFormAndMetadata) {
  const char* texts[] = {
      "{\n \"metadata\": {\n  \"total_parameters\": 7,\n  \"total_size\": 14,\n  \"by\": \"x\"\n "
      "},\n"
      " \"weight_map\": {\n  \"a\": \"f.safetensors\"\n }\n}",
      R"({"metadata": {"total_size": 14}, "weight_map": {"a": "f.safetensors"}})",
      R"({"metadata":{"x":null,"total_size":14},"weight_map":{"\u00e9":"f.safetensors"}})",
  };
  for (const char* text : texts) EXPECT_EQ(checkpoint_index_text(parse(text), 14), text);
}

TEST(CheckpointIndex, KeepsAFewScalarsOfTheMetadata) {
  const auto index = parse(R"({"other":{"a":1},
      "metadata":{"a":[{"b":1}],"c":{"d":2},"e":3,"e":4},"weight_map":{}})");
  EXPECT_EQ(*index.frame.metadata, Json({{"e", 4}}));
  std::string many;
  for (int i = 0; i < 65; ++i) many += fmt::format("{}\"k{}\":{}", i == 0 ? "" : ",", i, i);
  EXPECT_TRUE(parse(fmt::format(R"({{"metadata":{{{}}},"weight_map":{{}}}})", many))
                  .frame.metadata->empty());
}

TEST(CheckpointIndex, NinetyThousandNamesRoundTripQuickly) {
  CheckpointIndex index;
  for (int i = 0; i < 92'425; ++i) {
    index.weight_map.emplace_back(fmt::format("model.layers.{:06}.weight", i),
                                  shard_file_name(static_cast<std::uint64_t>(i / 568 + 1), 163));
  }
  const double seconds = ingot::testing::cpu_seconds(
      [&] { EXPECT_EQ(parse(checkpoint_index_text(index, 0)).weight_map, index.weight_map); });
  EXPECT_LT(seconds, 10);
}

TEST(ShardFileName, IsNumberedFromOneWithFiveDigits) {
  EXPECT_EQ(shard_file_name(1, 1), "model.safetensors");
  EXPECT_EQ(shard_file_name(3, 163), "model-00003-of-00163.safetensors");
  EXPECT_EQ(shard_file_name(163, 163), "model-00163-of-00163.safetensors");
  EXPECT_EQ(shard_file_name(123'456, 200'000), "model-123456-of-200000.safetensors");
}

}  // namespace
}  // namespace ingot::formats
