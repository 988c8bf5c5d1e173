#include "formats/container/bfloat16.h"
#include "tests/convert/conversion.h"
#include "tests/convert/plain_decode.h"
#include "tests/convert/program_decode.h"
#include "tests/convert/targets.h"
#include "tests/support/test.h"
#include "tests/support/tiny_checkpoint.h"

// Matrices that no model should hold: whatever they are, no code and no scale of the output is NaN.

namespace ingot::convert {
namespace {

using formats::SchemeId;
using namespace ingot::testing;
using ingot::testing::Target;

constexpr const char* kWeight = "layer.proj.weight";
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kBf16Max = 0x1.FEp127F;

// A matrix of F32 numbers under a name that no family knows.
struct Matrix {
  std::uint64_t rows = 0, cols = 0;
  std::vector<float> values;

  Matrix(std::uint64_t n, std::uint64_t k, float value = 0)
      : rows(n), cols(k), values(n * k, value) {}
  float& at(std::uint64_t r, std::uint64_t c) { return values[r * cols + c]; }

  // Numbers like those of a weight, the same each time.
  static Matrix plausible(std::uint64_t n, std::uint64_t k) {
    Matrix matrix(n, k);
    std::uint32_t state = 12345;
    for (float& value : matrix.values) {
      state = state * 1664525 + 1013904223;
      value = std::ldexp(static_cast<float>(static_cast<std::int32_t>(state) >> 8), -28);
    }
    return matrix;
  }
};

class Degenerate : public ::testing::TestWithParam<Target> {
 protected:
  Conversion conversion(const Matrix& matrix) {
    const auto input = directory_ / ("in" + std::to_string(++made_));
    std::string bytes(matrix.values.size() * sizeof(float), '\0');
    std::memcpy(bytes.data(), matrix.values.data(), bytes.size());
    TinyCheckpoint checkpoint;
    checkpoint.config = "{}";
    checkpoint.files["model.safetensors"] = {
        {kWeight, "F32", {matrix.rows, matrix.cols}, std::move(bytes)}};
    checkpoint.write(input);
    Conversion conversion(input, directory_ / ("out" + std::to_string(made_)));
    GetParam().apply(conversion.recipe);
    conversion.family = "generic";
    conversion.recipe.to.reset();
    conversion.recipe.rules = {
        parse_rule(std::string(kWeight) + "=" +
                   std::string(formats::scheme_facts(GetParam().storage->scheme).name))};
    return conversion;
  }

  // Converts, checks that numbers are finite and scales above zero, and decodes.
  std::vector<float> converted(Conversion conversion) {
    conversion.run();
    output_ = read_output(conversion.output);
    for (const auto& [name, tensor] : output_) {
      const bool is_scale = name.find("scale") != name.npos;
      const auto numbers = is_scale ? scale_values(tensor) : code_values(tensor);
      const auto is_bad = [&](float x) { return !std::isfinite(x) || (is_scale && x <= 0); };
      const auto bad = std::ranges::find_if(numbers, is_bad);
      EXPECT_TRUE(bad == numbers.end()) << name << ": " << *bad;
    }
    const auto checkpoint = formats::Checkpoint::open(conversion.output, {.family = "generic"});
    EXPECT_EQ(checkpoint.tensors().size(), 1U);
    return decoded(checkpoint, checkpoint.tensors().front());
  }
  std::vector<float> converted(const Matrix& matrix) { return converted(conversion(matrix)); }

  static bool is_grouped_along_rows() {
    const auto& facts = formats::scheme_facts(GetParam().storage->scheme);
    return facts.group_rows == 1 && facts.group_cols != 0;
  }

