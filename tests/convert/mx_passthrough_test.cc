#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/convert/conversion.h"
#include "tests/convert/plain_decode.h"
#include "tests/convert/targets.h"
#include "tests/support/temp_dir.h"

// MXFP4 as a source: its numbers fit NVFP4 and FP8 blocks, so they go there without rounding.

namespace ingot::convert {
namespace {

using formats::SchemeId;
using namespace ingot::testing;

// A model whose MLPs are MXFP4 and whose other weights are BF16; made once.
const std::filesystem::path& mxfp4_model() {
  static const TempDir directory;
  static const std::filesystem::path path = [] {
    Conversion cast(synth_model(), directory / "bf16");
    cast.run();
    Conversion conversion(directory / "bf16", directory / "mxfp4");
    conversion.recipe.to = SchemeId::kMxfp4;
    conversion.run();
    return directory / "mxfp4";
  }();
  return path;
}

std::vector<std::string> mxfp4_modules() {
  constexpr std::string_view kSuffix = ".weight_packed";
  std::vector<std::string> modules;
  for (const auto& [name, tensor] : read_output(mxfp4_model())) {
    if (name.ends_with(kSuffix)) modules.push_back(name.substr(0, name.size() - kSuffix.size()));
  }
  EXPECT_GT(modules.size(), 15U);
  return modules;
}

std::vector<float> mxfp4_values(const OutputTensors& tensors, const std::string& module) {
  const auto& codes = tensors.at(module + ".weight_packed");
  return scaled_values(code_values(codes), scale_values(tensors.at(module + ".weight_scale")),
                       codes.shape[1] * 2, 1, 32);
}

TEST(MxPassthrough, Nvfp4KeepsCodesAndValuesInEitherDialect) {
  const OutputTensors before = read_output(mxfp4_model());
  for (const bool divides : {true, false}) {
    const TempDir directory;
    Conversion conversion(mxfp4_model(), directory / "out");
    conversion.recipe.to = SchemeId::kNvfp4;
    conversion.recipe.choices.dialect = divides ? "compressed-tensors" : "modelopt";
    conversion.recipe.choices.activations = formats::Activations::kWeightOnly;
    const ExecuteReport report = conversion.run();
    const OutputTensors output = read_output(directory / "out");
    for (const std::string& module : mxfp4_modules()) {
      const auto& codes = output.at(module + (divides ? ".weight_packed" : ".weight"));
      EXPECT_TRUE(codes.bytes == before.at(module + ".weight_packed").bytes) << module;
      std::vector<float> scales = scale_values(output.at(module + ".weight_scale"));
      const float global =
          output.at(module + (divides ? ".weight_global_scale" : ".weight_scale_2"))
              .as<float>()
              .front();
      for (float& scale : scales) scale = divides ? scale / global : scale * global;
      EXPECT_TRUE(scaled_values(code_values(codes), scales, codes.shape[1] * 2, 1, 16) ==
                  mxfp4_values(before, module))
          << module;
    }
    EXPECT_GT(report.quality.exact_blocks, 1000U);
    EXPECT_EQ(report.quality.rounded_blocks, 0U);
    EXPECT_EQ(report.quality.rounded_twice, 0U);
  }
}

TEST(MxPassthrough, Fp8BlocksKeepTheValues) {
  const OutputTensors before = read_output(mxfp4_model());
  const TempDir directory;
  Conversion conversion(mxfp4_model(), directory / "out");
  conversion.recipe.to = SchemeId::kFp8Block;
  const ExecuteReport report = conversion.run();
  const OutputTensors output = read_output(directory / "out");
  for (const std::string& module : mxfp4_modules()) {
    EXPECT_TRUE(released_values(output, module + ".weight") == mxfp4_values(before, module))
        << module;
    for (const auto bits : output.at(module + ".weight_scale_inv").as<std::uint32_t>())
      ASSERT_EQ(bits & 0x7FFFFFU, 0U) << "scales of powers of two call for such";
  }
  // Attention was BF16, and is rounded for the first time.
  EXPECT_EQ(report.quality.rounded_twice, 0U);
}

TEST(MxPassthrough, ToBf16AndBackIsTheSame) {
  const TempDir directory;
  Conversion(mxfp4_model(), directory / "bf16").run();
  Conversion back(directory / "bf16", directory / "back");
  back.recipe.to = SchemeId::kMxfp4;
  back.run();
  const OutputTensors before = read_output(mxfp4_model());
  const OutputTensors after = read_output(directory / "back");
  // A group whose largest code is below 4 comes back under a smaller scale.
  for (const std::string& module : mxfp4_modules())
    EXPECT_TRUE(mxfp4_values(after, module) == mxfp4_values(before, module)) << module;
}

}  // namespace
}  // namespace ingot::convert
