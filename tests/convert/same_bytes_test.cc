#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "convert/run/memory_plan.h"
#include "tests/convert/conversion.h"
#include "tests/convert/output_tensors.h"
#include "tests/convert/targets.h"
#include "tests/support/temp_dir.h"

// For every scheme: nothing but the source and the choices decides a byte of the output.

namespace ingot::convert {
namespace {

using formats::SchemeId;
using namespace ingot::testing;
using ingot::testing::Target;

class SameBytes : public ::testing::TestWithParam<Target> {
 protected:
  Conversion conversion(const std::filesystem::path& from, const std::string& to) {
    Conversion conversion(from, directory_ / to);
    GetParam().apply(conversion.recipe);
    conversion.recipe.choices.quantize_attention = true;
    return conversion;
  }
  Conversion conversion(const std::string& to) { return conversion(synth_model(), to); }

  // The output of one thread and every default; made once per process.
  const std::filesystem::path& plain_run() {
    static const TempDir directory;
    static std::map<std::string, std::filesystem::path> made;
    std::filesystem::path& path = made[GetParam().name()];
    if (path.empty()) {
      Conversion plain = conversion("plain");
      path = plain.output = directory / GetParam().name();
      plain.run();
    }
    return path;
  }

  TempDir directory_;
};

INSTANTIATE_TEST_SUITE_P(Schemes, SameBytes, ::testing::ValuesIn(scheme_targets()), target_name);

// The smallest budget that the plan accepts: no group is kept between its passes.
std::uint64_t least_memory(const Conversion& conversion, std::size_t threads) {
  const auto source = formats::Checkpoint::open(conversion.input);
  Recipe recipe = conversion.recipe;
  resolve(recipe, source);
  const Plan plan = plan_for(source, recipe, conversion.plan);
  std::uint64_t low = 0, high = std::uint64_t{1} << 30;
  while (high - low > 1) {
    const std::uint64_t middle = (low + high) / 2;
    try {
      plan_memory(plan, threads, middle);
      high = middle;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kLimit);
      low = middle;
    }
  }
  return high;
}

TEST_P(SameBytes, ForAnyThreadsBudgetAndWritePath) {
  const auto expected = tree(plain_run());
  Conversion buffered = conversion("buffered");
  buffered.execute.threads = 2;
  buffered.execute.direct_io = false;
  EXPECT_FALSE(buffered.run().tensors.direct_io);
  EXPECT_TRUE(tree(buffered.output) == expected);

  Conversion small = conversion("small");
  small.execute.threads = 3;
  small.execute.mem_limit = std::uint64_t{64} << 20;
  small.run();
  EXPECT_TRUE(tree(small.output) == expected);
}

TEST_P(SameBytes, WithGroupsThatAreReadTwice) {
  Conversion least = conversion("least");
  least.execute.mem_limit = least_memory(least, 1);
  const ExecuteReport report = least.run();
  EXPECT_TRUE(tree(least.output) == tree(plain_run()));
  const bool has_groups = GetParam().storage->scheme == SchemeId::kNvfp4 ||
                          GetParam().storage->scheme == SchemeId::kFp8Tensor;
  EXPECT_EQ(report.memory.n_read_twice > 0, has_groups);
}

TEST_P(SameBytes, ForFilesOfAnySize) {
  const OutputTensors expected = read_output(plain_run());
  Conversion dealt = conversion("dealt");
  dealt.plan.shards.max_shard_bytes = 300'000;
  dealt.run();
  const OutputTensors tensors = read_output(dealt.output);
  EXPECT_TRUE(tensors == expected);
  std::set<std::string> files;
  for (const auto& [name, tensor] : tensors) files.insert(tensor.file);
  EXPECT_GT(files.size(), 4U);
}

// A tensor that the source holds as FP8 and both conversions quantize.
OutputTensors quantized_parts(const OutputTensors& tensors) {
  OutputTensors parts;
  for (const auto& [name, tensor] : tensors) {
    const bool is_plain = tensor.dtype == formats::DType::kBf16 ||
                          (tensor.dtype == formats::DType::kF32 && name.find("scale") == name.npos);
    if (!is_plain) parts.emplace(name, tensor);
  }
  return parts;
}

// The usual model cast to BF16, made once per process.
const std::filesystem::path& bf16_model() {
  static const TempDir directory;
  static const std::filesystem::path path = [] {
    Conversion(synth_model(), directory / "bf16").run();
    return directory / "bf16";
  }();
  return path;
}

TEST_P(SameBytes, ViaBf16AsFromACastToBf16) {
  Conversion after = conversion(bf16_model(), "after");
  Conversion via = conversion("via");
  Conversion direct = conversion("direct");
  via.recipe.choices.via = Via::kBf16;
  // Blocks that keep their payload are not encoded at all; ask for another grid.
  for (Conversion* one : {&after, &via, &direct})
    one->recipe.choices.fp8_grid = quantize::Fp8Grid::kUe8m0;
  after.run();
  via.run();
  direct.run();
  const OutputTensors from_cast = quantized_parts(read_output(after.output));
  const OutputTensors tensors = read_output(via.output);
  EXPECT_GT(from_cast.size(), 40U);
  for (const auto& [name, tensor] : from_cast) {
    ASSERT_TRUE(tensors.contains(name)) << name;
    EXPECT_TRUE(tensors.at(name) == tensor) << name;
  }
  // Any F32 scale makes values that BF16 cannot hold.
  const OutputTensors unrounded = read_output(direct.output);
  EXPECT_TRUE(std::any_of(from_cast.begin(), from_cast.end(), [&](const auto& entry) {
    return !(unrounded.at(entry.first) == entry.second);
  }));
}

TEST_P(SameBytes, ViaEitherWhereScalesArePowersOfTwo) {
  static const TempDir directory;
  static const auto source = synth_tiny(directory / "powers", "deepseek_v32", /*ue8m0=*/true);
  Conversion f32 = conversion(source, "f32");
  Conversion bf16 = conversion(source, "bf16");
  f32.recipe.choices.fp8_grid = bf16.recipe.choices.fp8_grid = quantize::Fp8Grid::kAmax;
  bf16.recipe.choices.via = Via::kBf16;
  f32.run();
  bf16.run();
  EXPECT_TRUE(read_output(f32.output) == read_output(bf16.output));
}

}  // namespace
}  // namespace ingot::convert
