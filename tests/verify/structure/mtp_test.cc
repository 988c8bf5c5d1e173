#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "formats/json/json.h"
#include "tests/slicing/sliced.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_checkpoint.h"
#include "verify/structure/structure_check.h"

// MTP layers of the example: kept, dropped on purpose, or lost.

namespace ingot::verify {
namespace {

namespace fs = std::filesystem;

using check::Finding;
using formats::Json;
using ingot::testing::TempDir;

StructureReport check(const fs::path& output) {
  return check_structure(open_compared(ingot::testing::tiny_v32(), {}), output, {});
}

std::vector<std::string> rules_of(const StructureReport& report) {
  std::vector<std::string> rules;
  for (const Finding& finding : report.findings) rules.emplace_back(finding.rule);
  return rules;
}

fs::path dropping(const TempDir& directory) {
  ingot::testing::Conversion conversion(ingot::testing::tiny_v32(), directory / "output");
  conversion.recipe.mtp = convert::MtpPolicy::kDrop;
  conversion.run();
  return conversion.output;
}

TEST(MtpStructure, RecordedDropPassesSilently) {
  const TempDir directory;
  const StructureReport report = check(dropping(directory));
  EXPECT_THAT(rules_of(report), ::testing::IsEmpty());
  EXPECT_GT(report.hashed, 200U);
  EXPECT_TRUE(report.has_manifest);
}

TEST(MtpStructure, UnexplainedAbsenceWarnsOnce) {
  const TempDir directory;
  const fs::path output = dropping(directory);
  fs::remove(output / formats::kManifestName);
  const StructureReport report = check(output);
  EXPECT_THAT(rules_of(report), ::testing::ElementsAre("structure.mtp"));
  EXPECT_EQ(report.errors(), 0U);
}

TEST(MtpStructure, IsAnErrorWhereTheConfigPromisesIt) {
  const TempDir directory;
  const fs::path output = dropping(directory);
  fs::remove(output / formats::kManifestName);
  fs::remove(output / "config.json");
  ingot::testing::Conversion(ingot::testing::tiny_v32(), directory / "whole").run();
  fs::copy_file(directory / "whole/config.json", output / "config.json");
  const StructureReport report = check(output);
  EXPECT_EQ(report.errors(), 1U);
  EXPECT_EQ(report.findings.at(0).rule, "structure.mtp");
}

}  // namespace
}  // namespace ingot::verify
