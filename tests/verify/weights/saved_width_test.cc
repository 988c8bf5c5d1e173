#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "formats/checkpoint/stored_facts.h"
#include "tests/convert/conversion.h"
#include "tests/support/expect_error.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_checkpoint.h"
#include "verify/verification.h"

// Weights that training programs saved in F32 under a config of fewer bits.

namespace ingot::testing {
namespace {

using formats::SchemeId;

constexpr const char* kBias = "model.layers.1.mlp.gate.e_score_correction_bias";

// Every tensor is in F32, with numbers that are none of BF16.
void write_saved(const std::filesystem::path& directory, const std::string& dtype) {
  TinyCheckpoint tiny = tiny_deepseek_v3();
  tiny.config.insert(tiny.config.rfind('}'), R"(, "dtype": ")" + dtype + "\"");
  for (TinyTensor& tensor : tiny.files.begin()->second) {
    std::uint64_t n = 1;
    for (const std::uint64_t side : tensor.shape) n *= side;
    tensor.dtype = "F32";
    for (std::uint64_t i = 0; i < n; ++i) {
      const float value = 0.0123F + static_cast<float>(i) * 0.00321F;
      tensor.data.append(reinterpret_cast<const char*>(&value), sizeof value);
    }
  }
  tiny.write(directory);
}

std::map<std::string, formats::DType> dtypes_of(const std::filesystem::path& directory) {
  std::map<std::string, formats::DType> dtypes;
  const Fd file = Fd::open_for_reading(directory / "model.safetensors");
  for (const formats::StoredTensor& tensor : formats::read_safetensors_header(file).tensors)
    dtypes[tensor.name] = tensor.dtype;
  return dtypes;
}

TEST(SavedWidth, AllButWhatReleasesKeepIsCast) {
  for (const auto& [dtype, to, stored] :
       {std::tuple("bfloat16", SchemeId::kBf16, formats::DType::kBf16),
        std::tuple("float16", SchemeId::kF16, formats::DType::kF16)}) {
    SCOPED_TRACE(dtype);
    const TempDir directory;
    write_saved(directory / "in", dtype);
    Conversion conversion(directory / "in", directory / "out");
    conversion.recipe.to = to;
    conversion.run();
    for (const auto& [name, found] : dtypes_of(directory / "out"))
      EXPECT_EQ(found, name == kBias ? formats::DType::kF32 : stored) << name;
    // A norm that lost bits is no fault of an output whose source says so, with manifest or not.
    for (const bool has_manifest : {true, false}) {
      if (!has_manifest) std::filesystem::remove(directory / "out" / formats::kManifestName);
      const verify::Report report = verify::verify_pair(directory / "in", directory / "out",
                                                        {.levels = {verify::Level::kWeights}});
      EXPECT_TRUE(report.passed()) << has_manifest << verify::verdict_sentence(report);
    }
  }
}

TEST(SavedWidth, RulesComeFirst) {
  const TempDir directory;
  write_saved(directory / "in", "bfloat16");
  Conversion conversion(directory / "in", directory / "out");
  conversion.recipe.rules = {convert::parse_rule("role:final-norm=keep"),
                             convert::parse_rule("role:router-bias=bf16")};
  conversion.run();
  const auto dtypes = dtypes_of(directory / "out");
  EXPECT_EQ(dtypes.at("model.norm.weight"), formats::DType::kF32);
  EXPECT_EQ(dtypes.at(kBias), formats::DType::kBf16);
}

// The config says F32, or another target: nothing would change.
TEST(SavedWidth, ATargetThatChangesNothingIsRefused) {
  const TempDir directory;
  write_saved(directory / "f32", "float32");
  write_saved(directory / "bf16", "bfloat16");
  const auto refuse = [&](const char* source, SchemeId to) {
    Conversion conversion(directory / source, directory / "out");
    conversion.recipe.to = to;
    expect_error(ErrorCode::kInvalidArgument, {"--to", "no weight takes it", "--rule"},
                 [&] { conversion.run(); });
  };
  refuse("f32", SchemeId::kBf16);
  refuse("bf16", SchemeId::kF16);
  Conversion(directory / "bf16", directory / "cast").run();
  // The bias is F32, and no weight.
  std::filesystem::rename(directory / "cast", directory / "plain");
  refuse("plain", SchemeId::kF32);
  Conversion again(directory / "plain", directory / "again");
  EXPECT_NO_THROW(again.run());
}

}  // namespace
}  // namespace ingot::testing