  TempDir directory_;
  OutputTensors output_;
  int made_ = 0;
};

INSTANTIATE_TEST_SUITE_P(Schemes, Degenerate, ::testing::ValuesIn(scheme_targets()), target_name);

TEST_P(Degenerate, ZerosStayZerosUnderGoodScales) {
  Matrix matrix(256, 256);
  for (std::size_t i = 0; i < matrix.values.size(); i += 3) matrix.values[i] = -0.0F;
  for (const float value : converted(matrix)) ASSERT_EQ(value, 0);
  if (GetParam().storage->scheme != SchemeId::kNvfp4) return;
  EXPECT_EQ(output_.at("layer.proj.weight_global_scale").as<float>().front(), 1.0F);
  for (const char scale : output_.at("layer.proj.weight_scale").bytes) ASSERT_EQ(scale, 0x38);
}

TEST_P(Degenerate, ZeroRowsAndBlocksStayZeroAmongOthers) {
  Matrix matrix = Matrix::plausible(256, 256);
  for (std::uint64_t c = 0; c < 256; ++c) matrix.at(7, c) = matrix.at(200, c) = 0;
  for (std::uint64_t r = 128; r < 256; ++r) {
    for (std::uint64_t c = 128; c < 256; ++c) matrix.at(r, c) = 0;
  }
  const std::vector<float> values = converted(matrix);
  std::size_t n_nonzero = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    ASSERT_TRUE(matrix.values[i] != 0 || values[i] == 0) << i;
    if (values[i] != 0) ++n_nonzero;
  }
  EXPECT_GT(n_nonzero, 30'000U);
}

TEST_P(Degenerate, SubnormalNumbersAreHeldOrBecomeZero) {
  for (const float small : {0x1p-149F, 0x1.8p-127F}) {
    Conversion allowed = conversion(Matrix(128, 128, small));
    allowed.recipe.allow.add("underflow=*");
    for (const float value : converted(allowed))
      ASSERT_TRUE(value == 0 || (value > small / 2 && value < small * 2)) << small << " " << value;
  }
}

TEST_P(Degenerate, BecomingAllZerosIsRefusedUnlessAllowed) {
  Matrix matrix(128, 128, 0x1p-149F);
  matrix.at(5, 5) = 0;
  Conversion allowed = conversion(matrix);
  allowed.recipe.allow.add("underflow=*");
  for (const float value : converted(allowed)) ASSERT_EQ(value, 0);
  Conversion refused = conversion(matrix);
  expect_error(ErrorCode::kUnsupported,
               {kWeight, "would be all zeros", "its 16383 numbers", "--allow 'underflow="},
               [&] { refused.run(); });
  EXPECT_FALSE(std::filesystem::exists(refused.output / "model.safetensors"));
  matrix.at(127, 127) = -1;
  EXPECT_NO_THROW(conversion(matrix).run());
  // Rounding on the way loses them too.
  Conversion twice = conversion(Matrix(128, 128, 0x1p-149F));
  twice.recipe.choices.via = Via::kBf16;
  expect_error(ErrorCode::kUnsupported, {kWeight, "would be all zeros"}, [&] { twice.run(); });
}

TEST_P(Degenerate, OneHugeNumberAmongOthersIsHeld) {
  for (const float huge : {1e6F, -kBf16Max}) {
    Matrix matrix = Matrix::plausible(128, 256);
    matrix.at(100, 77) = huge;
    const std::vector<float> values = converted(matrix);
    for (const float value : values) ASSERT_TRUE(std::isfinite(value));
    EXPECT_NEAR(values[100 * 256 + 77] / huge, 1, 0.26) << huge;
  }
}

TEST_P(Degenerate, EveryNumberAsLargeAsBf16Goes) {
  for (const float value : converted(Matrix(128, 128, kBf16Max)))
    ASSERT_NEAR(value / kBf16Max, 1, 0.26);
}

TEST_P(Degenerate, NanAndInfinityAreRefusedWithTheirPlace) {
  for (const float bad : {kNaN, -kInf}) {
    Matrix matrix = Matrix::plausible(256, 256);
    matrix.at(131, 42) = bad;
    Conversion refused = conversion(matrix);
    expect_error(ErrorCode::kNonFinite,
                 {"model.safetensors", kWeight, "row 131", "column 42", "--allow 'nonfinite="},
                 [&] { refused.run(); });
    EXPECT_FALSE(std::filesystem::exists(refused.output / "model.safetensors"));
  }
}

TEST_P(Degenerate, AllowedNonfiniteValuesDoNotReachTheOutput) {
  Matrix matrix = Matrix::plausible(256, 256);
  matrix.at(0, 0) = kNaN;
  matrix.at(131, 42) = kInf;
  matrix.at(255, 255) = -kInf;
  for (std::uint64_t c = 0; c < 256; ++c) matrix.at(9, c) = kNaN;
  Conversion allowed = conversion(matrix);
  allowed.recipe.allow.add("nonfinite=layer.*");
  const std::vector<float> values = converted(allowed);
  EXPECT_EQ(values[0], 0);
  EXPECT_GT(values[131 * 256 + 42], 0);
  EXPECT_LT(values[255 * 256 + 255], 0);
  for (std::uint64_t c = 0; c < 256; ++c) EXPECT_EQ(values[9 * 256 + c], 0);
  // The others decode as they would without: as far as their groups hold none of it.
  Matrix clean = matrix;
  for (float& value : clean.values) value = std::isfinite(value) ? value : 0;
  const std::vector<float> expected = converted(clean);
  for (std::uint64_t c = 0; c < 256; ++c) EXPECT_EQ(values[50 * 256 + c], expected[50 * 256 + c]);
}

TEST_P(Degenerate, AnInfinityBecomesTheLargestOfItsWholeGroup) {
  // A tensor with one scale over all of it is encoded in several tiles.
  Matrix matrix(1024, 512, 0);
  matrix.at(1, 42) = -kInf;
  matrix.at(1000, 42) = 3;
  Conversion allowed = conversion(matrix);
  allowed.recipe.allow.add("nonfinite=layer.*");
  const bool is_one_group = formats::scheme_facts(GetParam().storage->scheme).group_rows == 0;
  EXPECT_EQ(converted(allowed)[512 + 42], is_one_group ? -3 : 0);
}

class DegenerateOnce : public Degenerate {};
INSTANTIATE_TEST_SUITE_P(Schemes, DegenerateOnce, ::testing::Values(scheme_targets().front()));

TEST_P(DegenerateOnce, AnAllowanceForAnotherTensorDoesNotHelp) {
  Matrix matrix(128, 128, 1);
  matrix.at(1, 1) = kNaN;
  Conversion refused = conversion(matrix);
  refused.recipe.allow.add("nonfinite=other.*");
  expect_error(ErrorCode::kNonFinite, {kWeight}, [&] { refused.run(); });
}

TEST_P(Degenerate, RefusesRaggedGroupsButNotRaggedBlocks) {
  const auto& facts = formats::scheme_facts(GetParam().storage->scheme);
  Conversion ragged = conversion(Matrix::plausible(130, 200));
  if (is_grouped_along_rows()) {
    expect_error(
        ErrorCode::kUnsupported,
        {kWeight, "multiples of " + std::to_string(facts.chooses_cols ? 32 : facts.group_cols),
         "--rule"},
        [&] { ragged.run(); });
    EXPECT_FALSE(std::filesystem::exists(ragged.output));
    // Rows are free.
    EXPECT_EQ(converted(Matrix::plausible(130, 192)).size(), 130U * 192);
    EXPECT_EQ(converted(Matrix::plausible(1, 32)).size(), 32U);
    return;
  }
  const std::vector<float> values = converted(ragged);
  const Matrix matrix = Matrix::plausible(130, 200);
  for (std::size_t i = 0; i < values.size(); ++i)
    ASSERT_NEAR(values[i], matrix.values[i], 0.04 * std::abs(matrix.values[i]) + 0.002) << i;
  EXPECT_EQ(converted(Matrix::plausible(2, 200)).size(), 400U);
}

TEST_P(DegenerateOnce, AVectorIsNoMatrix) {
  TinyCheckpoint checkpoint;
  checkpoint.config = "{}";
  checkpoint.files["model.safetensors"] = {{kWeight, "BF16", {256}}};
  Conversion refused = conversion(Matrix(128, 128));
  checkpoint.write(refused.input);
  expect_error(ErrorCode::kUnsupported, {kWeight, "needs a matrix"}, [&] { refused.run(); });
}

TEST_P(DegenerateOnce, AMatrixWithoutValuesIsNotQuantized) {
  TinyCheckpoint checkpoint;
  checkpoint.config = "{}";
  checkpoint.files["model.safetensors"] = {{kWeight, "BF16", {64, 0}}};
  Conversion refused = conversion(Matrix(128, 128));
  checkpoint.write(refused.input);
  expect_error(ErrorCode::kUnsupported, {kWeight, "needs values"}, [&] { refused.run(); });
}

class F16Overflow : public Degenerate {};
INSTANTIATE_TEST_SUITE_P(Plain, F16Overflow, ::testing::Values(scheme_targets().front()));

TEST_P(F16Overflow, IsRefusedUnlessAllowed) {
  Matrix matrix = Matrix::plausible(16, 32);
  matrix.at(3, 5) = 65519;  // still rounds to the largest, 65504
  Conversion fine = conversion(matrix);
  fine.recipe.rules = {parse_rule(std::string(kWeight) + "=f16")};
  fine.recipe.choices = {};
  fine.run();
  matrix.at(3, 5) = -65520;
  Conversion refused = conversion(matrix);
  refused.recipe.rules = fine.recipe.rules;
  refused.recipe.choices = {};
  expect_error(ErrorCode::kNonFinite, {kWeight, "row 3", "column 5", "--allow 'f16-overflow="},
               [&] { refused.run(); });
  Conversion allowed = conversion(matrix);
  allowed.recipe.rules = fine.recipe.rules;
  allowed.recipe.choices = {};
  allowed.recipe.allow.add("f16-overflow=*");
  allowed.run();
  const auto words = read_output(allowed.output).at(kWeight).as<std::uint16_t>();
  EXPECT_EQ(words[3 * 32 + 5], 0xFC00) << "minus infinity";
}

class PlainUnderflow : public Degenerate {
 protected:
  Conversion cast(const Matrix& matrix, const std::string& word) {
    Conversion made = conversion(matrix);
    made.recipe.rules = {parse_rule(std::string(kWeight) + "=" + word)};
    made.recipe.choices = {};
    return made;
  }
};
INSTANTIATE_TEST_SUITE_P(Plain, PlainUnderflow, ::testing::Values(scheme_targets().front()));

// 2^-25 is halfway between zero and the least F16 number, and rounds to zero; 2^-134 likewise in
// BF16. The one goes through F32 rows, the other through words.
TEST_P(PlainUnderflow, OfAWholeTensorIsRefused) {
  for (const auto& [word, beyond] : {std::pair{"f16", 0x1p-25F}, std::pair{"bf16", 0x1p-134F}}) {
    Matrix matrix(16, 32, beyond);
    matrix.at(1, 1) = 0;
    Conversion refused = cast(matrix, word);
    expect_error(ErrorCode::kUnsupported,
                 {kWeight, "would be all zeros", "its 511 numbers", "=keep"},
                 [&] { refused.run(); });
    EXPECT_FALSE(std::filesystem::exists(refused.output / "model.safetensors"));
    matrix.at(15, 31) = -1.5F * beyond;
    EXPECT_NO_THROW(cast(matrix, word).run()) << word;
    EXPECT_NO_THROW(cast(Matrix(16, 32, -0.0F), word).run()) << word;
    Conversion allowed = cast(Matrix(16, 32, beyond), word);
    allowed.recipe.allow.add("underflow=*");
    EXPECT_NO_THROW(allowed.run()) << word;
  }
}

}  // namespace
}  // namespace ingot::convert
