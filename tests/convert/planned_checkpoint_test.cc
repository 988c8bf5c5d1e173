#include "convert/output/planned_checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "check/rules/loader_rules.h"
#include "convert/output/rank_directories.h"
#include "formats/json/json.h"
#include "shard/join/source.h"
#include "tests/convert/conversion.h"
#include "tests/convert/targets.h"
#include "tests/support/expect_error.h"
#include "tests/support/temp_dir.h"

// What is judged before the start is what stands on the disk at the end.

namespace ingot::convert {
namespace {

using formats::Checkpoint;
using namespace ingot::testing;
using ingot::testing::Target;

std::vector<std::string> stored_lines(const Checkpoint& checkpoint) {
  std::vector<std::string> lines;
  for (const formats::StoredTensor& stored : checkpoint.stored()) {
    lines.push_back(fmt::format("{} {} {} {} at {}, {} bytes", checkpoint.files()[stored.file].name,
                                stored.name, formats::dtype_name(stored.dtype),
                                formats::shape_text(stored.shape), stored.offset, stored.n_bytes));
  }
  return lines;
}

std::vector<std::string> finding_lines(const Checkpoint& checkpoint) {
  std::vector<std::string> lines;
  for (const check::Finding& finding :
       check::run_loader_rules(checkpoint, {.threads = 2, .values = false}))
    lines.push_back(
        fmt::format("{} {} {} {}", finding.rule, finding.file, finding.tensor, finding.message));
  return lines;
}

void expect_same(const Checkpoint& planned, const Checkpoint& written) {
  EXPECT_EQ(stored_lines(planned), stored_lines(written));
  EXPECT_EQ(finding_lines(planned), finding_lines(written));
  EXPECT_EQ(*planned.config().raw, *written.config().raw);
  EXPECT_EQ(planned.description(), written.description());
  EXPECT_EQ(planned.dialect().name, written.dialect().name);
  EXPECT_EQ(planned.has_index(), written.has_index());
  EXPECT_EQ(planned.lacks_promised_mtp(), written.lacks_promised_mtp());
  ASSERT_EQ(planned.tensors().size(), written.tensors().size());
  for (std::size_t i = 0; i < planned.tensors().size(); ++i) {
    const formats::LogicalTensor &a = planned.tensors()[i], &b = written.tensors()[i];
    EXPECT_EQ(a.name, b.name);
    EXPECT_EQ(a.shape, b.shape) << a.name;
    EXPECT_EQ(a.encoding.scheme, b.encoding.scheme) << a.name;
    EXPECT_EQ(a.rule, b.rule) << a.name;
  }
  for (std::uint32_t file = 0; file < planned.files().size(); ++file)
    EXPECT_EQ(planned.header_bytes(file), written.header_bytes(file));
}

// Plans, converts, and compares every directory that loader rules judge.
void expect_as_planned(Conversion conversion) {
  const Checkpoint source = shard::open_source(conversion.input);
  Recipe recipe = conversion.recipe;
  resolve(recipe, source);
  const Plan plan = plan_for(source, recipe, conversion.plan);
  conversion.run();
  if (!plan.has_rank_directories()) {
    expect_same(planned_checkpoint(plan, std::nullopt, 2), Checkpoint::open(conversion.output));
    return;
  }
  const std::uint32_t n_ranks = plan.slicing->topology.n_ranks();
  for (std::uint32_t rank = 0; rank < n_ranks; ++rank) {
    SCOPED_TRACE(rank);
    expect_same(planned_checkpoint(plan, rank, 2),
                Checkpoint::open(conversion.output / shard::rank_directory_name(rank, n_ranks)));
  }
}

class PlannedTarget : public ::testing::TestWithParam<Target> {};

INSTANTIATE_TEST_SUITE_P(Dialects, PlannedTarget, ::testing::ValuesIn(all_targets()),
                         [](const auto& row) { return test_name(row.param.name()); });

TEST_P(PlannedTarget, IsWhatIsWritten) {
  const TempDir directory;
  Conversion conversion(synth_model(), directory / "out");
  GetParam().apply(conversion.recipe);
  conversion.recipe.choices.nvfp4_search = quantize::Nvfp4Search::kAmax;
  expect_as_planned(conversion);
}

TEST(PlannedCheckpoint, EqualsTheWrittenSingleFile) {
  const TempDir directory;
  Conversion conversion(synth_model(), directory / "out");
  conversion.plan.shards.max_shard_bytes = std::uint64_t{1} << 40;
  expect_as_planned(conversion);
}

TEST(PlannedCheckpoint, EqualsTheWrittenRanks) {
  struct Case {
    shard::Topology topology;
    shard::TpFit fit;
    formats::SchemeId to;
  };
  const Case cases[] = {
      {{.tp = 2, .ep = 4}, shard::TpFit::kRetile, formats::SchemeId::kFp8Block},
      {{.tp = 2, .ep = 2, .etp = 3}, shard::TpFit::kPad, formats::SchemeId::kBf16},
      {{.tp = 4, .pp = 2}, shard::TpFit::kBf16, formats::SchemeId::kFp8Block},
      {{.tp = 2, .ep = 2, .pp = 2}, shard::TpFit::kRefuse, formats::SchemeId::kInt8Channel},
  };
  for (const Case& row : cases) {
    SCOPED_TRACE(fmt::format("tp {} fit {}", row.topology.tp, shard::tp_fit_name(row.fit)));
    const TempDir directory;
    Conversion conversion(tiny_v32(), directory / "out");
    conversion.recipe.to = row.to;
    conversion.plan.layout = formats::find_layout("ranks");
    conversion.plan.slicing.topology = row.topology;
    conversion.plan.slicing.fit = row.fit;
    expect_as_planned(conversion);
  }
}

TEST(PlannedCheckpoint, HasNoBytes) {
  const Checkpoint source = Checkpoint::open(synth_model());
  Recipe recipe;
  recipe.to = formats::SchemeId::kBf16;
  resolve(recipe, source);
  const Plan plan = plan_for(source, recipe);
  const Checkpoint planned = planned_checkpoint(plan, std::nullopt, 1);
  EXPECT_FALSE(planned.has_data(0));
  std::byte byte{};
  expect_error(ErrorCode::kInternal, {"planned"}, [&] { planned.read(0, 0, {&byte, 1}); });
}

}  // namespace
}  // namespace ingot::convert
