#include "formats/checkpoint/checkpoint.h"
#include "formats/storage/block_scales.h"
#include "tests/convert/conversion.h"
#include "tests/convert/output_tensors.h"
#include "tests/support/bytes.h"
#include "tests/support/test.h"
#include "tests/support/tiny_checkpoint.h"

// Codes and scales that decode to no number fail closed, whichever kind of code has them.

namespace ingot::convert {
namespace {

using formats::SchemeId;
using namespace ingot::testing;

constexpr const char* kWeight = "layer.proj.weight";
constexpr std::uint64_t kRows = 6, kCols = 32;

struct Kind {
  const char* dtype;
  std::vector<std::uint8_t> bad;  ///< codes that are NaN or infinite
};

class UnsoundCodes : public ::testing::TestWithParam<Kind> {
 protected:
  // One code is at row 3, column 5; the others are small.
  Conversion conversion(std::uint8_t code, SchemeId to, float scale = 0.5F) {
    std::string codes(kRows * kCols, '\x21');
    codes[3 * kCols + 5] = static_cast<char>(code);
    return of({{kWeight, GetParam().dtype, {kRows, kCols}, codes},
               {"layer.proj.weight_scale", "F32", {1}, bytes_of<float>({scale})}},
              to);
  }
  Conversion of(const std::vector<TinyTensor>& tensors, SchemeId to) {
    const auto input = directory_ / ("in" + std::to_string(++made_));
    TinyCheckpoint checkpoint{.config = "{}", .files = {{"model.safetensors", tensors}}};
    checkpoint.write(input);
    Conversion conversion(input, directory_ / ("out" + std::to_string(made_)));
    conversion.family = "generic";
    conversion.recipe.to.reset();
    conversion.recipe.rules = {
        parse_rule(std::string(kWeight) + "=" + std::string(formats::scheme_facts(to).name))};
    return conversion;
  }

