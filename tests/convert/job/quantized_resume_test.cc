#include "convert/output/output_directory.h"
#include "tests/convert/conversion.h"
#include "tests/convert/job/unfinished_job.h"
#include "tests/convert/output_tensors.h"
#include "tests/convert/targets.h"
#include "tests/support/test.h"

// Only the source and the choices decide a byte of the output, also where a run was stopped.

namespace ingot::convert {
namespace {

using namespace ingot::testing;
using formats::SchemeId;
using ingot::testing::Target;

// A scheme of which every weight is encoded by itself, one with a scale for a whole tensor, and one
// whose global scale several tensors share.
bool is_first(const Target& target) {
  const SchemeId scheme = target.storage->scheme;
  return scheme == SchemeId::kInt8Channel || scheme == SchemeId::kFp8Tensor ||
         scheme == SchemeId::kNvfp4;
}

std::vector<Target> first_schemes() {
  std::vector<Target> targets = scheme_targets();
  std::erase_if(targets, std::not_fn(is_first));
  return targets;
}

std::vector<Target> other_schemes() {
  std::vector<Target> targets = scheme_targets();
  std::erase_if(targets, is_first);
  return targets;
}

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

INSTANTIATE_TEST_SUITE_P(Schemes, SameBytes, ::testing::ValuesIn(first_schemes()), target_name);
INSTANTIATE_TEST_SUITE_P(SlowSchemes, SameBytes, ::testing::ValuesIn(other_schemes()), target_name);

TEST(QuantizedJob, RefusesOtherChoicesOfHowNumbersAreWritten) {
  const TempDir directory;
  Conversion conversion(synth_model(), directory / "out");
  conversion.recipe.to = formats::SchemeId::kNvfp4;
  ASSERT_TRUE(run_stopped(conversion, 60));
  conversion.execute.resume = true;
  const auto refuse = [&](const auto& change) {
    Conversion other = conversion;
    change(other.recipe.choices);
    expect_error(ErrorCode::kMismatch, {"other options"}, [&] { other.run(); });
  };
  refuse([](Choices& choices) { choices.search = quantize::ScaleSearch::kAmax; });
  refuse([](Choices& choices) { choices.via = Via::kBf16; });
  refuse([](Choices& choices) { choices.quantize_attention = true; });
  refuse([](Choices& choices) { choices.fp8_grid = quantize::Fp8Grid::kUe8m0; });
  refuse([](Choices& choices) {
    choices.activations = formats::Activations::kStatic;
    choices.input_scale = 1.0F;
  });
  conversion.run();
}

// A job of which everything is staged and in the journal, up to the moment before side files are
// written, so that a test can take any item back.
class FusedGroupResume : public ::testing::Test {
 protected:
  // Expert 6 of layer 1: its gate is in the first file, its up in the second.
  static constexpr const char* kGate = "model.layers.1.mlp.experts.6.gate_proj.weight";
  static constexpr const char* kUp = "model.layers.1.mlp.experts.6.up_proj.weight";

  static Conversion to_nvfp4(const std::filesystem::path& from, const std::filesystem::path& to) {
    Conversion conversion(from, to);
    conversion.recipe.to = formats::SchemeId::kNvfp4;
    conversion.recipe.choices.search = quantize::ScaleSearch::kAmax;
    return conversion;
  }

  // Positions of the two in the plan, which is the same for the example and copies of it.
  static std::pair<std::uint32_t, std::uint32_t> items(Recipe recipe) {
    const auto source = formats::Checkpoint::open(small_v32());
    resolve(recipe, source);
    const Plan plan = plan_for(source, recipe);
    std::pair<std::uint32_t, std::uint32_t> found;
    for (std::uint32_t item = 0; item < plan.tensors.size(); ++item) {
      const std::string& name = source.tensors()[plan.tensors[item].tensor].name;
      if (name == kGate) found.first = item;
      if (name == kUp) found.second = item;
    }
    EXPECT_EQ(plan.tensors[found.first].fused_set, plan.tensors[found.second].fused_set);
    return found;
  }

  // A pair of which each member has a source file of its own.
  struct Split {
    std::uint32_t first = 0, second = 0;  // items
    std::filesystem::path first_file, second_file;
  };
  static Split first_split_pair(const Conversion& conversion) {
    const auto source = formats::Checkpoint::open(conversion.input);
    Recipe recipe = conversion.recipe;
    resolve(recipe, source);
    const Plan plan = plan_for(source, recipe);
    const auto file_of = [&](std::uint32_t item) {
      const auto& tensor = source.tensors()[plan.tensors[item].tensor];
      return source.files()[source.stored()[tensor.encoding.stored.weight()].file].name;
    };
    for (const auto& group : plan.fused_sets) {
      if (group.size() == 2 && file_of(group[0]) != file_of(group[1])) {
        return {.first = group[0],
                .second = group[1],
                .first_file = conversion.input / file_of(group[0]),
                .second_file = conversion.input / file_of(group[1])};
      }
    }
    ADD_FAILURE() << "no pair lies in two files";
    return {};
  }

