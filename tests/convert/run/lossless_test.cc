#include "convert/run/band_encoder.h"
#include "formats/container/bfloat16.h"
#include "tests/convert/conversion.h"
#include "tests/convert/output_tensors.h"
#include "tests/convert/program_decode.h"
#include "tests/support/test.h"
#include "tests/support/tiny_checkpoint.h"

// A conversion that is to be lossless stops at the first value that it would change, and only
// there.

namespace ingot::convert {
namespace {

using formats::SchemeId;
using ingot::testing::Conversion;
using ingot::testing::read_output;
using ingot::testing::TempDir;
using ingot::testing::TinyCheckpoint;
using ingot::testing::TinyTensor;
using ::testing::HasSubstr;

constexpr std::uint64_t kCodeRows = 160, kCodeCols = 256;
constexpr const char* kModule = "layer.proj";

template <typename T>
std::string stored_bytes(const std::vector<T>& values) {
  std::string bytes(values.size() * sizeof(T), '\0');
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

/// A matrix of quantized values that a test may bend.
struct Source {
  std::vector<TinyTensor> tensors;

  TinyTensor& part(const std::string& name) {
    return *std::ranges::find(tensors, std::string(kModule) + "." + name, &TinyTensor::name);
  }
};

using Draw = std::function<int(std::uint64_t row, std::uint64_t col)>;

/// E2M1 codes under 2^exponent per 32 columns.
Source mxfp4(const Draw& exponent, const Draw& code) {
  std::string codes(kCodeRows * kCodeCols / 2, '\0'), scales;
  for (std::uint64_t i = 0; i < kCodeRows * kCodeCols; ++i) {
    const int nibble = code(i / kCodeCols, i % kCodeCols) & 15;
    codes[i / 2] = static_cast<char>(codes[i / 2] | nibble << (i % 2 * 4));
  }
  for (std::uint64_t i = 0; i < kCodeRows * kCodeCols / 32; ++i)
    scales.push_back(static_cast<char>(127 + exponent(i / (kCodeCols / 32), i % (kCodeCols / 32))));
  return {{{"layer.proj.weight", "U8", {kCodeRows, kCodeCols / 2}, codes},
           {"layer.proj.weight_scale", "F8_E8M0", {kCodeRows, kCodeCols / 32}, scales}}};
}

/// INT4 codes -8 to 7 in groups of 32, under BF16 scales.
Source int4(const std::function<float(std::uint64_t, std::uint64_t)>& scale, const Draw& code) {
  std::vector<std::uint32_t> words(kCodeRows * kCodeCols / 8);
  for (std::uint64_t i = 0; i < kCodeRows * kCodeCols; ++i) {
    const int nibble = code(i / kCodeCols, i % kCodeCols) + 8;
    words[i / 8] |= static_cast<std::uint32_t>(nibble) << (i % 8 * 4);
  }
  std::vector<std::uint16_t> scales;
  for (std::uint64_t i = 0; i < kCodeRows * kCodeCols / 32; ++i)
    scales.push_back(formats::bf16_from_float(scale(i / (kCodeCols / 32), i % (kCodeCols / 32))));
  return {{{"layer.proj.weight_packed", "I32", {kCodeRows, kCodeCols / 8}, stored_bytes(words)},
           {"layer.proj.weight_scale", "BF16", {kCodeRows, kCodeCols / 32}, stored_bytes(scales)},
           {"layer.proj.weight_shape",
            "I32",
            {2},
            stored_bytes(std::vector<std::int32_t>{kCodeRows, kCodeCols})}}};
}

/// E4M3 codes under an F32 scale per 128 x 128.
Source fp8(const std::vector<float>& scales, const Draw& code) {
  std::string codes;
  for (std::uint64_t i = 0; i < kCodeRows * kCodeCols; ++i)
    codes.push_back(static_cast<char>(code(i / kCodeCols, i % kCodeCols)));
  return {{{"layer.proj.weight", "F8_E4M3", {kCodeRows, kCodeCols}, codes},
           {"layer.proj.weight_scale_inv", "F32", {2, 2}, stored_bytes(scales)}}};
}

class Lossless : public ::testing::Test {
 protected:
  // The loss that ends a conversion to this scheme; empty where there is none, and then the output
  // has every value.
  std::string loss(const Source& source, SchemeId to, const char* dialect = "") {
    const auto input = directory_ / ("in" + std::to_string(++made_));
    output_ = directory_ / ("out" + std::to_string(made_));
    TinyCheckpoint checkpoint{.config = "{}", .files = {{"model.safetensors", source.tensors}}};
    checkpoint.write(input);
    Conversion conversion(input, output_);
    conversion.family = "generic";
    conversion.recipe.allow.add("underflow=*");
    conversion.recipe.to = to;
    conversion.recipe.choices.fp8_grid = grid_;
    conversion.recipe.choices.search = search_;
    conversion.recipe.choices.via = via_;
    conversion.recipe.choices.dialect = dialect;
    conversion.execute.lossless_only = true;
    std::string lost;
    try {
      conversion.run();
    } catch (const ValueLost& error) {
      EXPECT_EQ(error.code(), ErrorCode::kMismatch);
      EXPECT_EQ(error.tensor(), "layer.proj.weight");
      EXPECT_FALSE(std::filesystem::exists(output_ / "ingot.json"));
      lost = error.message();
      conversion.execute.lossless_only = false;
      conversion.output = output_ = directory_ / ("lossy" + std::to_string(made_));
      conversion.run();
    }
    const auto opened = formats::Checkpoint::open(input, {.family = "generic"});
    const auto written = formats::Checkpoint::open(output_, {.family = "generic"});
    const std::vector<float> before = ingot::testing::decoded(opened, opened.tensors()[0]);
    const std::vector<float> after = ingot::testing::decoded(written, written.tensors()[0]);
    EXPECT_EQ(lost.empty(), before == after) << "what was written says otherwise: " << lost;
    return lost;
  }
  void expect_held(const Source& source, SchemeId to) { EXPECT_EQ(loss(source, to), ""); }
  int any(int least, int most) { return std::uniform_int_distribution<int>(least, most)(random_); }
  Draw any_code() {
    return [this](std::uint64_t, std::uint64_t) { return any(0, 15); };
  }
  static Draw all(int number) {
    return [number](std::uint64_t, std::uint64_t) { return number; };
  }
  // One number, but for one place.
  static Draw all_but(int number, std::uint64_t row, std::uint64_t col, int other) {
    return [=](std::uint64_t r, std::uint64_t c) { return r == row && c == col ? other : number; };
  }

  std::mt19937 random_{7};
  TempDir directory_;
  std::filesystem::path output_;
  int made_ = 0;
  std::optional<quantize::Fp8Grid> grid_;
  quantize::ScaleSearch search_ = quantize::ScaleSearch::kMse;
  Via via_ = Via::kF32;
};

TEST_F(Lossless, StopsWhereAnOutputWouldDiffer) {
  int n_held = 0, n_lost = 0;
  for (const SchemeId to : {SchemeId::kBf16, SchemeId::kF16, SchemeId::kFp8Block,
                            SchemeId::kFp8Channel, SchemeId::kFp8Tensor, SchemeId::kNvfp4,
                            SchemeId::kMxfp8, SchemeId::kInt8Channel, SchemeId::kInt8Block}) {
    for (const auto& [base, spread] : {std::pair{-9, 0}, {-9, 18}, {-127, 14}}) {
      const auto exponent = [&](auto, auto) { return base + any(0, spread); };
      // Codes of a block may all be zero, or even.
      const auto code = [&](std::uint64_t row, std::uint64_t) {
        return row % 3 == 0 ? 0 : row % 3 == 1 ? 2 * any(0, 7) : any(0, 15);
      };
      (loss(mxfp4(exponent, code), to).empty() ? n_held : n_lost) += 1;
    }
    for (const bool is_round : {false, true}) {
      const auto scale = [&](std::uint64_t, std::uint64_t) {
        return std::ldexp(is_round ? 1.0F : static_cast<float>(any(128, 255)), any(-8, -7));
      };
      const auto code = [&](std::uint64_t, std::uint64_t) { return any(-8, 7); };
      (loss(int4(scale, code), to).empty() ? n_held : n_lost) += 1;
    }
  }
  EXPECT_GT(n_held, 12);
  EXPECT_GT(n_lost, 12);
}

TEST_F(Lossless, NamesTheFirstValueThatChanges) {
  // 0.5 x 2^-25 is below the least step next to 6 x 2^-10, but only that code is so small.
  const auto exponent = all_but(-10, 3, 5, -25);
  expect_held(mxfp4(exponent, all(7)), SchemeId::kFp8Block);
  const auto code = [](std::uint64_t row, std::uint64_t col) {
    return row == 3 && col / 32 == 5 ? 1 : 7;
  };
  EXPECT_THAT(loss(mxfp4(exponent, code), SchemeId::kFp8Channel),
              HasSubstr("as fp8-channel: 1.49011612e-08 at row 3, column 160 becomes 0 "));
}

TEST_F(Lossless, SmallBlocksHaveNoFloor) {
  // 1e-4 / 448 rounds up to 2^-22, of which these values are less than the least code.
  expect_held(mxfp4(all(-100), any_code()), SchemeId::kFp8Block);
  const auto scales = read_output(output_).at("layer.proj.weight_scale_inv").as<float>();
  for (const float scale : scales) EXPECT_EQ(scale, 0x1p-106F);
}

TEST_F(Lossless, AGridThatIsAskedForIsKept) {
  grid_ = quantize::Fp8Grid::kAmax;
  search_ = quantize::ScaleSearch::kAmax;
  EXPECT_NE(loss(mxfp4(all(-5), any_code()), SchemeId::kFp8Block), "");
}

TEST_F(Lossless, Fp8UnderPowersOfTwoFitsBf16) {
  const auto code = [&](std::uint64_t, std::uint64_t) { return any(0, 0x7E); };
  expect_held(fp8({0.5F, 0.25F, 0x1p-9F, 8}, code), SchemeId::kBf16);
  // Four bits times six are more than eight; the code 1 has one.
  Source source = fp8({0.5F, 0.5F, 0x1.08p0F, 1}, all(0x38));
  expect_held(source, SchemeId::kBf16);
  source.part("weight").data[150 * kCodeCols + 7] = 0x3F;
  EXPECT_THAT(loss(source, SchemeId::kBf16), HasSubstr("at row 150, column 7 becomes"));
}

TEST_F(Lossless, Fp8UnderPowersOfTwoFitsMxfp8WhereCodesDo) {
  expect_held(fp8({0.5F, 2, 4, 8}, all_but(0x7D, 3, 200, 0x01)), SchemeId::kMxfp8);
  // A mantissa of 1.75 takes the next scale, whose least step is twice as large.
  EXPECT_THAT(loss(fp8({0.5F, 2, 4, 8}, all_but(0x7E, 3, 200, 0x01)), SchemeId::kMxfp8),
              HasSubstr("0.00390625 at row 3, column 200 becomes 0 "));
}

TEST_F(Lossless, Int4NeedsProductsOfEightBits) {
  const auto code = [&](std::uint64_t, std::uint64_t) { return any(-8, 7); };
  expect_held(int4([](auto, auto) { return 31.0F; }, code), SchemeId::kBf16);
  const auto scale = [](auto, auto) { return 255.0F; };
  expect_held(int4(scale, all(-4)), SchemeId::kBf16);
  EXPECT_THAT(loss(int4(scale, all_but(2, 9, 70, 7)), SchemeId::kBf16),
              HasSubstr("1785 at row 9, column 70 becomes"));
}

TEST_F(Lossless, Int8TakesTheScaleOfARowOfInt4) {
  const auto code = [&](std::uint64_t, std::uint64_t) { return any(-8, 7); };
  // One scale for a row, and one that is a multiple of the other.
  const auto scale = [](std::uint64_t row, std::uint64_t group) {
    return (group == 3 ? 8.0F : 1.0F) * (0.5F + static_cast<float>(row) / 256);
  };
  expect_held(int4(scale, code), SchemeId::kInt8Channel);
  const auto other = [&](std::uint64_t row, std::uint64_t group) {
    return row == 20 && group == 1 ? 0.77F : scale(row, group);
  };
  EXPECT_THAT(loss(int4(other, code), SchemeId::kInt8Channel), HasSubstr("at row 20, "));
}

TEST_F(Lossless, Bf16BetweenIsPartOfIt) {
  via_ = Via::kBf16;
  const auto exponent = [&](auto, auto) { return any(-20, -10); };
  expect_held(mxfp4(exponent, any_code()), SchemeId::kFp8Block);
  EXPECT_NE(
      loss(int4([](auto, auto) { return 255.0F; }, all_but(1, 0, 0, 7)), SchemeId::kInt8Channel),
      "");
}

TEST_F(Lossless, ReciprocalsOfGlobalScalesAreComparedToo) {
  std::size_t n_lost = 0;
  for (const float global : {0x1p-7F, 0.0123F, 0.007F, 0.3F, 1.0F / 3}) {
    Source source{{{"layer.proj.weight",
                    "U8",
                    {kCodeRows, kCodeCols / 2},
                    std::string(kCodeRows * kCodeCols / 2, '\x72')},
                   {"layer.proj.weight_scale", "F8_E4M3", {kCodeRows, kCodeCols / 16}, ""},
                   {"layer.proj.weight_scale_2", "F32", {}, stored_bytes(std::vector{global})}}};
    for (std::uint64_t i = 0; i < kCodeRows * kCodeCols / 16; ++i)
      source.part("weight_scale").data.push_back(static_cast<char>(1 + i % 0x7E));
    const std::string lost = loss(source, SchemeId::kNvfp4, "compressed-tensors");
    EXPECT_TRUE(lost.empty() || global != 0x1p-7F) << lost;
    if (lost.empty()) continue;
    EXPECT_THAT(lost, HasSubstr("in row 0 and column "));
    ++n_lost;
  }
  EXPECT_GT(n_lost, 0U);
}

}  // namespace
}  // namespace ingot::convert
