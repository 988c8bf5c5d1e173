#include "quantize/scheme.h"

#include "formats/base/error.h"
#include "formats/container/bfloat16.h"
#include "formats/container/float16.h"
#include "formats/container/other_float8.h"
#include "quantize/rows.h"
#include "tests/quantize/awkward_matrices.h"
#include "tests/quantize/each_target.h"
#include "tests/support/test.h"

namespace ingot::quantize {
namespace {

using formats::SchemeId;
using Bytes = std::vector<std::byte>;

TEST(SchemeRegistry, EveryRowAnswersToItsOwnId) {
  for (const formats::SchemeFacts& facts : formats::schemes()) {
    const Scheme* scheme = find_scheme(facts.id);
    EXPECT_EQ(half_top_step(facts.id) > 0, facts.quantized || facts.is_read_only) << facts.name;
    if (facts.id == SchemeId::kRaw || facts.is_read_only) {
      EXPECT_EQ(scheme, nullptr);
      continue;
    }
    ASSERT_NE(scheme, nullptr) << facts.name;
    EXPECT_EQ(scheme->id, facts.id) << facts.name;
    EXPECT_NE(scheme->encode, nullptr) << facts.name;
    const bool has_global = facts.id == SchemeId::kNvfp4 || facts.id == SchemeId::kFp8Tensor;
    EXPECT_EQ(scheme->global != nullptr, has_global) << facts.name;
  }
}

TEST(SchemeRegistry, AllButRawConvertIntoThoseThatAreWritten) {
  for (const formats::SchemeFacts& from : formats::schemes()) {
    for (const formats::SchemeFacts& to : formats::schemes()) {
      const bool legal = from.id != SchemeId::kRaw && to.id != SchemeId::kRaw && !to.is_read_only;
      EXPECT_EQ(can_convert(from.id, to.id), legal) << from.name << " to " << to.name;
      if (!legal) {
        EXPECT_EQ(find_transcode(from.id, to.id), nullptr);
      }
    }
  }
}

TEST(EveryScheme, DecodesToWhatItEncodedWithinItsPrecision) {
  const Matrix matrix = random_matrix(140, 416, Shape::kNormal, 31);
  for (const formats::SchemeFacts& facts : formats::schemes()) {
    if (find_scheme(facts.id) == nullptr) continue;
    const double db = sqnr_db(matrix, decode(encode(facts.id, matrix)));
    EXPECT_GT(db, facts.code_bits == 4 ? 17 : facts.code_bits == 8 ? 30 : 50) << facts.name;
  }
}

TEST(EveryScheme, GivenScalesReproduceDecodedValues) {
  for (const AwkwardMatrix& awkward : awkward_matrices(20, 160)) {
    for (const SchemeId id : {SchemeId::kBf16, SchemeId::kF16, SchemeId::kF32, SchemeId::kFp8Block,
                              SchemeId::kFp8Channel, SchemeId::kFp8Tensor, SchemeId::kInt8Channel,
                              SchemeId::kInt8Block, SchemeId::kInt4Group}) {
      SCOPED_TRACE(std::string(formats::scheme_facts(id).name) + ", " + awkward.name);
      const Coded first = encode(id, awkward.matrix);
      const Matrix decoded = decode(first);
      if (first_nonfinite(decoded.view()).has_value()) {
        EXPECT_TRUE(id == SchemeId::kBf16 || id == SchemeId::kF16);
        continue;
      }
      EncodeSetup setup;
      setup.global = first.global;
      if (first.scale_cols != 0 && setup.global == 0) setup.given_scales = first.effective;
      EXPECT_EQ(decode(encode(id, decoded, setup)).values, decoded.values);
    }
  }
}

TEST(EveryScheme, NeverEmitsNanCodesOrBadScales) {
  for (const std::size_t cols : {32U, 160U, 416U}) {
    for (const AwkwardMatrix& awkward : awkward_matrices(7, cols)) {
      for (const formats::SchemeFacts& facts : formats::schemes()) {
        if (!facts.quantized) continue;
        for (const bool divides : {false, true}) {
          for (const Fp8Grid grid : {Fp8Grid::kAmax, Fp8Grid::kUe8m0}) {
            const Coded coded = encode(facts.id, awkward.matrix,
                                       {.options = {.fp8_grid = grid}, .divides = divides});
            SCOPED_TRACE(std::string(facts.name) + ", " + awkward.name);
            for (const float scale : coded.effective) {
              ASSERT_TRUE(std::isfinite(scale) && scale > 0) << scale;
            }
            for (const float value : decode(coded).values) ASSERT_TRUE(std::isfinite(value));
          }
        }
      }
    }
  }
}

TEST(EveryScheme, GivesTheSameBytesOnEveryTarget) {
  for (const AwkwardMatrix& awkward : awkward_matrices(9, 288)) {
    for (const formats::SchemeFacts& facts : formats::schemes()) {
      if (find_scheme(facts.id) == nullptr) continue;
      const Coded expected = encode(facts.id, awkward.matrix);
      const Matrix decoded = decode(expected);
      for_each_target([&] {
        const Coded coded = encode(facts.id, awkward.matrix);
        EXPECT_TRUE(coded.weight == expected.weight) << facts.name << ", " << awkward.name;
        EXPECT_TRUE(coded.scales == expected.scales) << facts.name << ", " << awkward.name;
        EXPECT_EQ(std::memcmp(decode(coded).values.data(), decoded.values.data(),
                              decoded.values.size() * sizeof(float)),
                  0);
      });
    }
  }
}

TEST(EveryScheme, RunsEncodeAsPartsOfTheWhole) {
  const Matrix matrix = random_matrix(256, 256, Shape::kHeavy, 9);
  for (const formats::SchemeFacts& facts : formats::schemes()) {
    if (find_scheme(facts.id) == nullptr) continue;
    const Coded whole = encode(facts.id, matrix);
    Matrix lower(128, 256);
    std::copy(matrix.values.begin() + 128 * 256, matrix.values.end(), lower.values.begin());
    EncodeSetup setup;
    setup.global = whole.global;
    const Coded part = encode(facts.id, lower, setup);
    EXPECT_TRUE(std::equal(part.weight.begin(), part.weight.end(),
                           whole.weight.end() - static_cast<std::ptrdiff_t>(part.weight.size())))
        << facts.name;
    EXPECT_TRUE(std::equal(part.scales.begin(), part.scales.end(),
                           whole.scales.end() - static_cast<std::ptrdiff_t>(part.scales.size())))
        << facts.name;
  }
}

TEST(EveryScheme, EmptyRunIsNothing) {
  for (const formats::SchemeFacts& facts : formats::schemes()) {
    const Scheme* scheme = find_scheme(facts.id);
    if (scheme == nullptr) continue;
    EXPECT_EQ(decode({.scheme = scheme->id}, {}).nan_codes, 0U);
    EXPECT_EQ(scheme->encode({}, {}).overflows, 0U);
  }
}

TEST(EveryScheme, RefusesColumnsThatDoNotFillItsGroups) {
  const Matrix matrix(2, 40);
  for (const SchemeId id : {SchemeId::kNvfp4, SchemeId::kMxfp4, SchemeId::kMxfp8}) {
    EXPECT_THROW(encode(id, matrix), Error);
  }
}

/// A run of random codes with scales over the whole range of F32.
struct Payload {
  Bytes bytes;
  std::vector<float> scales;
  CodedMatrix run;
};

Payload random_payload(SchemeId id, std::size_t rows, std::size_t cols) {
  std::mt19937 random(static_cast<std::uint32_t>(rows * 1000 + cols));
  Payload payload;
  payload.bytes.resize(rows * cols * formats::scheme_facts(id).code_bits / 8);
  for (std::byte& byte : payload.bytes) byte = static_cast<std::byte>(random());
  payload.run = {.scheme = id,
                 .codes = payload.bytes.data(),
                 .rows = rows,
                 .cols = cols,
                 .row_bytes = cols * formats::scheme_facts(id).code_bits / 8};
  if (formats::scheme_facts(id).quantized) {
    payload.run.rows_per_matrix = rows;
    payload.run.block_rows = payload.run.block_cols = 128;
    payload.run.scale_cols = (cols + 127) / 128;
    payload.scales.resize((rows + 127) / 128 * payload.run.scale_cols);
    for (float& scale : payload.scales) {
      scale = std::bit_cast<float>(static_cast<std::uint32_t>(random() % (255U << 23)));
    }
    payload.run.scales = payload.scales;
  }
  return payload;
}

/// 256 codes in each of four rows, with a scale for two rows and 64 columns.
CodedMatrix all_codes(SchemeId id, const Bytes& bytes, std::span<const float> scales) {
  return {.scheme = id,
          .codes = bytes.data(),
          .rows = 4,
          .cols = 256,
          .row_bytes = 256,
          .scales = scales,
          .rows_per_matrix = 4,
          .scale_cols = 4,
          .block_rows = 2,
          .block_cols = 64};
}

TEST(ReadOnlySchemes, DecodeEveryCodeUnderEveryScale) {
  Bytes bytes(4 * 256);
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i);
  const std::array<float, 8> scales = {1, 0.3F, 0x1p-140F, 0x1p120F, 3, 5e-7F, 1e30F, 7};
  const std::pair<SchemeId, formats::DType> kinds[] = {
      {SchemeId::kFp8E5m2, formats::DType::kF8E5M2},
      {SchemeId::kFp8E4m3Fnuz, formats::DType::kF8E4M3Fnuz},
      {SchemeId::kFp8E5m2Fnuz, formats::DType::kF8E5M2Fnuz}};
  for (const auto& [id, dtype] : kinds) {
    SCOPED_TRACE(formats::scheme_name(id));
    const auto* kind = std::ranges::find(formats::kFloat8Kinds, dtype, &formats::Float8Kind::dtype);
    Matrix out(4, 256);
    decode(all_codes(id, bytes, scales), out.mutable_view());
    for (std::size_t r = 0; r < 4; ++r) {
      for (std::size_t c = 0; c < 256; ++c) {
        const float code = formats::float_from_float8(*kind, static_cast<std::uint8_t>(c));
        const float value = out.values[r * 256 + c];
        const float expected = code * scales[r / 2 * 4 + c / 64];
        ASSERT_EQ(std::isnan(value), std::isnan(expected));
        ASSERT_EQ(std::signbit(value), std::signbit(code));
        if (!std::isnan(expected)) {
          ASSERT_EQ(value, expected) << r << ", " << c;
        }
      }
    }
  }
}

TEST(ReadOnlySchemes, TakeZeroPointsAndAnOrderOfInt8) {
  Bytes bytes(4 * 256);
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i);
  const std::array<float, 8> scales = {1, -0.5F, 3, 0.125F, 2, 4, 8, -16};
  const std::array<std::int8_t, 8> zeros = {0, 127, -128, 5, -1, 100, -77, 1};
  std::vector<std::uint32_t> order(256);
  for (std::size_t c = 0; c < 256; ++c) order[c] = static_cast<std::uint32_t>(c * 7 % 4);
  for (const bool has_order : {false, true}) {
    CodedMatrix run = all_codes(SchemeId::kInt8Group, bytes, scales);
    run.zeros = {reinterpret_cast<const std::uint8_t*>(zeros.data()), zeros.size()};
    if (has_order) run.group_order = order;
    Matrix out(4, 256);
    decode(run, out.mutable_view());
    for (std::size_t i = 0; i < bytes.size(); ++i) {
      const std::size_t c = i % 256, group = i / 512 * 4 + (has_order ? order[c] : c / 64);
      const int code = static_cast<std::int8_t>(bytes[i]) - int{zeros[group]};
      ASSERT_EQ(out.values[i], static_cast<float>(code) * scales[group]) << i;
    }
  }
}

