#include "formats/container/safetensors.h"
#include "tests/formats/container/safetensors_text.h"
#include "tests/support/test.h"

namespace ingot::formats {
namespace {

using namespace ingot::testing;

TEST(SafetensorsWriter, OrdersWiderTypesFirstThenNamesByBytes) {
  EXPECT_TRUE(writes_before(DType::kF32, "z", DType::kU8, "a"));
  EXPECT_FALSE(writes_before(DType::kU8, "a", DType::kF32, "z"));
  EXPECT_TRUE(writes_before(DType::kU64, "z", DType::kI64, "a"));
  EXPECT_TRUE(writes_before(DType::kF32, "a", DType::kF32, "b"));
  EXPECT_TRUE(writes_before(DType::kF32, "z", DType::kF32, "\xC3\xA9"));  // bytes are unsigned
  EXPECT_FALSE(writes_before(DType::kF32, "a", DType::kF32, "a"));
}

TEST(SafetensorsWriter, WritesTheTestVectorWithMetadata) {
  const std::vector<TensorSpec> specs = {{.name = "a", .dtype = DType::kF32, .shape = {1}},
                                         {.name = "b", .dtype = DType::kU8, .shape = {3}}};
  const std::string json =
      R"({"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"b":{"dtype":"U8","shape":[3],"data_offsets":[4,7]}})";
  ASSERT_EQ(json.size(), 137U);
  EXPECT_EQ(safetensors_header_text(specs), length_prefix(144) + json + std::string(7, ' '));
}

TEST(SafetensorsWriter, HeaderWithoutTensorsIsValid) {
  const std::string text = safetensors_header_text({});
  EXPECT_EQ(text.size() % 8, 0U);
  const SafetensorsHeader header = parse_header(text);
  EXPECT_TRUE(header.tensors.empty());
  ASSERT_EQ(header.metadata.size(), 1U);
  EXPECT_EQ(header.metadata[0].first, "format");
  EXPECT_EQ(header.metadata[0].second, "pt");
}

