#include <filesystem>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "formats/config/config_meaning.h"
#include "formats/json/json.h"
#include "formats/records/manifest.h"
#include "tests/convert/conversion.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_checkpoint.h"
#include "verify/structure/structure_comparisons.h"

// What another program makes of a config without changing the model, and single changes of it.
// tests/golden/PROVENANCE.md says where the files come from.

namespace ingot::verify {
namespace {

using namespace ingot::testing;
namespace fs = std::filesystem;
using check::Finding;
using check::Severity;
using formats::Json;
using ::testing::HasSubstr;

Json golden(const std::string& name) {
  return formats::read_json_file(
      std::filesystem::path(INGOT_SOURCE_DIR) / "tests/golden/saved_configs" / (name + ".json"),
      1 << 20);
}

std::vector<std::string> errors(const Json& source, const Json& output) {
  StructureFindings found("nowhere");
  compare_model_parameters(source, {.config = output, .file = "config.json"}, found);
  std::vector<std::string> messages;
  for (const Finding& finding : found.take()) {
    if (finding.severity == Severity::kError) messages.push_back(finding.message);
  }
  return messages;
}

class SavedConfig : public ::testing::TestWithParam<std::string> {
 protected:
  const Json released_ = golden(GetParam());
  const Json saved_ = golden(GetParam() + ".saved");
};

TEST_P(SavedConfig, IsTheSameModel) {
  EXPECT_THAT(errors(released_, saved_), ::testing::IsEmpty());
  EXPECT_THAT(errors(saved_, released_), ::testing::IsEmpty());
  EXPECT_THAT(formats::ConfigMeaning(saved_).contradictions(), ::testing::IsEmpty());
}

TEST_P(SavedConfig, IsAnotherModelWithAnyNumberChanged) {
  // Who saved it, and training.
  const std::set<std::string> other = {"transformers_version",
                                       "initializer_range",
                                       "router_aux_loss_coef",
                                       "pretraining_tp",
                                       "attention_dropout",
                                       "num_nextn_predict_layers",
                                       "ep_size"};
  std::size_t n_changed = 0;
  for (const auto& [key, value] : saved_.items()) {
    if (!value.is_number() || other.contains(key)) continue;
    Json changed = saved_;
    changed[key] = value.get<double>() + 1;
    if (value.is_number_unsigned()) changed[key] = value.get<std::uint64_t>() + 1;
    // A prefix of dense layers beside a list of them.
    const std::vector<std::string> said = errors(released_, changed);
    const auto contradictions = formats::ConfigMeaning(changed).contradictions();
    EXPECT_TRUE(!said.empty() || !contradictions.empty()) << key;
    ++n_changed;
  }
  EXPECT_GT(n_changed, 12U);
}

TEST_P(SavedConfig, RopeParametersChangeTheModel) {
  for (const auto& [key, value] : saved_.at("rope_parameters").items()) {
    Json changed = saved_;
    changed["rope_parameters"][key] =
        value.is_string() ? Json("linear") : Json(value.get<double>() + 1);
    const auto contradictions = formats::ConfigMeaning(changed).contradictions();
    EXPECT_TRUE(!errors(released_, changed).empty() || !contradictions.empty()) << key;
  }
}

INSTANTIATE_TEST_SUITE_P(EveryFamily, SavedConfig,
                         ::testing::Values("deepseek_v2", "deepseek_v3", "deepseek_v32",
                                           "glm_moe_dsa", "qwen3_moe"),
                         [](const auto& row) { return row.param; });

TEST(ConfigMeaning, CollapsesEqualRopeOfLayerKinds) {
  const Json flat = {{"rope_parameters", {{"rope_type", "default"}, {"rope_theta", 5000}}}};
  const Json rope = flat.at("rope_parameters");
  Json other = rope;
  other["rope_theta"] = 7000;
  EXPECT_THAT(errors(flat, {{"rope_parameters", {{"full", rope}, {"sliding", rope}}}}),
              ::testing::IsEmpty());
  EXPECT_THAT(errors(flat, {{"rope_parameters", {{"full", rope}, {"sliding", other}}}}),
              ::testing::Not(::testing::IsEmpty()));
}

TEST(ConfigMeaning, ReadsTheTextModelOfANestedConfig) {
  const Json source = {{"text_config", {{"rope_theta", 5000}, {"hidden_size", 8}}}};
  Json output = source;
  output["text_config"]["rope_theta"] = 6000;
  EXPECT_THAT(errors(source, output),
              ::testing::ElementsAre("text_config.rope_theta is 6000, in the source 5000"));
  output = source;
  output["rope_theta"] = 6000;
  EXPECT_THAT(formats::ConfigMeaning(output).contradictions(),
              ::testing::ElementsAre(HasSubstr("text_config.rope_theta is 5000")));
}

// ingot.verify.json is ours, as the manifest is: of one output, and never carried on.

TEST(VerifyFile, StaysBehindWhenItsCheckpointIsConvertedOn) {
  const TempDir directory;
  ingot::testing::copy_example(directory / "source");
  write_bytes(directory / "source" / std::string(formats::kVerifyName), "{}");
  Conversion conversion(directory / "source", directory / "output");
  conversion.run();
  EXPECT_FALSE(fs::exists(conversion.output / formats::kVerifyName));
  EXPECT_TRUE(fs::exists(conversion.output / "generation_config.json"));
}

TEST(VerifyFile, GoesWithTheConversionThatItWasOf) {
  const TempDir directory;
  Conversion conversion(ingot::testing::tiny_v32(), directory / "output");
  conversion.run();
  write_bytes(conversion.output / formats::kVerifyName, "{}");
  write_bytes(conversion.output / "mine.json", "{}");
  conversion.execute.force = true;
  conversion.run();
  EXPECT_FALSE(fs::exists(conversion.output / formats::kVerifyName));
  EXPECT_TRUE(fs::exists(conversion.output / "mine.json"));
}

}  // namespace
}  // namespace ingot::verify
