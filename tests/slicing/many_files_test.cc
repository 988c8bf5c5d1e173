#include <gtest/gtest.h>

#include "convert/output/output_directory.h"
#include "tests/slicing/sliced.h"

namespace ingot::testing {
namespace {

convert::Plan planned(const formats::Checkpoint& source, const convert::PlanOptions& options) {
  convert::Recipe recipe;
  resolve(recipe, source);
  return plan_for(source, recipe, options);
}

// What a name says of the others: 1 for config and index, 2 for records, 3 for a manifest, and
// those at the top after those of ranks.
int claim_of(const std::string& name) {
  const bool is_top = name.find('/') == std::string::npos;
  if (name.ends_with("ingot.json")) return is_top ? 5 : 3;
  if (name.ends_with("ingot.tensors.jsonl.zst")) return is_top ? 4 : 2;
  return name.ends_with("/config.json") || name.ends_with(".index.json") ? 1 : 0;
}

TEST(ManyFiles, AreNamedBeforeFilesThatNameThem) {
  const formats::Checkpoint source = shard::open_source(tiny_bf16());
  const convert::Plan plan = planned(source, Cut{.tp = 2, .ep = 4}.options());
  const std::vector<std::string> names = convert::publish_order(plan);
  EXPECT_TRUE(std::is_sorted(
      names.begin(), names.end(),
      [](const std::string& a, const std::string& b) { return claim_of(a) < claim_of(b); }));
  std::map<int, int> n_of_claim;
  for (const std::string& name : names) ++n_of_claim[claim_of(name)];
  EXPECT_EQ(n_of_claim[1], 8);
  EXPECT_EQ(n_of_claim[3], 4);
  EXPECT_EQ(names.back(), "ingot.json");
}

TEST(ManyFiles, CountPlacesWrittenAtOnce) {
  const formats::Checkpoint fp8 = shard::open_source(tiny_v32());
  const formats::Checkpoint bf16 = shard::open_source(tiny_bf16());
  const auto targets = [](const formats::Checkpoint& source, const Cut& cut) {
    return planned(source, cut.options()).sizes.open_targets;
  };
  EXPECT_EQ(planned(fp8, {}).sizes.open_targets, 1U);
  EXPECT_EQ(targets(fp8, {.ep = 16}), 1U);
  EXPECT_EQ(targets(bf16, {.tp = 8}), 8U);
  // Codes and scales of two slices.
  EXPECT_EQ(targets(fp8, {.tp = 2, .ep = 4, .fit = shard::TpFit::kRetile}), 4U);

  convert::PlanOptions native;
  native.layout = formats::find_layout("deepseek-mp");
  native.slicing.topology = shard::make_topology(4, 4, 1, 1);
  EXPECT_EQ(planned(bf16, native).sizes.open_targets, 4U);
}

}  // namespace
}  // namespace ingot::testing
