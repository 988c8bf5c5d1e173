#include "formats/container/safetensors.h"

#include "formats/container/tensor.h"
#include "tests/formats/container/safetensors_text.h"
#include "tests/support/cpu_seconds.h"
#include "tests/support/test.h"

namespace ingot::formats {
namespace {

using namespace ingot::testing;

TEST(SafetensorsHeader, ReadsTheTestVector) {
  const std::string file = test_vector();
  ASSERT_EQ(file.size(), 127U);
  const SafetensorsHeader header = parse_header(file);
  EXPECT_EQ(header.data_start, 120U);
  EXPECT_EQ(header.file_bytes, 127U);
  EXPECT_TRUE(header.metadata.empty());
  ASSERT_EQ(header.tensors.size(), 2U);
  EXPECT_EQ(header.tensors[0].name, "a");
  EXPECT_EQ(header.tensors[0].dtype, DType::kF32);
  EXPECT_EQ(header.tensors[0].shape, Shape({1}));
  EXPECT_EQ(header.tensors[0].offset, 120U);
  EXPECT_EQ(header.tensors[0].n_bytes, 4U);
  EXPECT_EQ(header.tensors[1].name, "b");
  EXPECT_EQ(header.tensors[1].dtype, DType::kU8);
  EXPECT_EQ(header.tensors[1].offset, 124U);
  EXPECT_EQ(header.tensors[1].n_bytes, 3U);
}

TEST(SafetensorsHeader, NeedsTheHeaderBytesOnly) {
  const std::string file = test_vector();
  const auto header = parse_safetensors_header(bytes_of(file).first(120), file.size(), "m");
  EXPECT_EQ(header.tensors.size(), 2U);
}

TEST(SafetensorsHeader, SortsTensorsByTheirData) {
  const SafetensorsHeader header = parse_header(file_text(
      json_object(entry("z", "U8", "[2]", "[4,6]") + "," + entry("y", "U8", "[4]", "[0,4]")), 6));
  ASSERT_EQ(header.tensors.size(), 2U);
  EXPECT_EQ(header.tensors[0].name, "y");
  EXPECT_EQ(header.tensors[1].name, "z");
}

TEST(SafetensorsHeader, AcceptsWhatTheFormatAllows) {
  const std::string a = entry("a", "U8", "[2]", "[0,2]");
  const struct {
    const char* what;
    std::string file;
    std::size_t n_tensors;
  } cases[] = {
      {"an empty file", file_text("{}      ", 0), 0},
      {"whitespace on both sides", file_text(" \n\r\t{" + a + "} \t\r\n", 2), 1},
      {"whitespace inside",
       file_text(R"({ "a" : { "dtype" : "U8", "shape" : [ 2 ], "data_offsets" : [ 0 , 2 ] } })", 2),
       1},
      {"an unaligned header", file_text("{" + a + "} ", 2), 1},
      {"other key order", file_text(R"({"a":{"data_offsets":[0,2],"shape":[2],"dtype":"U8"}})", 2),
       1},
      {"unknown keys",
       file_text(
           R"({"a":{"x":{"dtype":[1,{"shape":null}]},"dtype":"U8","y":[[]],"shape":[2],"z":-1.5,"data_offsets":[0,2]}})",
           2),
       1},
      {"a scalar", one_tensor("F32", "[]", "[0,4]", 4), 1},
      {"a dimension of 0", one_tensor("F32", "[3,0,5]", "[0,0]", 0), 1},
      {"several empty tensors at one place",
       file_text(
           json_object(entry("a", "U8", "[0]", "[0,0]") + "," + entry("b", "U8", "[2]", "[0,2]") +
                       "," + entry("c", "U8", "[0,9]", "[2,2]") + "," +
                       entry("d", "U8", "[0]", "[0,0]")),
           2),
       4},
      {"an odd offset for F32",
       file_text(
           json_object(entry("a", "U8", "[1]", "[0,1]") + "," + entry("b", "F32", "[1]", "[1,5]")),
           5),
       2},
      {"metadata", file_text(R"({"__metadata__":{"format":"pt","":""},)" + a + "}", 2), 1},
      {"empty metadata", file_text(R"({"__metadata__":{},)" + a + "}", 2), 1},
      {"null metadata", file_text(R"({"__metadata__":null,)" + a + "}", 2), 1},
      {"metadata at the end", file_text("{" + a + R"(,"__metadata__":{"k":"v"}})", 2), 1},
      {"an empty name", file_text(json_object(entry("", "U8", "[2]", "[0,2]")), 2), 1},
      {"names in UTF-8 and escapes",
       file_text(json_object(entry("\xC3\xA9\\u00e9\\n", "U8", "[2]", "[0,2]")), 2), 1},
      {"64 dimensions", one_tensor("U8", dimensions_of_one(64), "[0,1]", 1), 1},
  };
  for (const auto& row : cases) {
    SCOPED_TRACE(row.what);
    EXPECT_EQ(parse_header(row.file).tensors.size(), row.n_tensors);
  }
}

TEST(SafetensorsHeader, KeepsShapesOfEmptyAndScalarTensors) {
  EXPECT_EQ(parse_header(one_tensor("F32", "[3,0,5]", "[0,0]", 0)).tensors[0].shape,
            Shape({3, 0, 5}));
  EXPECT_EQ(parse_header(one_tensor("F32", "[]", "[0,4]", 4)).tensors[0].shape, Shape());
}

TEST(SafetensorsHeader, KeepsMetadataInTheOrderOfTheFile) {
  const auto header =
      parse_header(file_text(R"({"__metadata__":{"z":"1","format":"pt","a":"\u00e9"}})", 0));
  const std::vector<std::pair<std::string, std::string>> expected = {
      {"z", "1"}, {"format", "pt"}, {"a", "\xC3\xA9"}};
  EXPECT_EQ(header.metadata, expected);
}

TEST(SafetensorsHeader, SubByteTypesMustFillWholeBytes) {
  EXPECT_EQ(parse_header(one_tensor("F4", "[2]", "[0,1]", 1)).tensors[0].n_bytes, 1U);
  EXPECT_EQ(parse_header(one_tensor("F4", "[3,6]", "[0,9]", 9)).tensors[0].n_bytes, 9U);
  EXPECT_EQ(parse_header(one_tensor("F6_E2M3", "[4]", "[0,3]", 3)).tensors[0].n_bytes, 3U);
  EXPECT_EQ(parse_header(one_tensor("F6_E3M2", "[8]", "[0,6]", 6)).tensors[0].n_bytes, 6U);
  const std::pair<const char*, const char*> partial[] = {
      {"F4", "[3]"}, {"F4", "[1]"}, {"F4", "[]"}, {"F6_E2M3", "[3]"}, {"F6_E3M2", "[2,3]"}};
  for (const auto& tensor : partial) {
    for (const char* offsets : {"[0,1]", "[0,2]"}) {
      expect_error(ErrorCode::kCorrupt, {"m.safetensors: tensor 'a': ", "whole bytes"},
                   [&] { parse_header(one_tensor(tensor.first, tensor.second, offsets, 2)); });
    }
  }
}

TEST(SafetensorsHeader, TruncationNamesTensorEndAndFileSize) {
  std::string file = test_vector();
  file.resize(125);
  expect_error(ErrorCode::kCorrupt,
               {"m.safetensors: tensor 'b': data ends at byte 127, file has 125 (truncated? fetch "
                "it again)"},
               [&] { parse_header(file); });
}

TEST(SafetensorsHeader, EveryShorterFileIsRefused) {
  const std::string file = test_vector();
  for (std::size_t n = 0; n < file.size(); ++n) {
    SCOPED_TRACE(n);
    expect_error(ErrorCode::kCorrupt, {"m.safetensors: "},
                 [&] { parse_header(file.substr(0, n)); });
  }
}

TEST(SafetensorsHeader, HeaderBytesThatAreCutOffAreRefused) {
  const std::string file = test_vector();
  expect_error(ErrorCode::kCorrupt, {"cut off after 111"},
               [&] { parse_safetensors_header(bytes_of(file).first(119), file.size(), "m"); });
}

TEST(SafetensorsHeader, SyntaxErrorNamesItsByteInTheFile) {
  expect_error(ErrorCode::kCorrupt, {"m.safetensors: byte 9: "},
               [] { parse_header(file_text("{!}", 0)); });
}

/// Many entries over the same two bytes: refused at the second, before the end, which is no JSON,
/// is read.
TEST(SafetensorsHeader, AliasesOfTheSameBytesAreRefusedEarly) {
  std::string json = "{";
  json += entry("first", "U8", "[2]", "[0,2]");
  while (json.size() < 20'000'000) {
    json += ",";
    json += entry(fmt::format("t{}", json.size()), "U8", "[2]", "[0,2]");
  }
  json += "!";
  const std::string file = file_text(json, 2);
  expect_error(ErrorCode::kCorrupt, {"an overlap"}, [&] { parse_header(file); });
}

TEST(SafetensorsHeader, ReadsTheHeaderBytesOfAFile) {
  const TempDir dir;
  const std::string file = test_vector();
  write_text_file(dir / "m.safetensors", file);
  const Fd fd = Fd::open_for_reading(dir / "m.safetensors");
  const std::vector<std::byte> bytes = read_safetensors_header_bytes(fd);
  ASSERT_EQ(bytes.size(), 120U);
  EXPECT_TRUE(std::equal(bytes.begin(), bytes.end(), bytes_of(file).begin()));
  EXPECT_EQ(read_safetensors_header(fd).tensors.size(), 2U);
}

/// Whatever one byte of a header is changed to, the reader accepts it or throws an Error with the
/// file's name.
TEST(SafetensorsProperty, AnyChangedByteIsAcceptedOrRefusedCleanly) {
  const std::string good = test_vector();
  std::size_t n_accepted = 0;
  for (std::size_t at = 0; at < 120; ++at) {
    for (int value = 0; value < 256; ++value) {
      std::string file = good;
      file[at] = static_cast<char>(value);
      try {
        const SafetensorsHeader header = parse_header(file);
        ASSERT_EQ(header.tensors.size(), 2U);
        ASSERT_EQ(header.tensors[0].n_bytes + header.tensors[1].n_bytes, 7U);
        ++n_accepted;
      } catch (const Error& error) {
        ASSERT_EQ(error.file(), "m.safetensors");
        ASSERT_NE(error.code(), ErrorCode::kInternal) << error.what();
      }
    }
  }
  EXPECT_GT(n_accepted, 120U);  // at least the unchanged file, once per byte
}

TEST(SafetensorsHeader, NinetyThousandTensorsTakeUnderTenSeconds) {
  std::vector<TensorSpec> specs;
  for (std::size_t i = 0; i < 92'425; ++i) {
    specs.push_back(
        {.name = fmt::format("model.layers.{}.mlp.experts.{}.gate_proj.weight_scale_inv{}",
                             i / 1500, i / 6 % 256, i),
         .dtype = DType::kF8E4M3,
         .shape = {2048, 7168}});
  }
  const std::string text = safetensors_header_text(specs);
  EXPECT_GT(text.size(), 12'000'000U);
  const std::uint64_t file_bytes = text.size() + 92'425ULL * 2048 * 7168;
  const double seconds = ingot::testing::cpu_seconds([&] {
    const auto header = parse_safetensors_header(bytes_of(text), file_bytes, "m");
    EXPECT_EQ(header.tensors.size(), 92'425U);
  });
  // Around 0.3 s in a release build; the bound leaves room for sanitizers.
  EXPECT_LT(seconds, 10.0);
  RecordProperty("seconds", fmt::format("{:.3f}", seconds));
}

constexpr std::uint64_t k32 = std::uint64_t{1} << 32;

TEST(Tensor, ShapeTextListsDimensionsOutermostFirst) {
  EXPECT_EQ(shape_text({7168, 2048}), "[7168, 2048]");
  EXPECT_EQ(shape_text({3}), "[3]");
  EXPECT_EQ(shape_text({}), "[]");
}

TEST(Tensor, ElementCountIsTheProductOrNothing) {
  EXPECT_EQ(element_count({}), 1U);
  EXPECT_EQ(element_count({7168, 2048}), 14'680'064U);
  EXPECT_EQ(element_count({5, 0, 7}), 0U);
  EXPECT_EQ(element_count({k32, k32 - 1}), k32 * (k32 - 1));
  EXPECT_EQ(element_count({k32, k32}), std::nullopt);
  // The official reader multiplies from the left and refuses an overflow before it meets the 0.
  EXPECT_EQ(element_count({k32, k32, 0}), std::nullopt);
  EXPECT_EQ(element_count({0, k32, k32}), 0U);
}

TEST(Tensor, ByteCountFollowsTheBitsOfEveryDtype) {
  for (const DTypeFacts& row : kDTypes) {
    EXPECT_EQ(byte_count(row.dtype, {3, 8}), 3U * row.bits) << row.name;
    EXPECT_EQ(byte_count(row.dtype, {0}), 0U) << row.name;
  }
  EXPECT_EQ(byte_count(DType::kF32, {}), 4U);
  EXPECT_EQ(byte_count(DType::kF4, {2}), 1U);
  EXPECT_EQ(byte_count(DType::kF6E2M3, {4}), 3U);
}

TEST(Tensor, ByteCountRefusesPartialBytesAndOverflow) {
  EXPECT_EQ(byte_count(DType::kF4, {3}), std::nullopt);
  EXPECT_EQ(byte_count(DType::kF4, {}), std::nullopt);
  EXPECT_EQ(byte_count(DType::kF6E3M2, {2}), std::nullopt);
  EXPECT_EQ(byte_count(DType::kF64, {k32, k32 / 8}), std::nullopt);
  EXPECT_EQ(byte_count(DType::kU8, {std::numeric_limits<std::uint64_t>::max()}), std::nullopt);
}

TEST(Tensor, MatrixViewStepsByItsStride) {
  std::uint8_t data[] = {0, 1, 2, 3, 4, 5};
  const MatrixView<std::uint8_t> view{.data = data, .rows = 2, .cols = 2, .stride = 3};
  EXPECT_EQ(view.row(1)[0], 3);
  EXPECT_EQ(view.row(1)[1], 4);
}

}  // namespace
}  // namespace ingot::formats
