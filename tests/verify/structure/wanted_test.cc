#include <filesystem>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "formats/container/bfloat16.h"
#include "formats/container/float8.h"
#include "formats/json/json.h"
#include "tests/convert/conversion.h"
#include "tests/convert/targets.h"
#include "tests/support/temp_dir.h"
#include "verify/gates/report.h"
#include "verify/structure/compared_checkpoint.h"
#include "verify/verification.h"

// Outputs are judged by the requests to the conversion, which their manifest records.

namespace ingot::verify {
namespace {

using namespace ::testing;
namespace fs = std::filesystem;
using formats::SchemeId;
using ingot::testing::Conversion;
using ingot::testing::TempDir;
using ingot::testing::tiny_v32;

Report weights_of(const fs::path& source, const fs::path& output) {
  return verify_pair(source, output, {.levels = {Level::kWeights}});
}

std::vector<std::string> failed(const Report& report) {
  std::vector<std::string> gates;
  for (const GateResult& result : report.gates)
    if (!result.passed) gates.push_back(result.gate.metric);
  return gates;
}

struct Asked {
  std::string name;
  void (*ask)(convert::Recipe& recipe);
  std::string fails;                    // without the manifest
  std::optional<SchemeId> source = {};  // else as released
};

class WantedOption : public ::testing::TestWithParam<Asked> {
 protected:
  TempDir directory_;
};

TEST_P(WantedOption, CountsWhereTheManifestSaysIt) {
  fs::path source = tiny_v32();
  if (GetParam().source) {
    Conversion made(source, directory_ / "source");
    made.recipe.to = GetParam().source;
    made.recipe.choices.fp8_grid = quantize::Fp8Grid::kAmax;
    // Others may be the source's own, whose values are BF16's.
    made.recipe.choices.search = quantize::ScaleSearch::kAmax;
    if (GetParam().source == SchemeId::kF16)  // it has values that BF16 lacks
      made.recipe.rules.push_back(convert::parse_rule("role:router-bias=f16"));
    made.run();
    source = made.output;
  }
  Conversion conversion(source, directory_ / "output");
  GetParam().ask(conversion.recipe);
  conversion.run();
  const Report asked = weights_of(source, conversion.output);
  EXPECT_THAT(failed(asked), IsEmpty());
  EXPECT_THAT(asked.wanted, HasSubstr("judged as asked for: --"));
  fs::remove(conversion.output / formats::kManifestName);
  const Report silent = weights_of(source, conversion.output);
  EXPECT_THAT(failed(silent), Contains(GetParam().fails));
  EXPECT_THAT(silent.wanted, HasSubstr("no ingot.json names the options of the conversion"));
}

INSTANTIATE_TEST_SUITE_P(
    EveryOption, WantedOption,
    ::testing::Values(Asked{"via_bf16",
                            [](convert::Recipe& recipe) {
                              recipe.to = SchemeId::kInt8Channel;
                              recipe.choices.via = convert::Via::kBf16;
                              recipe.choices.search = quantize::ScaleSearch::kAmax;
                            },
                            "weights.misrounded", SchemeId::kFp8Channel},
                      Asked{"fp8_grid",
                            [](convert::Recipe& recipe) {
                              recipe.to = SchemeId::kFp8Block;
                              recipe.choices.fp8_grid = quantize::Fp8Grid::kAmax;
                            },
                            "weights.changed"},
                      Asked{"narrowing_rule",
                            [](convert::Recipe& recipe) {
                              recipe.to.reset();
                              recipe.rules.push_back(convert::parse_rule("role:router-bias=bf16"));
                            },
                            "weights.narrowed"},
                      Asked{"narrowing_rule_of_two_terms",
                            [](convert::Recipe& recipe) {
                              recipe.to.reset();
                              recipe.rules.push_back(
                                  convert::parse_rule("layers:1-4 & role:router-bias=bf16"));
                            },
                            "weights.narrowed"},
                      Asked{"rule_of_equal_bits",
                            [](convert::Recipe& recipe) {
                              recipe.to.reset();
                              recipe.rules.push_back(convert::parse_rule("layers:1-4=bf16"));
                            },
                            "weights.narrowed", SchemeId::kF16}),
    [](const auto& row) { return row.param.name; });

TEST(Wanted, TakesNoOtherOptionForLeave) {
  const TempDir directory;
  Conversion conversion(tiny_v32(), directory / "output");
  conversion.recipe.to = SchemeId::kInt8Channel;
  conversion.recipe.choices.via = convert::Via::kBf16;
  conversion.run();
  formats::Manifest manifest = *formats::read_manifest(conversion.output);
  formats::Json recipe = manifest.recipe;
  recipe["choices"]["via"] = "f32";
  manifest.recipe = recipe;
  const Wanted wanted = wanted_of(manifest);
  EXPECT_FALSE(wanted.via_bf16);
  EXPECT_TRUE(wanted.is_recorded);
  EXPECT_THAT(wanted.sentence(), IsEmpty());
}

}  // namespace
}  // namespace ingot::verify
