#include "quantize/kernels/fp8_cast.h"

#include "tests/quantize/each_target.h"
#include "tests/support/test.h"

namespace ingot::quantize {
namespace {

using Bytes = std::vector<std::byte>;

/// A whole encoded tensor, from which runs are cut.
struct Tensor {
  std::uint64_t matrices = 1, rows_per_matrix = 0, cols = 0, block_rows = 0, block_cols = 0;
  Bytes codes{};
  std::vector<float> scales{};

  [[nodiscard]] std::uint64_t rows() const { return matrices * rows_per_matrix; }
  [[nodiscard]] std::uint64_t scale_rows() const {
    return matrices * ((rows_per_matrix + block_rows - 1) / block_rows);
  }
  [[nodiscard]] std::uint64_t scale_cols() const { return (cols + block_cols - 1) / block_cols; }

  [[nodiscard]] CodedMatrix whole() const {
    return {.scheme = formats::SchemeId::kFp8Block,
            .codes = codes.data(),
            .rows = rows(),
            .cols = cols,
            .row_bytes = cols,
            .scales = scales,
            .rows_per_matrix = rows_per_matrix,
            .scale_cols = scale_cols(),
            .block_rows = block_rows,
            .block_cols = block_cols};
  }
};

std::uint32_t draw(std::mt19937& random) {
  return static_cast<std::uint32_t>(random());
}

Tensor random_tensor(Tensor shape, std::mt19937& random, bool with_nan) {
  shape.codes.resize(shape.rows() * shape.cols);
  for (std::byte& code : shape.codes) {
    auto value = static_cast<std::uint8_t>(random());
    if (!with_nan && (value & 0x7F) == 0x7F) value ^= 1;
    code = std::byte{value};
  }
  shape.scales.resize(shape.scale_rows() * shape.scale_cols());
  for (float& scale : shape.scales) {
    // Mostly ordinary, sometimes any positive finite number.
    const std::uint32_t exponent = random() % 4 != 0 ? 100 + draw(random) % 30 : draw(random) % 255;
    const std::uint32_t mantissa = random() % 2 != 0 ? draw(random) & 0x7FFFFFU : 0;
    scale = std::bit_cast<float>(exponent << 23 | mantissa);
  }
  return shape;
}

Bytes cast_scalar(const CodedMatrix& in, DecodeFaults* faults = nullptr) {
  Bytes out(2 * in.rows * in.cols);
  const DecodeFaults found = scalar::cast_fp8_block_to_bf16(in, out);
  if (faults != nullptr) *faults = found;
  return out;
}

std::uint16_t word_at(const Bytes& words, std::size_t i) {
  std::uint16_t word;
  std::memcpy(&word, words.data() + 2 * i, sizeof word);
  return word;
}

/// The definition, in double precision and by division into multiples of the last place; no bit
/// tricks.
std::uint16_t word_by_doubles(int code, float scale) {
  const int exponent = code >> 3 & 15;
  const double magnitude =
      exponent == 0 ? std::ldexp(code & 7, -9) : std::ldexp(8 + (code & 7), exponent - 10);
  // A product of 4 and 24 bits is exact in double, so this conversion is the one rounding of an
  // FP32 multiplication.
  const auto product =
      static_cast<double>(static_cast<float>(magnitude * static_cast<double>(scale)));
  int binade = 0;
  std::frexp(product, &binade);
  const int last_place = std::max(binade - 8, -133);
  const double rounded = std::nearbyint(std::ldexp(product, -last_place));
  const double value = std::ldexp(rounded, last_place);
  const auto as_float =
      value >= 0x1p128 ? std::numeric_limits<float>::infinity() : static_cast<float>(value);
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(as_float);
  EXPECT_EQ(bits & 0xFFFFU, 0U);
  return static_cast<std::uint16_t>(bits >> 16 | (code >= 128 ? 0x8000U : 0U));
}

/// Positive finite scales: every exponent, subnormals included, with mantissas that exercise the
/// rounding.
std::vector<float> scales_of_every_exponent() {
  std::mt19937 random(7);
  std::vector<float> scales;
  for (std::uint32_t exponent = 0; exponent <= 254; ++exponent) {
    for (const std::uint32_t mantissa :
         {0U, 1U, 0x2AAAABU, 0x3FFFFFU, 0x400000U, 0x7FFFFFU, draw(random) & 0x7FFFFFU}) {
      scales.push_back(std::bit_cast<float>(exponent << 23 | mantissa));
    }
  }
  for (int bit = 0; bit < 23; ++bit) scales.push_back(std::bit_cast<float>(1U << bit));
  // Around the limits of the short cut: smallest normal and largest finite results.
  for (const float edge :
       {0x1p-120F, 0x1p-126F, 0x1.FEp127F / 448, 0x1.FFp127F / 448, 0x1.FFFFFEp127F / 448}) {
    scales.insert(scales.end(), {std::nextafter(edge, 0.0F), edge, std::nextafter(edge, 1e38F)});
  }
  return scales;
}

/// One row per scale, with all 256 codes under it.
Tensor every_code_under(const std::vector<float>& scales, std::uint64_t block_cols) {
  Tensor tensor{
      .rows_per_matrix = scales.size(), .cols = 256, .block_rows = 1, .block_cols = block_cols};
  for (const float scale : scales) {
    for (std::size_t code = 0; code < 256; ++code)
      tensor.codes.push_back(static_cast<std::byte>(code));
    tensor.scales.insert(tensor.scales.end(), tensor.scale_cols(), scale);
  }
  return tensor;
}

TEST(Fp8Cast, ScalarTwinEqualsTheDefinitionExhaustively) {
  const std::vector<float> scales = scales_of_every_exponent();
  const Tensor tensor = every_code_under(scales, 256);
  const Bytes words = cast_scalar(tensor.whole());
  for (std::size_t s = 0; s < scales.size(); ++s) {
    for (int code = 0; code < 256; ++code) {
      const std::uint16_t word = word_at(words, 256 * s + static_cast<std::size_t>(code));
      const bool is_nan = (code & 0x7F) == 0x7F;
      const int expected =
          is_nan ? (code >= 128 ? 0xFFC0 : 0x7FC0) : word_by_doubles(code, scales[s]);
      ASSERT_EQ(word, expected) << "code " << code << " scale " << scales[s];
    }
  }
}

TEST(Fp8Cast, EveryTargetEqualsTheTwinExhaustively) {
  std::vector<float> scales = scales_of_every_exponent();
  const std::size_t n_positive = scales.size();
  for (std::size_t i = 0; i < n_positive; i += 5) scales.push_back(-scales[i]);
  const float infinity = std::numeric_limits<float>::infinity();
  scales.insert(scales.end(), {0.0F, -0.0F, infinity, -infinity, std::bit_cast<float>(0x7FC00000U),
                               std::bit_cast<float>(0xFF800001U)});
  for (const std::uint64_t block_cols : {256U, 128U, 100U, 32U}) {
    SCOPED_TRACE(block_cols);
    const Tensor tensor = every_code_under(scales, block_cols);
    const Bytes expected = cast_scalar(tensor.whole());
    for_each_target([&] {
      Bytes words(expected.size());
      const DecodeFaults faults = cast_fp8_block_to_bf16(tensor.whole(), words);
      EXPECT_EQ(faults.nan_codes, 2 * scales.size());
      EXPECT_EQ(faults.first_nan, 0x7FU);
      for (std::size_t i = 0; i < words.size() / 2; ++i) {
        ASSERT_EQ(word_at(words, i), word_at(expected, i))
            << "code " << i % 256 << " scale " << scales[i / 256];
      }
    });
  }
}

TEST(Fp8Cast, EveryTargetEqualsTheTwinOnRaggedShapes) {
  std::mt19937 random(11);
  const std::pair<std::uint64_t, std::uint64_t> blocks[] = {
      {128, 128}, {1, 128}, {64, 64}, {100, 100}, {3, 7}, {1, 1}, {128, 16}, {5, 33}, {1000, 1000}};
  for (const auto& [block_rows, block_cols] : blocks) {
    for (const std::uint64_t cols :
         {1U, 15U, 16U, 31U, 63U, 64U, 65U, 127U, 128U, 129U, 576U, 1000U}) {
      SCOPED_TRACE(::testing::Message()
                   << block_rows << "x" << block_cols << ", " << cols << " columns");
      const Tensor tensor = random_tensor(
          {.rows_per_matrix = 9, .cols = cols, .block_rows = block_rows, .block_cols = block_cols},
          random, true);
      DecodeFaults expected_faults;
      const Bytes expected = cast_scalar(tensor.whole(), &expected_faults);
      for_each_target([&] {
        // One byte off alignment, and guarded on both sides.
        Bytes words(expected.size() + 2, std::byte{0xA5});
        const DecodeFaults faults =
            cast_fp8_block_to_bf16(tensor.whole(), std::span(words).subspan(1, expected.size()));
        EXPECT_EQ(words.front(), std::byte{0xA5});
        EXPECT_EQ(words.back(), std::byte{0xA5});
        EXPECT_TRUE(std::equal(expected.begin(), expected.end(), words.begin() + 1));
        EXPECT_EQ(faults.nan_codes, expected_faults.nan_codes);
        EXPECT_EQ(faults.first_nan, expected_faults.first_nan);
      });
      if (HasFailure()) return;
    }
  }
}

TEST(Fp8Cast, RunsEqualTheirPartOfTheWhole) {
  std::mt19937 random(13);
  for (int round = 0; round < 60; ++round) {
    const std::uint64_t block_rows = std::vector<std::uint64_t>{128, 64, 100, 1, 7}[random() % 5];
    const std::uint64_t block_cols = std::vector<std::uint64_t>{128, 64, 100, 16}[random() % 4];
    const Tensor tensor = random_tensor({.matrices = 1 + random() % 3,
                                         .rows_per_matrix = 1 + random() % 200,
                                         .cols = 1 + random() % 700,
                                         .block_rows = block_rows,
                                         .block_cols = block_cols},
                                        random, random() % 2 != 0);
    const Bytes whole = cast_scalar(tensor.whole());

    CodedMatrix run = tensor.whole();
    run.first_row = random() % tensor.rows();
    run.rows = 1 + random() % (tensor.rows() - run.first_row);
    run.first_col = random() % tensor.scale_cols() * block_cols;
    run.cols = 1 + random() % (tensor.cols - run.first_col);
    Bytes codes, expected;
    for (std::uint64_t r = run.first_row; r < run.first_row + run.rows; ++r) {
      const auto at = static_cast<std::ptrdiff_t>(r * tensor.cols + run.first_col);
      const auto n = static_cast<std::ptrdiff_t>(run.cols);
      codes.insert(codes.end(), tensor.codes.begin() + at, tensor.codes.begin() + at + n);
      expected.insert(expected.end(), whole.begin() + 2 * at, whole.begin() + 2 * (at + n));
    }
    run.codes = codes.data();
    run.row_bytes = run.cols;
    EXPECT_EQ(cast_scalar(run), expected);
    for_each_target([&] {
      Bytes words(expected.size());
      cast_fp8_block_to_bf16(run, words);
      EXPECT_EQ(words, expected);
    });
    if (HasFailure()) return;
  }
}

TEST(Fp8Cast, CountsNanCodesAndFindsTheFirst) {
  std::mt19937 random(17);
  // Wide enough that a row is cast in several groups of blocks, high enough for two block rows.
  Tensor tensor = random_tensor(
      {.rows_per_matrix = 140, .cols = 20000, .block_rows = 128, .block_cols = 128}, random, false);
  std::fill(tensor.scales.begin(), tensor.scales.end(), 0.5F);
  tensor.scales[3] = 1e-40F;  // a block outside the short cut has its NaN codes counted too
  const std::size_t at[] = {7 * 20000 + 19999, 8 * 20000 + 5, 8 * 20000 + 3 * 128 + 1,
                            139 * 20000 + 10000};
  for (const std::size_t position : at) tensor.codes[position] = std::byte{0x7F};
  tensor.codes[at[1]] = std::byte{0xFF};
  const Bytes expected = cast_scalar(tensor.whole());
  for_each_target([&] {
    Bytes words(expected.size());
    const DecodeFaults faults = cast_fp8_block_to_bf16(tensor.whole(), words);
    EXPECT_EQ(faults.nan_codes, 4U);
    EXPECT_EQ(faults.first_nan, at[0]);
    EXPECT_EQ(word_at(words, at[0]), 0x7FC0);
    EXPECT_EQ(word_at(words, at[1]), 0xFFC0);
    EXPECT_EQ(words, expected);
  });
}

TEST(Fp8Cast, HugeScaleGivesInfinityWithTheSign) {
  const Tensor tensor = every_code_under({0x1.FFFFFEp127F}, 128);
  for_each_target([&] {
    Bytes words(2 * tensor.codes.size());
    cast_fp8_block_to_bf16(tensor.whole(), words);
    EXPECT_EQ(word_at(words, 0x7E), 0x7F80);
    EXPECT_EQ(word_at(words, 0xFE), 0xFF80);
    EXPECT_EQ(word_at(words, 0x80), 0x8000);
  });
}

TEST(Fp8Cast, EmptyRunIsNothing) {
  for_each_target([&] {
    EXPECT_EQ(cast_fp8_block_to_bf16({}, {}).nan_codes, 0U);
    Bytes out;
    EXPECT_EQ(cast_fp8_block_to_bf16({.rows = 5}, out).nan_codes, 0U);
  });
}

TEST(Fp8Decode, FloatsRoundToTheWordsOfTheCast) {
  std::mt19937 random(19);
  const Tensor tensor = random_tensor(
      {.matrices = 2, .rows_per_matrix = 130, .cols = 300, .block_rows = 128, .block_cols = 128},
      random, true);
  DecodeFaults cast_faults;
  const Bytes words = cast_scalar(tensor.whole(), &cast_faults);
  // Rows further apart than they are long, with a canary between.
  std::vector<float> floats(tensor.rows() * 301, -7.0F);
  const DecodeFaults faults = decode(
      tensor.whole(), {.data = floats.data(), .rows = tensor.rows(), .cols = 300, .stride = 301});
  EXPECT_EQ(faults.nan_codes, cast_faults.nan_codes);
  EXPECT_EQ(faults.first_nan, cast_faults.first_nan);
  for (std::size_t r = 0; r < tensor.rows(); ++r) {
    EXPECT_EQ(floats[r * 301 + 300], -7.0F);
    for (std::size_t c = 0; c < 300; ++c) {
      const std::size_t block_row = r / 130 * 2 + r % 130 / 128;
      const float scale = tensor.scales[block_row * 3 + c / 128];
      const int code = std::to_integer<int>(tensor.codes[r * 300 + c]);
      const float value = floats[r * 301 + c];
      if ((code & 0x7F) == 0x7F) {
        ASSERT_TRUE(std::isnan(value));
        continue;
      }
      ASSERT_EQ(word_by_doubles(code, scale), word_at(words, r * 300 + c));
      const double exact =
          (code >= 128 ? -1 : 1) *
          ((code & 0x78) == 0 ? std::ldexp(code & 7, -9)
                              : std::ldexp(8 + (code & 7), (code >> 3 & 15) - 10)) *
          static_cast<double>(scale);
      ASSERT_EQ(value, static_cast<float>(exact));
    }
  }
}

}  // namespace
}  // namespace ingot::quantize
