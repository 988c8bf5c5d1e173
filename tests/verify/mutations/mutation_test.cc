#include <map>
#include <ostream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/temp_dir.h"
#include "tests/verify/mutations/fault.h"
#include "tests/verify/mutations/verdict.h"

// Every fault of the tables is put into a good conversion, which is then compared with its source
// at the default levels: as the conversion left it, and without anything that tells what it wrote.

namespace ingot::testing {

std::vector<Fault> faults() {
  std::vector<Fault> all;
  for (const auto& table : {scale_faults(), code_faults(), module_faults(), model_faults(),
                            slice_faults(), file_faults(), config_faults()})
    all.insert(all.end(), table.begin(), table.end());
  return all;
}

static std::ostream& operator<<(std::ostream& out, const Fault& fault) {
  return out << fault.name;
}

namespace {

// What is said of a good conversion, with its manifest or without; asked once per process.
const Verdict& verdict_on_good(Good good, bool forgets) {
  static std::map<std::pair<Good, bool>, Verdict> known;
  const auto [at, is_new] = known.try_emplace({good, forgets});
  if (!is_new) return at->second;
  const TempDir directory;
  const Pair pair = copy_of_good(good, directory.path());
  if (forgets) forget_the_conversion(pair.output);
  return at->second = judge_default(pair.source, pair.output);
}

class Mutation : public ::testing::TestWithParam<Fault> {
 protected:
  static void expect_rejected(bool forgets) {
    const Fault& fault = GetParam();
    const Verdict& before = verdict_on_good(fault.good, forgets);
    ASSERT_TRUE(before.passed) << before.text;
    const TempDir directory;
    const Pair pair = copy_of_good(fault.good, directory.path());
    fault.apply(pair);
    if (forgets) forget_the_conversion(pair.output);
    const Verdict after = judge_default(pair.source, pair.output);
    EXPECT_FALSE(after.passed) << "nobody noticed";
    EXPECT_THAT(after.text, ::testing::HasSubstr(std::string(fault.names)));
  }
};

TEST_P(Mutation, IsRejectedByName) {
  expect_rejected(false);
}

TEST_P(Mutation, IsRejectedByNameWithoutManifestAndHashes) {
  expect_rejected(true);
}

INSTANTIATE_TEST_SUITE_P(EveryFault, Mutation, ::testing::ValuesIn(faults()),
                         [](const auto& row) { return std::string(row.param.name); });

}  // namespace
}  // namespace ingot::testing