  // Takes items out of the journal of an unfinished output.
  static void forget(const std::filesystem::path& output, const std::set<std::uint32_t>& gone) {
    const OutputPaths paths(output);
    JournalContents contents = *Journal::read(paths.journal);
    for (const std::uint32_t item : gone) contents.items.erase(item);
    std::filesystem::remove(paths.journal);
    Journal journal = Journal::create(paths.journal, contents.identity);
    journal.add_results(contents.items);
    for (const std::string& file : contents.consumed) {
      if (std::filesystem::exists(OutputPaths(output).consumed / (file + ".header")))
        journal.add_consumed(file);
    }
  }
};

TEST_F(FusedGroupResume, LeftTensorTakesTheScaleOfItsPartner) {
  const TempDir directory;
  to_nvfp4(small_v32(), directory / "whole").run();
  const auto [gate, up] = items(to_nvfp4("", "").recipe);
  for (const std::uint32_t left : {gate, up}) {
    Conversion conversion = to_nvfp4(small_v32(), directory / std::to_string(left));
    conversion.execute.resume = true;
    run_to_the_last_tensor(conversion);
    const std::size_t n_items = Journal::read(OutputPaths(conversion.output).journal)->items.size();
    forget(conversion.output, {left});
    EXPECT_EQ(conversion.run().tensors_resumed, n_items - 1);
    EXPECT_TRUE(tree(conversion.output) == tree(directory / "whole"));
  }
}

// This works because of the reduction in the journal: the other member can no longer be read.
TEST_F(FusedGroupResume, SharedScaleSurvivesALostSource) {
  const TempDir directory;
  Conversion many(synth_model(), directory / "many");
  many.recipe.to.reset();
  many.plan.shards.max_shard_bytes = 300'000;
  many.run();
  Conversion conversion = to_nvfp4(directory / "many", directory / "whole");
  conversion.run();
  std::filesystem::copy(directory / "many", directory / "in");
  conversion = to_nvfp4(directory / "in", directory / "out");
  conversion.execute.resume = true;
  conversion.execute.consume_source = true;
  const Split split = first_split_pair(conversion);
  run_to_the_last_tensor(conversion);
  ASSERT_FALSE(std::filesystem::exists(split.first_file));
  forget(conversion.output, {split.second});
  EXPECT_TRUE(Journal::read(OutputPaths(conversion.output).journal)->items.contains(split.first));
  ASSERT_FALSE(std::filesystem::exists(split.first_file));
  if (!std::filesystem::exists(split.second_file)) {
    // Both were consumed: the second, whose output is to be made again, is fetched again.
    std::filesystem::copy(directory / "many" / split.second_file.filename(), split.second_file);
  }
  conversion.run();
  EXPECT_TRUE(tree(conversion.output) == tree(directory / "whole"));
}

TEST_F(FusedGroupResume, JournalHoldsTheErrorOfATensor) {
  const TempDir directory;
  Conversion whole = to_nvfp4(small_v32(), directory / "whole");
  const ExecuteReport expected = whole.run();
  Conversion conversion = to_nvfp4(small_v32(), directory / "out");
  conversion.execute.resume = true;
  run_to_the_last_tensor(conversion);
  const auto contents = Journal::read(OutputPaths(conversion.output).journal);
  const auto n_measured = static_cast<std::size_t>(
      std::count_if(contents->items.begin(), contents->items.end(),
                    [](const auto& item) { return item.second.quality.has_value(); }));
  EXPECT_EQ(n_measured, 3U * (8 + 1 + 1));
  const ExecuteReport report = conversion.run();
  EXPECT_EQ(report.tensors_resumed, contents->items.size());
  ASSERT_EQ(report.quality.rows.size(), expected.quality.rows.size());
  for (std::size_t i = 0; i < report.quality.rows.size(); ++i) {
    EXPECT_EQ(report.quality.rows[i].sums, expected.quality.rows[i].sums);
    EXPECT_EQ(report.quality.rows[i].n_tensors, expected.quality.rows[i].n_tensors);
  }
  ASSERT_EQ(report.quality.worst.size(), 20U);
  for (std::size_t i = 0; i < 20; ++i)
    EXPECT_EQ(report.quality.worst[i].tensor, expected.quality.worst[i].tensor);
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

TEST_P(SameBytes, ViaBf16AsFromACastToBf16) {
  Conversion after = conversion(synth_bf16(), "after");
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
  EXPECT_GE(from_cast.size(), 40U);
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
