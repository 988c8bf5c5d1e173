#include "tests/convert/job/unfinished_job.h"
#include "tests/convert/slicing/rank_tree.h"
#include "tests/support/test.h"

// A sliced output depends only on source and options, whatever an earlier run left there.

namespace ingot::testing {
namespace {

using shard::TpFit;

// Quantized and cut in one pass, of a small model.
Conversion to_slices(const std::filesystem::path& to, const Cut& cut) {
  Conversion conversion(synth_model(), to);
  conversion.recipe.to = formats::SchemeId::kNvfp4;
  conversion.recipe.choices.search = quantize::ScaleSearch::kAmax;
  conversion.plan = cut.options();
  return conversion;
}

constexpr Cut kEveryAxis = {.tp = 2, .ep = 2, .etp = 2, .pp = 2, .fit = TpFit::kRetile};

using SlicedJob = InTempDir;

TEST_F(SlicedJob, IgnoresThreadsAndBudget) {
  const Conversion one = to_slices(dir_ / "one", kEveryAxis);
  Conversion(one).run();
  const auto expected = tree(one.output);
  Conversion two = to_slices(dir_ / "two", kEveryAxis);
  two.execute.threads = 2;
  two.execute.direct_io = false;
  two.run();
  EXPECT_EQ(first_difference(tree(two.output), expected), "");
  Conversion four = to_slices(dir_ / "four", kEveryAxis);
  four.execute.threads = 4;
  four.execute.mem_limit = least_memory(four, 4);
  const convert::ExecuteReport report = four.run();
  EXPECT_LT(report.memory.window_bytes, std::uint64_t{8} << 20) << "smaller windows than usual";
  EXPECT_EQ(first_difference(tree(four.output), expected), "");
}

TEST_F(SlicedJob, KeepsProvenAndRedoesDamagedTensors) {
  const Conversion whole = to_slices(dir_ / "whole", kEveryAxis);
  Conversion(whole).run();
  Conversion conversion = to_slices(dir_ / "out", kEveryAxis);
  run_to_the_last_tensor(conversion);
  conversion.execute.resume = true;
  Conversion damaged = conversion;
  damaged.output = dir_ / "damaged";
  std::filesystem::copy(conversion.output, damaged.output,
                        std::filesystem::copy_options::recursive);
  const convert::ExecuteReport report = conversion.run();
  EXPECT_GT(report.tensors_resumed, 50U);
  EXPECT_EQ(report.tensors_redone, 0U);
  EXPECT_LT(report.tensors.write.n_bytes, 1'000'000U) << "headers alone";
  EXPECT_EQ(first_difference(tree(conversion.output), tree(whole.output)), "");

  // The last byte of each file: some tensor's, in some rank's slice.
  const convert::OutputPaths paths(damaged.output);
  for (const auto& entry : std::filesystem::recursive_directory_iterator(paths.staged)) {
    if (entry.path().extension() != ".safetensors") continue;
    const Fd file = Fd::open_for_writing(entry.path(), 02);
    std::array<std::byte, 1> byte{};
    file.read_exact(byte, file.size() - 1);
    byte[0] ^= std::byte{1};
    file.write_exact(byte, file.size() - 1);
  }
  EXPECT_GT(damaged.run().tensors_redone, 0U);
  EXPECT_EQ(first_difference(tree(damaged.output), tree(whole.output)), "");
}

using SlicedResume = InTempDir;

TEST_F(SlicedResume, RefusesOtherSlicingOptions) {
  Conversion conversion = to_slices(dir_ / "out", {.ep = 2});
  ASSERT_TRUE(run_stopped(conversion, 60));
  conversion.execute.resume = true;
  const auto refuse = [&](const auto& change) {
    Conversion other = conversion;
    change(other.plan);
    expect_error(ErrorCode::kMismatch, {"other options"}, [&] { other.run(); });
  };
  refuse([](convert::PlanOptions& plan) { plan = Cut{.ep = 4}.options(); });
  refuse([](convert::PlanOptions& plan) { plan = Cut{.ep = 2, .pp = 2}.options(); });
  refuse([](convert::PlanOptions& plan) { plan = {}; });
  refuse([](convert::PlanOptions& plan) { plan.links = false; });
  refuse([](convert::PlanOptions& plan) { plan.slicing.fit = TpFit::kRetile; });
  refuse([](convert::PlanOptions& plan) { plan.slicing.expert_map = "[3, 2, 1, 0]"; });
  refuse(
      [](convert::PlanOptions& plan) { plan.slicing.shared = shard::SharedExperts::kReplicated; });
  conversion.run();
}

TEST_F(SlicedResume, WithForceLeavesNothingOfAnotherTopology) {
  const Conversion fresh = to_slices(dir_ / "fresh", {.ep = 2});
  Conversion(fresh).run();
  for (const Cut& earlier : {Cut{.ep = 4}, Cut{.ep = 2, .pp = 2}, Cut{.ep = 2}}) {
    SCOPED_TRACE(earlier.name());
    Conversion conversion = to_slices(dir_ / "out", earlier);
    conversion.execute.force = true;
    conversion.run();
    conversion.plan = fresh.plan;
    conversion.run();
    EXPECT_EQ(first_difference(tree(conversion.output), tree(fresh.output)), "");
    EXPECT_EQ(top_level(conversion.output), top_level(fresh.output));
  }
}

TEST_F(SlicedResume, ForceReplacesCheckpointsAndSlices) {
  const auto weights = [&](const std::filesystem::path& output) {
    std::set<std::string> names;
    for (const auto& [name, text] : tree(output)) {
      if (name.ends_with(".safetensors") || name.ends_with("index.json")) names.insert(name);
    }
    return names;
  };
  Conversion whole(synth_model(), dir_ / "whole");
  whole.run();
  const Conversion slices = to_slices(dir_ / "slices", {.ep = 2});
  Conversion(slices).run();
  Conversion there = slices, back = whole;
  there.output = back.output = dir_ / "out";
  there.execute.force = back.execute.force = true;
  back.run();
  there.run();
  EXPECT_EQ(weights(there.output), weights(slices.output));
  EXPECT_FALSE(std::filesystem::exists(there.output / "config.json")) << "the ranks have one each";
  keeping(there.output, dir_ / "merged").run();
  back.run();
  EXPECT_EQ(first_difference(tree(back.output), tree(whole.output)), "");
  EXPECT_EQ(top_level(back.output), top_level(whole.output));
}

TEST_F(SlicedResume, ForceNamesOtherFilesInFoldersOfRanks) {
  Conversion slices = to_slices(dir_ / "out", {.ep = 2});
  slices.run();
  const std::filesystem::path notes = dir_ / "out/rank-00000-of-00002/notes.txt";
  write_text_file(notes, "mine");
  slices.execute.force = true;
  expect_error(ErrorCode::kExists, {"'rank-00000-of-00002/notes.txt'"}, [&] { slices.run(); });
  EXPECT_EQ(read_text_file(notes, 10), "mine");
}

}  // namespace
}  // namespace ingot::testing