TEST(Transcode, EveryFusedPathEqualsDecodeThenEncode) {
  std::size_t n_paths = 0;
  const std::pair<std::size_t, std::size_t> shapes[] = {{1, 1},    {3, 5},     {300, 130},
                                                        {2, 4096}, {3, 10001}, {129, 300}};
  for (const formats::SchemeFacts& from : formats::schemes()) {
    for (const formats::SchemeFacts& to : formats::schemes()) {
      const Transcode transcode = find_transcode(from.id, to.id);
      if (transcode == nullptr) continue;
      ++n_paths;
      EXPECT_EQ(transcode({}, {}).nan_codes, 0U);
      for (const auto& [rows, cols] : shapes) {
        SCOPED_TRACE(::testing::Message()
                     << from.name << " to " << to.name << " " << rows << "x" << cols);
        const Payload payload = random_payload(from.id, rows, cols);
        Matrix values(rows, cols);
        const DecodeFaults expected_faults = decode(payload.run, values.mutable_view());
        const std::size_t row_bytes = cols * to.code_bits / 8;
        Bytes expected(rows * row_bytes);
        find_scheme(to.id)->encode({.values = values.view()},
                                   {.weight = expected.data(), .weight_stride = row_bytes});
        Bytes out(expected.size());
        const DecodeFaults faults = transcode(payload.run, out);
        EXPECT_TRUE(out == expected);
        EXPECT_EQ(faults.nan_codes, expected_faults.nan_codes);
        EXPECT_EQ(faults.first_nan, expected_faults.first_nan);
      }
    }
  }
  EXPECT_EQ(n_paths, 3U);
}

