#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "convert/job/job_identity.h"
#include "formats/json/json.h"
#include "tests/convert/conversion.h"
#include "tests/convert/plain_decode.h"
#include "tests/convert/targets.h"
#include "tests/support/expect_error.h"
#include "tests/support/temp_dir.h"

// FP8 cast to BF16 by us and back, and FP8 to FP8.

namespace ingot::convert {
namespace {

using namespace ingot::testing;
using formats::SchemeId;

constexpr std::size_t kBlock = 128;

Conversion to_fp8(const std::filesystem::path& from, const std::filesystem::path& to) {
  Conversion conversion(from, to);
  conversion.recipe.to = SchemeId::kFp8Block;
  return conversion;
}

void take_scales_from(Conversion& conversion, const std::filesystem::path& release) {
  auto& choices = conversion.recipe.choices;
  choices.scales_from = std::make_shared<formats::Checkpoint>(formats::Checkpoint::open(release));
  choices.scales_from_fingerprint = source_fingerprint(*choices.scales_from, nullptr, {});
}

formats::Json quantization_config(const std::filesystem::path& directory) {
  const formats::Json config = formats::read_json_file(directory / "config.json", 1 << 20);
  return config.value("quantization_config", formats::Json());
}

// How the blocks of two checkpoints of the same names and shapes compare.
struct BlockCount {
  std::size_t blocks = 0;
  std::size_t equal = 0;         // codes and scale, byte for byte
  std::size_t equal_values = 0;  // of the others
  std::size_t wide = 0;          // of the others: with a code above 224 in the first
};

BlockCount compare_blocks(const OutputTensors& a, const OutputTensors& b) {
  BlockCount count;
  for (const auto& [name, codes] : a) {
    if (codes.dtype != formats::DType::kF8E4M3) continue;
    const auto& other = b.at(name);
    const auto scales = a.at(name + "_scale_inv").as<std::uint32_t>();
    const auto other_scales = b.at(name + "_scale_inv").as<std::uint32_t>();
    const std::vector<float> values = released_values(a, name);
    const std::vector<float> other_values = released_values(b, name);
    const std::size_t rows = codes.shape[0], cols = codes.shape[1];
    std::size_t index = 0;
    for (std::size_t r = 0; r < rows; r += kBlock) {
      for (std::size_t c = 0; c < cols; c += kBlock, ++index) {
        ++count.blocks;
        bool is_equal = scales[index] == other_scales[index], is_same_value = true;
        bool is_wide = false;
        for (std::size_t i = r; i < std::min(r + kBlock, rows); ++i) {
          for (std::size_t j = c; j < std::min(c + kBlock, cols); ++j) {
            const std::size_t at = i * cols + j;
            is_equal = is_equal && codes.bytes[at] == other.bytes[at];
            is_same_value = is_same_value && values[at] == other_values[at];
            is_wide = is_wide || (codes.bytes[at] & 0x7F) > 0x76;
          }
        }
        if (is_equal) {
          ++count.equal;
          continue;
        }
        if (is_same_value) ++count.equal_values;
        if (is_wide) ++count.wide;
      }
    }
  }
  return count;
}

using Fp8Return = InTempDir;
using Fp8ToFp8 = InTempDir;

TEST_F(Fp8Return, CastRoundTripRestoresBlocks) {
  const ExecuteReport report = [&] {
    Conversion conversion = to_fp8(small_bf16(), dir_ / "back");
    return conversion.run();
  }();
  const BlockCount count = compare_blocks(read_output(small_v32()), read_output(dir_ / "back"));
  EXPECT_EQ(count.blocks, 207U);
  EXPECT_EQ(count.equal, 203U);
  EXPECT_EQ(count.equal_values, 4U);
  EXPECT_EQ(count.wide, 0U) << "only blocks without a code above 224 may get another scale";
  EXPECT_EQ(report.quality.exact_blocks, 207U) << "no value was rounded";
  EXPECT_EQ(report.quality.rounded_blocks, 0U);
}

TEST_F(Fp8Return, OtherTensorsComeBackUnchanged) {
  to_fp8(small_bf16(), dir_ / "back").run();
  const OutputTensors released = read_output(small_v32());
  const OutputTensors back = read_output(dir_ / "back");
  ASSERT_EQ(back.size(), released.size());
  for (const auto& [name, tensor] : released) {
    ASSERT_TRUE(back.contains(name)) << name;
    EXPECT_EQ(back.at(name).dtype, tensor.dtype) << name;
    EXPECT_EQ(back.at(name).shape, tensor.shape) << name;
    const bool is_part = tensor.dtype == formats::DType::kF8E4M3 || name.ends_with("_scale_inv");
    EXPECT_TRUE(is_part || back.at(name).bytes == tensor.bytes) << name;
  }
}

TEST_F(Fp8Return, ReleasedScalesGiveTheReleasedTensors) {
  Conversion conversion = to_fp8(small_bf16(), dir_ / "back");
  take_scales_from(conversion, small_v32());
  conversion.run();
  EXPECT_TRUE(read_output(dir_ / "back") == read_output(small_v32()));
  EXPECT_EQ(quantization_config(dir_ / "back").value("scale_fmt", ""), "ue8m0");
}

TEST_F(Fp8Return, RefusesScalesOfAReleaseLackingATensor) {
  Conversion without(small_v32(), dir_ / "without-mtp");
  without.recipe.to.reset();
  without.recipe.mtp = MtpPolicy::kDrop;
  without.run();
  Conversion conversion = to_fp8(small_bf16(), dir_ / "back");
  take_scales_from(conversion, dir_ / "without-mtp");
  expect_error(ErrorCode::kMissingTensor,
               {"--scales-from", "model.layers.2.mlp.experts.0.down_proj.weight"},
               [&] { conversion.run(); });
}

TEST_F(Fp8Return, GridComesFromTheManifestOfTheCast) {
  to_fp8(small_bf16(), dir_ / "remembered").run();
  EXPECT_EQ(quantization_config(dir_ / "remembered").value("scale_fmt", ""), "ue8m0");

  std::filesystem::copy(small_bf16(), dir_ / "foreign");
  std::filesystem::remove(dir_ / "foreign" / "ingot.json");
  Conversion forgotten = to_fp8(dir_ / "foreign", dir_ / "forgotten");
  forgotten.recipe.choices.search = quantize::ScaleSearch::kAmax;
  forgotten.run();
  EXPECT_FALSE(quantization_config(dir_ / "forgotten").contains("scale_fmt"));
  std::size_t powers = 0, others = 0;
  for (const auto& [name, tensor] : read_output(dir_ / "forgotten")) {
    if (!name.ends_with("_scale_inv")) continue;
    for (const auto bits : tensor.as<std::uint32_t>()) (bits << 9 == 0 ? powers : others) += 1;
  }
  EXPECT_GT(others, 10 * powers) << "amax / 448 is hardly ever a power of two";
}

TEST_F(Fp8Return, SearchFindsPowersOfTwoWithoutAManifest) {
  std::filesystem::copy(small_bf16(), dir_ / "foreign");
  std::filesystem::remove(dir_ / "foreign" / "ingot.json");
  to_fp8(dir_ / "foreign", dir_ / "back").run();
  const BlockCount count = compare_blocks(read_output(small_v32()), read_output(dir_ / "back"));
  EXPECT_EQ(count.equal, 203U);
  EXPECT_EQ(count.wide, 0U) << "only blocks without a code above 224 may get another scale";
}

TEST_F(Fp8Return, AnOptionWinsOverTheManifest) {
  Conversion conversion = to_fp8(small_bf16(), dir_ / "amax");
  conversion.recipe.choices.fp8_grid = quantize::Fp8Grid::kAmax;
  conversion.recipe.choices.search = quantize::ScaleSearch::kAmax;
  conversion.run();
  EXPECT_FALSE(quantization_config(dir_ / "amax").contains("scale_fmt"));
  const OutputTensors released = read_output(small_v32());
  for (const auto& [name, tensor] : read_output(dir_ / "amax")) {
    if (!name.ends_with("_scale_inv")) continue;
    const std::string weight = name.substr(0, name.size() - std::string("_scale_inv").size());
    const std::vector<float> values = released_values(released, weight);
    const std::size_t cols = released.at(weight).shape[1];
    std::vector<float> amax(tensor.bytes.size() / sizeof(float), 1e-4F);
    for (std::size_t i = 0; i < values.size(); ++i) {
      float& block = amax[i / cols / kBlock * ((cols + kBlock - 1) / kBlock) + i % cols / kBlock];
      block = std::max(block, std::abs(values[i]));
    }
    const auto scales = tensor.as<float>();
    for (std::size_t i = 0; i < scales.size(); ++i) ASSERT_EQ(scales[i], amax[i] / 448.0F) << name;
  }
}

TEST_F(Fp8ToFp8, SameGridKeepsCodesAndScales) {
  Conversion conversion = to_fp8(small_v32(), dir_ / "out");
  const auto source = formats::Checkpoint::open(small_v32());
  Recipe recipe = conversion.recipe;
  resolve(recipe, source);
  const Plan plan = plan_for(source, recipe);
  EXPECT_EQ(plan.counts.copied, plan.tensors.size());
  EXPECT_EQ(plan.counts.quantized, 0U);
  conversion.run();
  EXPECT_TRUE(read_output(dir_ / "out") == read_output(small_v32()));
  EXPECT_EQ(quantization_config(dir_ / "out"), quantization_config(small_v32()));
}

TEST_F(Fp8ToFp8, AnotherGridReencodesAndDropsThePromise) {
  Conversion conversion = to_fp8(small_v32(), dir_ / "out");
  conversion.recipe.choices.fp8_grid = quantize::Fp8Grid::kAmax;
  const ExecuteReport report = conversion.run();
  // A search finds the scales of all blocks with a code above 224.
  EXPECT_GE(report.quality.exact_blocks, 203U);
  EXPECT_EQ(report.quality.exact_blocks + report.quality.rounded_blocks, 207U);
  EXPECT_FALSE(quantization_config(dir_ / "out").contains("scale_fmt"));

  Conversion from_cast = to_fp8(small_bf16(), dir_ / "from-cast");
  from_cast.recipe.choices.fp8_grid = quantize::Fp8Grid::kAmax;
  from_cast.run();
  EXPECT_TRUE(read_output(dir_ / "out") == read_output(dir_ / "from-cast"))
      << "the cast of power-of-two scales loses nothing";
}

TEST_F(Fp8ToFp8, OtherScalesDoNotGetThePromise) {
  Conversion first = to_fp8(small_v32(), dir_ / "amax");
  first.recipe.choices.fp8_grid = quantize::Fp8Grid::kAmax;
  first.run();
  to_fp8(dir_ / "amax", dir_ / "copy").run();
  EXPECT_FALSE(quantization_config(dir_ / "copy").contains("scale_fmt"));
  EXPECT_TRUE(read_output(dir_ / "copy") == read_output(dir_ / "amax"));

  Conversion powers = to_fp8(dir_ / "amax", dir_ / "ue8m0");
  powers.recipe.choices.fp8_grid = quantize::Fp8Grid::kUe8m0;
  powers.run();
  EXPECT_EQ(quantization_config(dir_ / "ue8m0").value("scale_fmt", ""), "ue8m0");
}

TEST_F(Fp8ToFp8, ReleasedScalesWithoutThePromiseDropIt) {
  Conversion amax = to_fp8(small_v32(), dir_ / "amax");
  amax.recipe.choices.fp8_grid = quantize::Fp8Grid::kAmax;
  amax.run();
  Conversion conversion = to_fp8(small_bf16(), dir_ / "out");
  take_scales_from(conversion, dir_ / "amax");
  conversion.run();
  EXPECT_FALSE(quantization_config(dir_ / "out").contains("scale_fmt"));
  EXPECT_TRUE(read_output(dir_ / "out") == read_output(dir_ / "amax"));
}

// MXFP4 as a source: its numbers fit NVFP4 and FP8 blocks, so they go there without rounding.

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
