#include "quantize/scheme.h"

#include <array>
#include <bit>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "formats/bfloat16.h"
#include "formats/float16.h"

namespace ingot::quantize {
namespace {

using formats::SchemeId;
using Bytes = std::vector<std::byte>;

/// A run of rows and the memory it points into.
struct Payload {
  Bytes payload;
  std::vector<float> scales;
  EncodedRows rows;
};

Payload random_payload(const Scheme& scheme, std::size_t rows, std::size_t cols) {
  std::mt19937 random(static_cast<std::uint32_t>(rows * 1000 + cols));
  Payload run;
  run.payload.resize(rows * cols * scheme.element_bytes);
  for (std::byte& byte : run.payload) byte = static_cast<std::byte>(random());
  run.rows = {.weight = run.payload.data(), .rows = rows, .cols = cols};
  if (scheme.id == SchemeId::kFp8Block) {
    run.rows.rows_per_matrix = rows;
    run.rows.block_rows = 128;
    run.rows.block_cols = 128;
    run.rows.scale_cols = (cols + 127) / 128;
    run.scales.resize((rows + 127) / 128 * run.rows.scale_cols);
    for (float& scale : run.scales) {
      scale = std::bit_cast<float>(static_cast<std::uint32_t>(random() % (255U << 23)));
    }
    run.rows.scales = run.scales;
  }
  return run;
}

Bytes decode_and_encode(const Scheme& from, const Scheme& to, const Payload& run,
                        DecodeFaults& faults) {
  const std::size_t rows = run.rows.rows;
  const std::size_t cols = run.rows.cols;
  std::vector<float> floats(rows * cols);
  faults =
      from.decode(run.rows, {.data = floats.data(), .rows = rows, .cols = cols, .stride = cols});
  Bytes out(rows * cols * to.element_bytes);
  to.encode({.data = floats.data(), .rows = rows, .cols = cols, .stride = cols}, out);
  return out;
}

TEST(SchemeRegistry, EveryRowAnswersToItsOwnId) {
  for (const formats::SchemeFacts& facts : formats::schemes()) {
    const Scheme* scheme = find_scheme(facts.id);
    if (facts.id == SchemeId::kRaw) {
      EXPECT_EQ(scheme, nullptr);
      continue;
    }
    ASSERT_NE(scheme, nullptr) << facts.name;
    EXPECT_EQ(scheme->id, facts.id) << facts.name;
    EXPECT_NE(scheme->decode, nullptr) << facts.name;
  }
}

TEST(SchemeRegistry, OnlyBf16AndF32CanBeWritten) {
  for (const formats::SchemeFacts& from : formats::schemes()) {
    for (const formats::SchemeFacts& to : formats::schemes()) {
      const bool legal =
          from.id != SchemeId::kRaw && (to.id == SchemeId::kBf16 || to.id == SchemeId::kF32);
      EXPECT_EQ(find_transcode(from.id, to.id) != nullptr, legal) << from.name << " to " << to.name;
    }
  }
}

TEST(Transcode, EveryPairEqualsDecodeThenEncode) {
  std::size_t n_pairs = 0;
  const std::pair<std::size_t, std::size_t> shapes[] = {{1, 1},    {3, 5},     {300, 130},
                                                        {2, 4096}, {3, 10001}, {129, 300}};
  for (const formats::SchemeFacts& from : formats::schemes()) {
    for (const formats::SchemeFacts& to : formats::schemes()) {
      const Transcode transcode = find_transcode(from.id, to.id);
      if (transcode == nullptr) continue;
      ++n_pairs;
      for (const auto& [rows, cols] : shapes) {
        SCOPED_TRACE(::testing::Message()
                     << from.name << " to " << to.name << " " << rows << "x" << cols);
        const Payload run = random_payload(*find_scheme(from.id), rows, cols);
        DecodeFaults expected_faults;
        const Bytes expected =
            decode_and_encode(*find_scheme(from.id), *find_scheme(to.id), run, expected_faults);
        Bytes out(expected.size());
        const DecodeFaults faults = transcode(run.rows, out);
        EXPECT_TRUE(out == expected);
        EXPECT_EQ(faults.nan_codes, expected_faults.nan_codes);
        EXPECT_EQ(faults.first_nan, expected_faults.first_nan);
      }
    }
  }
  EXPECT_EQ(n_pairs, 8U);
}

TEST(Transcode, EmptyRunIsNothing) {
  for (const formats::SchemeFacts& from : formats::schemes()) {
    for (const formats::SchemeFacts& to : formats::schemes()) {
      const Transcode transcode = find_transcode(from.id, to.id);
      if (transcode != nullptr) {
        EXPECT_EQ(transcode({}, {}).nan_codes, 0U) << from.name;
      }
    }
  }
}

TEST(PlainSchemes, EveryF16WordCastsToTheBf16OfItsValue) {
  Bytes in(2 * 65536), out(2 * 65536);
  for (std::uint32_t i = 0; i < 65536; ++i) {
    const auto word = static_cast<std::uint16_t>(i);
    std::memcpy(in.data() + 2 * i, &word, sizeof word);
  }
  find_transcode(SchemeId::kF16, SchemeId::kBf16)({.weight = in.data(), .rows = 256, .cols = 256},
                                                  out);
  for (std::uint32_t i = 0; i < 65536; ++i) {
    std::uint16_t word;
    std::memcpy(&word, out.data() + 2 * i, sizeof word);
    ASSERT_EQ(word,
              formats::bf16_from_float(formats::float_from_f16(static_cast<std::uint16_t>(i))))
        << i;
  }
}

TEST(PlainSchemes, F32CastsToTheNearestBf16WithTiesToEven) {
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
      {.weight = in.data(), .rows = 1, .cols = std::size(vectors)}, out);
  for (std::size_t i = 0; i < std::size(vectors); ++i) {
    std::uint16_t word;
    std::memcpy(&word, out.data() + 2 * i, sizeof word);
    EXPECT_EQ(word, vectors[i].second) << std::hex << vectors[i].first;
  }
}

}  // namespace
}  // namespace ingot::quantize
