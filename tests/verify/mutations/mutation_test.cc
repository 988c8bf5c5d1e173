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

namespace fs = std::filesystem;

class Mutation : public ::testing::TestWithParam<Fault> {
 protected:
  void SetUp() override { pair_ = convert_well(GetParam().good, directory_ / "conversion"); }

  [[nodiscard]] Verdict judge() const { return judge_default(pair_.source, pair_.output); }

  void expect_rejected() const {
    const Verdict after = judge();
    EXPECT_FALSE(after.passed) << "nobody noticed";
    EXPECT_THAT(after.text, ::testing::HasSubstr(std::string(GetParam().names)));
  }

  TempDir directory_;
  Pair pair_;
};

TEST_P(Mutation, IsRejectedByName) {
  const Verdict before = judge();
  ASSERT_TRUE(before.passed) << before.text;
  GetParam().apply(pair_);
  expect_rejected();
}

TEST_P(Mutation, IsRejectedByNameWithoutManifestAndHashes) {
  const fs::path sound = directory_ / "sound";
  fs::copy(pair_.output, sound, fs::copy_options::recursive);
  forget_the_conversion(sound);
  const Verdict before = judge_default(pair_.source, sound);
  ASSERT_TRUE(before.passed) << before.text;

  GetParam().apply(pair_);
  forget_the_conversion(pair_.output);
  expect_rejected();
}

INSTANTIATE_TEST_SUITE_P(EveryFault, Mutation, ::testing::ValuesIn(faults()),
                         [](const auto& row) { return std::string(row.param.name); });

}  // namespace
}  // namespace ingot::testing