TEST(SafetensorsWriter, RefusesWhatNoReaderAccepts) {
  const auto write = [](std::vector<TensorSpec> specs) { (void)safetensors_header_text(specs); };
  expect_error(ErrorCode::kDuplicate, {"tensor 'a'"}, [&] {
    write({{.name = "a", .dtype = DType::kU8, .shape = {1}},
           {.name = "b", .dtype = DType::kU8, .shape = {1}},
           {.name = "a", .dtype = DType::kU8, .shape = {1}}});
  });
  expect_error(ErrorCode::kInvalidArgument, {"__metadata__"},
               [&] { write({{.name = "__metadata__", .dtype = DType::kU8, .shape = {1}}}); });
  expect_error(ErrorCode::kCorrupt, {"UTF-8"},
               [&] { write({{.name = "\xFF", .dtype = DType::kU8, .shape = {1}}}); });
  expect_error(ErrorCode::kLimit, {"name of 65537 bytes"}, [&] {
    write({{.name = std::string(65'537, 'x'), .dtype = DType::kU8, .shape = {1}}});
  });
  expect_error(ErrorCode::kLimit, {"tensor 'a'", "whole bytes"},
               [&] { write({{.name = "a", .dtype = DType::kF4, .shape = {3}}}); });
  const std::uint64_t huge = std::uint64_t{1} << 60;
  expect_error(ErrorCode::kLimit, {"tensor 'a'", "overflows"}, [&] {
    write({{.name = "a", .dtype = DType::kU8, .shape = {huge, 16}}});
  });
  std::vector<TensorSpec> sum;
  for (int i = 0; i < 17; ++i) {
    sum.push_back({.name = std::to_string(i), .dtype = DType::kU8, .shape = {huge}});
  }
  expect_error(ErrorCode::kLimit, {"overflow 64 bits"}, [&] { write(sum); });
}

TEST(SafetensorsWriter, RefusesAHeaderBeyond100Megabytes) {
  std::vector<TensorSpec> specs;
  for (int i = 0; i < 1600; ++i) {
    specs.push_back({.name = fmt::format("{:065000}", i), .dtype = DType::kU8, .shape = {1}});
  }
  expect_error(ErrorCode::kLimit, {"header of 1600 tensors", "100000000"},
               [&] { (void)safetensors_header_text(specs); });
  specs.resize(1500);
  const std::string text = safetensors_header_text(specs);
  EXPECT_EQ(parse_safetensors_header(bytes_of(text), text.size() + 1500, "m").tensors.size(),
            1500U);
}

/// Any name that UTF-8 and JSON can carry.
std::string random_name(std::mt19937_64& random, std::size_t number) {
  static const std::vector<std::string> kPieces = {"model.",
                                                   "layers",
                                                   ".",
                                                   "_",
                                                   "weight",
                                                   "\"",
                                                   "\\",
                                                   "/",
                                                   "\n",
                                                   "\x01",
                                                   "\x7F",
                                                   " ",
                                                   "{",
                                                   "}",
                                                   "\xC3\xA9",
                                                   "\xE2\x82\xAC",
                                                   "\xF0\x9F\x8E\xB2",
                                                   "__metadata__"};
  std::string name = std::to_string(number);
  for (std::size_t n = random() % 6; n > 0; --n) name += kPieces[random() % kPieces.size()];
  return name;
}

TensorSpec random_spec(std::mt19937_64& random, std::size_t number) {
  TensorSpec spec{.name = random_name(random, number),
                  .dtype = kDTypes[random() % kDTypes.size()].dtype,
                  .shape = {}};
  for (std::size_t rank = random() % 5; rank > 0; --rank) spec.shape.push_back(random() % 6);
  // Sub-byte types: eight elements of any width fill whole bytes.
  if (!byte_count(spec.dtype, spec.shape)) spec.shape.push_back(8);
  return spec;
}

TEST(SafetensorsProperty, WrittenHeadersReadBackAsTheSameTensors) {
  std::mt19937_64 random(20'240'607);
  std::array<std::size_t, kDTypes.size()> seen{};
  for (int round = 0; round < 500; ++round) {
    std::vector<TensorSpec> specs;
    for (std::size_t n = random() % 30; n > 0; --n) specs.push_back(random_spec(random, n));
    std::sort(specs.begin(), specs.end(), [](const TensorSpec& a, const TensorSpec& b) {
      return writes_before(a.dtype, a.name, b.dtype, b.name);
    });
    const std::string text = safetensors_header_text(specs);
    ASSERT_EQ(text.size() % 8, 0U);
    ASSERT_EQ(text[8], '{');
    std::uint64_t end = text.size();
    for (const TensorSpec& spec : specs) end += byte_count(spec.dtype, spec.shape).value();
    const SafetensorsHeader header = parse_safetensors_header(bytes_of(text), end, "m");
    ASSERT_EQ(header.data_start, text.size());
    ASSERT_EQ(header.file_bytes, end);
    ASSERT_EQ(header.tensors.size(), specs.size());
    std::uint64_t offset = text.size();
    for (std::size_t i = 0; i < specs.size(); ++i) {
      const StoredTensor& tensor = header.tensors[i];
      // Tensors without bytes may come anywhere among those that begin at the same place.
      const auto spec = std::find_if(specs.begin(), specs.end(),
                                     [&](const TensorSpec& s) { return s.name == tensor.name; });
      ASSERT_NE(spec, specs.end());
      ASSERT_EQ(tensor.dtype, spec->dtype);
      ASSERT_EQ(tensor.shape, spec->shape);
      ASSERT_EQ(tensor.offset, offset);
      ASSERT_EQ(tensor.n_bytes, byte_count(spec->dtype, spec->shape));
      ++seen.at(static_cast<std::size_t>(tensor.dtype));
      offset += tensor.n_bytes;
    }
    if (end > text.size()) {
      expect_error(ErrorCode::kCorrupt, {"truncated"},
                   [&] { parse_safetensors_header(bytes_of(text), end - 1, "m"); });
    }
    expect_error(ErrorCode::kCorrupt, {"belong to nothing"},
                 [&] { parse_safetensors_header(bytes_of(text), end + 1, "m"); });
  }
  for (const DTypeFacts& row : kDTypes) {
    EXPECT_GT(seen.at(static_cast<std::size_t>(row.dtype)), 0U) << row.name;
  }
}

}  // namespace
}  // namespace ingot::formats
