#include <filesystem>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "check/check.h"
#include "formats/json/json.h"
#include "tests/convert/conversion.h"
#include "tests/convert/targets.h"
#include "tests/support/json_edit.h"
#include "tests/support/temp_dir.h"
#include "verify/structure/structure_check.h"

// Only the groups of a config decide engines' activations.

namespace ingot::verify {
namespace {

using namespace ::testing;
using namespace ingot::testing;
using check::Severity;
using formats::Json;

const Json kTokens = {{"num_bits", 8},
                      {"type", "float"},
                      {"strategy", "token"},
                      {"symmetric", true},
                      {"dynamic", true}};

// INT4 weights of which the config says FP8 activations of tokens.
class ComparedActivations : public InTempDir {
 protected:
  ComparedActivations() {
    Conversion conversion(tiny_v32(), dir_ / "source");
    conversion.recipe.to = formats::SchemeId::kInt4Group;
    conversion.recipe.choices.group_size = 32;
    conversion.run();
    std::filesystem::remove(dir_ / "source" / formats::kManifestName);
    say("source", kTokens);
    std::filesystem::copy(dir_ / "source", dir_ / "output",
                          std::filesystem::copy_options::recursive);
  }

  void say(const std::string& side, const Json& activations) {
    const auto path = dir_ / side / "config.json";
    Json config = formats::read_json_file(path, 1 << 20);
    for (auto& [name, group] : config["quantization_config"]["config_groups"].items())
      group["input_activations"] = activations;
    std::ofstream(path) << config;
  }

  std::vector<std::string> found() {
    std::vector<std::string> texts;
    for (const check::Finding& finding :
         check_structure(open_compared(dir_ / "source", {}), dir_ / "output", {}).findings) {
      if (finding.rule == "structure.activations" || finding.rule == "ct.activations")
        texts.push_back(fmt::format("{}{}", finding.severity == Severity::kError ? "error: " : "",
                                    finding.message));
    }
    return texts;
  }
};

TEST_F(ComparedActivations, StayInACopy) {
  EXPECT_THAT(found(), IsEmpty());
}

TEST_F(ComparedActivations, AreAFaultWhereTheyAreLost) {
  say("output", nullptr);
  EXPECT_THAT(found(),
              ElementsAre(AllOf(HasSubstr("error: has input_activations weight-only, in the source "
                                          "dynamic in 8 bits of type float (so have"))));
}

TEST_F(ComparedActivations, AreAFaultInOtherNumbers) {
  Json integers = kTokens;
  integers["type"] = "int";
  say("output", integers);
  EXPECT_THAT(found(), Contains(HasSubstr("error: has input_activations dynamic in 8 bits of type "
                                          "int, in the source")));
}

}  // namespace
}  // namespace ingot::verify
