#include "convert/job/job_identity.h"
#include "formats/json/json.h"
#include "tests/convert/conversion.h"
#include "tests/convert/output_tensors.h"
#include "tests/convert/targets.h"
#include "tests/support/test.h"

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
  choices.scales_from_fingerprint = source_fingerprint(*choices.scales_from, nullptr, 1);
}

formats::Json quantization_config(const std::filesystem::path& directory) {
  const formats::Json config = formats::read_json_file(directory / "config.json", 1 << 20);
  return config.value("quantization_config", formats::Json());
}

// How the blocks of two checkpoints of the same names and shapes compare.
struct BlockCount {
  std::size_t blocks = 0;
  std::size_t equal = 0;  // codes and scale, byte for byte
  std::size_t wide = 0;   // of the others: with a code above 224 in the first
};

BlockCount compare_blocks(const OutputTensors& a, const OutputTensors& b) {
  BlockCount count;
  for (const auto& [name, codes] : a) {
    if (codes.dtype != formats::DType::kF8E4M3) continue;
    const auto& other = b.at(name);
    const auto scales = a.at(name + "_scale_inv").as<std::uint32_t>();
    const auto other_scales = b.at(name + "_scale_inv").as<std::uint32_t>();
    const std::size_t rows = codes.shape[0], cols = codes.shape[1];
    std::size_t index = 0;
    for (std::size_t r = 0; r < rows; r += kBlock) {
      for (std::size_t c = 0; c < cols; c += kBlock, ++index) {
        bool is_equal = scales[index] == other_scales[index], is_wide = false;
        for (std::size_t i = r; i < std::min(r + kBlock, rows); ++i) {
          for (std::size_t j = c; j < std::min(c + kBlock, cols); ++j) {
            const std::size_t at = i * cols + j;
            is_equal = is_equal && codes.bytes[at] == other.bytes[at];
            is_wide = is_wide || (codes.bytes[at] & 0x7F) > 0x76;
          }
        }
        ++count.blocks;
        if (is_equal) ++count.equal;
        if (!is_equal && is_wide) ++count.wide;
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
  EXPECT_EQ(count.wide, 0U) << "only blocks without a code above 224 may get another scale";
  EXPECT_EQ(report.quality.exact_blocks, 207U) << "no value was rounded";
  EXPECT_EQ(report.quality.rounded_blocks, 0U);
  Conversion(dir_ / "back", dir_ / "again").run();
  EXPECT_TRUE(tensor_bytes(dir_ / "again") == tensor_bytes(small_bf16())) << "values of all blocks";
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

}  // namespace
}  // namespace ingot::convert