  TempDir directory_;
  int made_ = 0;
};

INSTANTIATE_TEST_SUITE_P(Kinds, UnsoundCodes,
                         ::testing::Values(Kind{"F8_E4M3", {0x7F, 0xFF}},
                                           Kind{"F8_E5M2", {0x7C, 0xFC, 0x7D, 0x7F, 0xFF}},
                                           Kind{"F8_E4M3FNUZ", {0x80}},
                                           Kind{"F8_E5M2FNUZ", {0x80}}),
                         [](const auto& row) { return std::string(row.param.dtype); });

TEST_P(UnsoundCodes, AreRefusedWithTheirPlaceUnlessAllowed) {
  for (const SchemeId to : {SchemeId::kBf16, SchemeId::kF16, SchemeId::kF32, SchemeId::kFp8Channel,
                            SchemeId::kInt8Channel, SchemeId::kNvfp4}) {
    for (const std::uint8_t code : GetParam().bad) {
      SCOPED_TRACE(std::string(formats::scheme_facts(to).name) + " " + std::to_string(code));
      Conversion refused = conversion(code, to);
      expect_error(ErrorCode::kNonFinite,
                   {"model.safetensors", kWeight, "row 3", "column 5", "--allow 'nan-code="},
                   [&] { refused.run(); });
      EXPECT_FALSE(std::filesystem::exists(refused.output / "model.safetensors"));
    }
    EXPECT_NO_THROW(conversion(0x22, to).run());
  }
  Conversion allowed = conversion(GetParam().bad.front(), SchemeId::kF32);
  allowed.recipe.allow.add("nan-code=layer.*");
  allowed.run();
  const auto values = read_output(allowed.output).at(kWeight).as<float>();
  EXPECT_FALSE(std::isfinite(values[3 * kCols + 5]));
  EXPECT_TRUE(std::isfinite(values[3 * kCols + 4]));
}

TEST_P(UnsoundCodes, ScalesBelowZeroAreRefused) {
  for (const float scale : {-0.5F, 0.0F, std::numeric_limits<float>::infinity()}) {
    expect_error(ErrorCode::kBadScale, {"above zero"},
                 [&] { conversion(0x22, SchemeId::kBf16, scale).run(); });
  }
}

class UnsoundScales : public UnsoundCodes {
 protected:
  // All codes are zero.
  Conversion nvfp4(float global, bool divides, SchemeId to = SchemeId::kBf16) {
    const std::string codes(kRows * kCols / 2, '\0'), scales(kRows * kCols / 16, '\x7E');
    return of({{divides ? "layer.proj.weight_packed" : kWeight, "U8", {kRows, kCols / 2}, codes},
               {"layer.proj.weight_scale", "F8_E4M3", {kRows, kCols / 16}, scales},
               {divides ? "layer.proj.weight_global_scale" : "layer.proj.weight_scale_2",
                "F32",
                {1},
                bytes_of<float>({global})}},
              to);
  }
};
INSTANTIATE_TEST_SUITE_P(Once, UnsoundScales, ::testing::Values(Kind{"U8", {}}));

// 448 times or by the global scale is beyond FP32 or below it: 0 x infinity would be NaN.
TEST_P(UnsoundScales, OfTwoLevelsMakeAFiniteNumber) {
  for (const auto& [global, divides] : {std::pair{1e-40F, true}, std::pair{1e38F, false}}) {
    for (const SchemeId to : {SchemeId::kBf16, SchemeId::kInt8Channel}) {
      expect_error(ErrorCode::kBadScale, {kWeight, "row 0, column 0 is 448", "inf"},
                   [&, g = global, d = divides] { nvfp4(g, d, to).run(); });
    }
  }
  EXPECT_NO_THROW(nvfp4(1e-30F, true).run());
  EXPECT_NO_THROW(nvfp4(1e30F, false).run());
}

// Ascend's static INT8: the scale is deq_scale / input_scale.
TEST_P(UnsoundScales, OfInputsMakeAFiniteNumber) {
  const auto int8 = [&](float deq, float input) {
    return of({{kWeight, "I8", {kRows, kCols}, std::string(kRows * kCols, '\x21')},
               {"layer.proj.deq_scale", "F32", {kRows}, bytes_of(std::vector<float>(kRows, deq))},
               {"layer.proj.input_scale", "F32", {1}, bytes_of<float>({input})}},
              SchemeId::kBf16);
  };
  EXPECT_NO_THROW(int8(0.5F, 0.25F).run());
  expect_error(ErrorCode::kBadScale, {kWeight, "1e+30", "inf"}, [&] { int8(1e30F, 1e-30F).run(); });
  expect_error(ErrorCode::kBadScale, {kWeight, "0 divided by"}, [&] { int8(1e-30F, 1e30F).run(); });
}

// Codes that are kept keep them.
TEST_P(UnsoundScales, OffsetsOfInputsAreNumbers) {
  const auto look = [&](float offset) {
    const Conversion made =
        of({{kWeight, "I8", {kRows, kCols}, std::string(kRows * kCols, '\x21')},
            {"layer.proj.deq_scale", "F32", {kRows}, bytes_of(std::vector<float>(kRows, 0.5F))},
            {"layer.proj.input_scale", "F32", {1}, bytes_of<float>({0.25F})},
            {"layer.proj.input_offset", "F32", {1}, bytes_of<float>({offset})}},
           SchemeId::kInt8Channel);
    const auto source = formats::Checkpoint::open(made.input, {.family = "generic"});
    formats::require_good_input_scales(source, source.tensors().front(), {});
  };
  EXPECT_NO_THROW(look(3));
  for (const float bad : {std::nanf(""), std::numeric_limits<float>::infinity()})
    expect_error(ErrorCode::kBadScale, {"input_offset", "must be finite"}, [&] { look(bad); });
}

// Integers have no sign bit to be masked: -128 is no zero.
TEST_P(UnsoundScales, ZeroPointsThatShouldBeZeroAreIntegers) {
  const auto int8 = [&](const char* dtype, const std::string& offset) {
    return of({{kWeight, "I8", {2, kCols}, std::string(2 * kCols, '\x21')},
               {"layer.proj.weight_scale", "F32", {2, 1}, bytes_of<float>({1, 1})},
               {"layer.proj.weight_offset", dtype, {2, 1}, offset}},
              SchemeId::kBf16);
  };
  EXPECT_NO_THROW(int8("I8", bytes_of<std::int8_t>({0, 0})).run());
  EXPECT_NO_THROW(int8("F32", bytes_of<float>({-0.0F, 0})).run());
  expect_error(ErrorCode::kUnsupported, {"weight_offset is not zero in row 1"}, [&] {
    int8("I8", bytes_of<std::int8_t>({0, -128})).run();
  });
}

}  // namespace
}  // namespace ingot::convert