TEST(Transcode, RefusesRowsWithGaps) {
  Payload payload = random_payload(SchemeId::kFp8Block, 2, 64);
  payload.run.cols = 32;
  Bytes out(2 * 64);
  EXPECT_THROW(find_transcode(SchemeId::kFp8Block, SchemeId::kBf16)(payload.run, out), Error);
}

TEST(PlainSchemes, EveryF16WordCastsToItsBf16) {
  Bytes in(2 * 65536), out(2 * 65536);
  for (std::uint32_t i = 0; i < 65536; ++i) {
    const auto word = static_cast<std::uint16_t>(i);
    std::memcpy(in.data() + 2 * i, &word, sizeof word);
  }
  find_transcode(SchemeId::kF16, SchemeId::kBf16)(
      {.scheme = SchemeId::kF16, .codes = in.data(), .rows = 256, .cols = 256, .row_bytes = 512},
      out);
  for (std::uint32_t i = 0; i < 65536; ++i) {
    std::uint16_t word;
    std::memcpy(&word, out.data() + 2 * i, sizeof word);
    ASSERT_EQ(word,
              formats::bf16_from_float(formats::float_from_f16(static_cast<std::uint16_t>(i))))
        << i;
  }
}

TEST(PlainSchemes, F32CastsToTheNearestEvenBf16) {
  const std::pair<std::uint32_t, int> vectors[] = {
      {0x3F808000U, 0x3F80}, {0x3F818000U, 0x3F82}, {0x3F808001U, 0x3F81}, {0xBF818000U, 0xBF82},
      {0x7F7FFFFFU, 0x7F80}, {0x7F800001U, 0x7FC0}, {0x00008000U, 0x0000}, {0x00018000U, 0x0002},
      {0x80000001U, 0x8000}, {0xFF800000U, 0xFF80},
  };
  Bytes in, out(2 * std::size(vectors));
  for (const auto& vector : vectors) {
    const auto bytes = std::bit_cast<std::array<std::byte, 4>>(vector.first);
    in.insert(in.end(), bytes.begin(), bytes.end());
  }
  find_transcode(SchemeId::kF32, SchemeId::kBf16)(
      {.codes = in.data(), .rows = 1, .cols = std::size(vectors)}, out);
  for (std::size_t i = 0; i < std::size(vectors); ++i) {
    std::uint16_t word;
    std::memcpy(&word, out.data() + 2 * i, sizeof word);
    EXPECT_EQ(word, vectors[i].second) << std::hex << vectors[i].first;
  }
}

}  // namespace
}  // namespace ingot::quantize
