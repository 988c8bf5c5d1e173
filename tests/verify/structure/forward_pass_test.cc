
#include "formats/base/error.h"
#include "formats/config/config_meaning.h"
#include "formats/config/model_config.h"
#include "formats/family/families.h"
#include "formats/json/json.h"
#include "inference/family/model_family.h"
#include "tests/convert/conversion.h"
#include "tests/support/test.h"
#include "verify/structure/structure_check.h"
#include "verify/structure/structure_comparisons.h"

// Configs are compared by their meaning to the runtime. tests/golden/PROVENANCE.md says where those
// of the families come from.

namespace ingot::verify {
namespace {

using namespace ::testing;
namespace fs = std::filesystem;
using check::Severity;
using formats::Json;

fs::path golden(const std::string& place) {
  return fs::path(INGOT_SOURCE_DIR) / "tests/golden" / place;
}

Json config_of(const fs::path& directory) {
  return formats::read_json_file(directory / "config.json", 1 << 20);
}

const formats::Family& family_of(const Json& config) {
  return *formats::family_of(formats::parse_model_config(formats::json_text(config), "config"));
}

// By the family of `source`, as the function below.
std::optional<inference::ModelSpec> spec_of(const Json& source, const Json& config) {
  try {
    return inference::model_spec(family_of(source),
                                 formats::parse_model_config(formats::json_text(config), "config"));
  } catch (const Error&) {
    return std::nullopt;
  }
}

std::vector<std::string> found(const Json& source, const Json& output,
                               std::optional<Severity> severity = {}) {
  check::Findings findings("nowhere");
  compare_model_parameters(
      source, {.config = output, .file = "config.json", .family = &family_of(source)}, findings);
  std::vector<std::string> messages;
  for (const check::Finding& finding : findings.take()) {
    if (!severity || finding.severity == *severity) messages.push_back(finding.message);
  }
  return messages;
}

class ForwardPassOf : public ::testing::TestWithParam<std::string> {};

// Keys are taken out one by one, also in the objects of a config.
TEST_P(ForwardPassOf, CannotLoseAKeyUnseen) {
  const Json config = config_of(golden("forward/" + GetParam() + "/checkpoint"));
  const auto whole = spec_of(config, config);
  ASSERT_TRUE(whole);
  std::size_t n_read = 0;
  const Json leaves = config.flatten();
  for (const auto& [pointer, value] : leaves.items()) {
    const Json::json_pointer at(pointer);
    const bool is_in_list = at.back().find_first_not_of("0123456789") == std::string::npos;
    // Keys that conversion decides.
    const bool is_other = pointer.find("num_nextn_predict_layers") != std::string::npos ||
                          pointer.find("quantization_config") != std::string::npos;
    if (is_in_list || is_other) continue;
    Json without = config;
    without.at(at.parent_pointer()).erase(at.back());
    if (spec_of(config, without) == whole) continue;
    ++n_read;
    EXPECT_THAT(found(config, without, Severity::kError), Not(IsEmpty())) << pointer;
  }
  EXPECT_GT(n_read, 8U);
}

INSTANTIATE_TEST_SUITE_P(EveryFamily, ForwardPassOf,
                         ::testing::Values("axk1", "bailing_hybrid", "deepseek_v4_dspark", "dots1",
                                           "ernie4_5_moe", "falcon_h1", "flint", "glm4_moe_lite",
                                           "glm5_next", "hunyuan_v1_moe", "inkling", "kimi_linear",
                                           "longcat_flash", "mimo_v2_flash", "minimax_m2",
                                           "minimax_m3_vl", "mistral_large4", "nemotron_h",
                                           "olmo_hybrid", "sarvam_moe", "qwen3_next", "solar_open",
                                           "step3p7"),
                         [](const auto& row) { return row.param; });

// MiniMax M2 as released says how many values of a head are rotated; transformers 5 which part.
class RotatedPart : public ::testing::Test {
 protected:
  Json released_ = config_of(golden("forward/minimax_m2/checkpoint"));
  Json saved_ = released_;
  RotatedPart() {
    saved_.erase("rope_theta");
    saved_["rope_parameters"] = {{"rope_theta", released_.at("rope_theta")},
                                 {"rope_type", "default"}};
  }
};

TEST_F(RotatedPart, IsOneMeaningInTwoSpellings) {
  EXPECT_THAT(found(released_, saved_), IsEmpty());
  Json both = saved_;
  saved_.erase("rotary_dim");
  saved_["rope_parameters"]["partial_rotary_factor"] =
      both["rope_parameters"]["partial_rotary_factor"] = 0.5;
  EXPECT_THAT(found(released_, saved_), IsEmpty());
  EXPECT_THAT(found(both, saved_), IsEmpty());
  EXPECT_THAT(found(both, released_), IsEmpty());
}

TEST_F(RotatedPart, IsAnErrorWhereItIsLost) {
  saved_.erase("rotary_dim");
  EXPECT_THAT(found(released_, saved_, Severity::kError), ElementsAre(HasSubstr("rotary_dim")));
}

TEST_F(RotatedPart, ContradictsAnotherSpelling) {
  saved_["rope_parameters"]["partial_rotary_factor"] = 0.25;
  EXPECT_THAT(formats::ConfigMeaning(saved_).contradictions(),
              ElementsAre(HasSubstr("rotary_dim / head_dim")));
}

// The table of meanings has neither key of this family.
TEST(ForwardPass, SeesOneMeaningInKeysThatNoTableHas) {
  const Json source = config_of(golden("forward/nemotron_h/checkpoint"));
  Json output = source;
  const bool is_old = source.contains("layer_norm_epsilon");
  const char* from = is_old ? "layer_norm_epsilon" : "rms_norm_eps";
  output[is_old ? "rms_norm_eps" : "layer_norm_epsilon"] = source.at(from);
  output.erase(from);
  EXPECT_THAT(found(source, output), IsEmpty());
  output[is_old ? "rms_norm_eps" : "layer_norm_epsilon"] = 1e-3;
  EXPECT_THAT(found(source, output, Severity::kError), Not(IsEmpty()));
}

TEST(ForwardPass, LeavesOutWhatConversionDecides) {
  const Json source = config_of(golden("families/deepseek_v4"));
  Json output = source;
  output.erase("quantization_config");
  output["num_nextn_predict_layers"] = 0;
  output["compress_ratios"].erase(4);
  EXPECT_THAT(found(source, output), IsEmpty());
  output["compress_ratios"][3] = 128;
  EXPECT_THAT(found(source, output, Severity::kError), ElementsAre(HasSubstr("compress_ratios")));
}

class DroppedMtp : public ::testing::TestWithParam<std::string> {};

// Their layers are in lists, or are counted under another key.
TEST_P(DroppedMtp, LeavesAModelThatPromisesNone) {
  const ingot::testing::TempDir directory;
  ingot::testing::Conversion conversion(golden(GetParam()), directory / "output");
  conversion.recipe.to.reset();
  conversion.recipe.mtp = convert::MtpPolicy::kDrop;
  conversion.run();
  const auto rules = [&] {
    std::vector<std::string> texts;
    for (const check::Finding& finding :
         check_structure(open_compared(golden(GetParam()), {}), conversion.output, {}).findings) {
      if (finding.severity == Severity::kError || finding.rule.starts_with("structure."))
        texts.push_back(fmt::format("{}: {}", finding.rule, finding.message));
    }
    return texts;
  };
  EXPECT_THAT(rules(), IsEmpty());
  fs::remove(conversion.output / formats::kManifestName);
  EXPECT_THAT(rules(), ElementsAre(AllOf(HasSubstr("is 0: the 1 MTP layer(s)"),
                                         HasSubstr(GetParam().find("qwen") != std::string::npos
                                                       ? "mtp_num_hidden_layers"
                                                       : "num_nextn_predict_layers"))));
}

INSTANTIATE_TEST_SUITE_P(EveryForm, DroppedMtp,
                         ::testing::Values("families/deepseek_v4", "families/qwen3_5_moe"),
                         [](const auto& row) { return row.param.substr(9); });

}  // namespace
}  // namespace ingot::verify
