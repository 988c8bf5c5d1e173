#include "verify/structure/structure_check.h"

#include "check/check.h"
#include "formats/config/config_meaning.h"
#include "formats/json/json.h"
#include "formats/records/manifest.h"
#include "tests/convert/conversion.h"
#include "tests/convert/slicing/sliced.h"
#include "tests/convert/targets.h"
#include "tests/support/json_edit.h"
#include "tests/support/test.h"
#include "tests/support/tiny_checkpoint.h"
#include "tests/support/tiny_tokenizer.h"
#include "verify/structure/compared_checkpoint.h"
#include "verify/structure/structure_comparisons.h"

// Level `structure` on models small enough to be written by hand. The mutation suite tests faults
// in real conversions.

namespace ingot::verify {
namespace {

using namespace ::testing;
using namespace ingot::testing;
namespace fs = std::filesystem;
using check::Finding;
using check::Severity;
using formats::Json;
using ::testing::HasSubstr;

constexpr const char* kInputNorm = "model.layers.1.input_layernorm.weight";

class StructureCheck : public ::testing::Test {
 protected:
  StructureCheck() {
    tensor_of(source_, "model.layers.1.mlp.gate.e_score_correction_bias").dtype = "F32";
    output_ = source_;
    source_.write(directory_ / "source");
    write_bytes(directory_ / "source/tokenizer.json", kTinyTokenizer);
    write_bytes(directory_ / "source/README.md", "read me");
    write_output();
  }

  // As the source, but for the test's changes to it.
  void write_output() {
    fs::remove_all(directory_ / "output");
    output_.write(directory_ / "output");
    for (const char* name : {"tokenizer.json", "README.md"})
      fs::copy_file(directory_ / "source" / name, directory_ / "output" / name);
  }

  void edit_config(const std::vector<JsonEdit>& edits) {
    output_.config = edited(formats::parse_json(output_.config, "config.json"), edits).dump();
    write_output();
  }

  [[nodiscard]] StructureReport check(const StructureOptions& options = {}) const {
    return check_structure(open_compared(directory_ / "source", {}), directory_ / "output",
                           options);
  }

  // The headers of these files are bare, which is a warning that no test here is about.
  [[nodiscard]] std::vector<std::string> everything() const {
    std::vector<std::string> texts;
    for (const Finding& finding : check().findings)
      if (finding.rule != "container.metadata-format")
        texts.push_back(fmt::format("{}|{}|{}", finding.rule, finding.tensor, finding.message));
    return texts;
  }

  // The rule's findings, as `file|tensor|message`.
  [[nodiscard]] std::vector<std::string> found(std::string_view rule,
                                               Severity severity = Severity::kError) const {
    std::vector<std::string> texts;
    for (const Finding& finding : check().findings) {
      if (finding.rule == rule && finding.severity == severity)
        texts.push_back(fmt::format("{}|{}|{}", finding.file, finding.tensor, finding.message));
    }
    return texts;
  }

  ingot::testing::TempDir directory_;
  TinyCheckpoint source_ = ingot::testing::tiny_deepseek_v3();
  TinyCheckpoint output_;
};

TEST_F(StructureCheck, FindsNothingInACopy) {
  const StructureReport report = check();
  EXPECT_THAT(everything(), IsEmpty());
  EXPECT_EQ(report.tensors, source_.files.begin()->second.size());
  EXPECT_EQ(report.hashed, 0U);
  EXPECT_FALSE(report.has_manifest);
}

TEST_F(StructureCheck, SeesATensorThatTheOutputLacks) {
  std::erase_if(output_.files.begin()->second,
                [](const TinyTensor& tensor) { return tensor.name == kInputNorm; });
  write_output();
  EXPECT_THAT(found("structure.missing"),
              ::testing::ElementsAre(
                  fmt::format("|{}|is in the source, but not in the output", kInputNorm)));
}

TEST_F(StructureCheck, ForgivesWhatTheSourceLacksToo) {
  const auto lose = [](TinyCheckpoint& checkpoint, std::string_view name) {
    std::erase_if(checkpoint.files.begin()->second,
                  [&](const TinyTensor& tensor) { return tensor.name == name; });
  };
  for (TinyCheckpoint* checkpoint : {&source_, &output_}) lose(*checkpoint, "lm_head.weight");
  source_.write(directory_ / "source");
  write_output();
  EXPECT_THAT(found("model.complete"), IsEmpty());
  EXPECT_THAT(found("model.complete", Severity::kWarning),
              ElementsAre(AllOf(HasSubstr("lm_head.weight"), HasSubstr("in the source, too"))));
  lose(output_, kInputNorm);
  write_output();
  EXPECT_THAT(found("model.complete"), SizeIs(1));
}

TEST_F(StructureCheck, MissesScalesOfACacheWithItsWord) {
  const std::string scale = "model.layers.0.self_attn.k_proj.k_scale";
  const auto with_word = [](const std::string& config) {
    Json json = formats::parse_json(config, "config.json");
    json["quantization_config"] = {{"quant_method", "fp8"}, {"kv_cache_scheme", "static"}};
    return json.dump();
  };
  const std::string plain = source_.config;
  source_.config = with_word(plain);
  source_.files.begin()->second.push_back({scale, "F32", {}, std::string("\0\0\0\x3f", 4)});
  source_.write(directory_ / "source");
  write_output();
  EXPECT_THAT(found("structure.missing"), IsEmpty());
  output_.config = source_.config;
  write_output();
  EXPECT_THAT(
      found("structure.missing"),
      ::testing::ElementsAre(fmt::format("|{}|is in the source, but not in the output", scale)));
}

TEST_F(StructureCheck, SeesATensorThatTheSourceLacks) {
  // A head that is tied in the source, and stored in the output.
  Json config = formats::parse_json(source_.config, "config.json");
  config["tie_word_embeddings"] = true;
  source_.config = output_.config = config.dump();
  std::erase_if(source_.files.begin()->second,
                [](const TinyTensor& tensor) { return tensor.name == "lm_head.weight"; });
  source_.write(directory_ / "source");
  write_output();
  EXPECT_THAT(found("structure.extra"),
              ::testing::ElementsAre(HasSubstr("|lm_head.weight|is in the output")));
}

TEST_F(StructureCheck, AcceptsThatAStoredHeadIsSaidToCount) {
  Json config = formats::parse_json(source_.config, "config.json");
  config["tie_word_embeddings"] = true;
  source_.config = config.dump();
  source_.write(directory_ / "source");
  EXPECT_THAT(found("structure.config"), IsEmpty());
  // The other way round, readers that believe it compute otherwise.
  std::swap(source_.config, output_.config);
  source_.write(directory_ / "source");
  write_output();
  EXPECT_THAT(found("structure.config"), ::testing::ElementsAre(HasSubstr("tie_word_embeddings")));
}

TEST_F(StructureCheck, SeesAShapeThatIsNotTheSources) {
  edit_config({{"/vocab_size", 24}});
  for (const char* name : {"model.embed_tokens.weight", "lm_head.weight"})
    tensor_of(output_, name).shape[0] = 24;
  write_output();
  EXPECT_THAT(found("structure.shape"),
              ::testing::UnorderedElementsAre(HasSubstr("has shape [24, 8], in the source [16, 8]"),
                                              HasSubstr("lm_head.weight")));
}

TEST_F(StructureCheck, NamesDifferingParametersWithBothValues) {
  edit_config({{"/rms_norm_eps", 1e-5},
               {"/num_experts_per_tok", 2},
               {"/rope_scaling", {{"type", "yarn"}}}});
  EXPECT_THAT(found("structure.config"),
              ::testing::UnorderedElementsAre(
                  "config.json||num_experts_per_tok is 2, in the source 1",
                  "config.json||rms_norm_eps is 1e-05, in the source absent",
                  "config.json||rope_scaling.type is \"yarn\", in the source absent"));
}

TEST_F(StructureCheck, IgnoresWhoSavedTheConfig) {
  edit_config({{"/transformers_version", "9.0"},
               {"/_name_or_path", "elsewhere"},
               {"/rope_scaling", nullptr}});
  EXPECT_THAT(everything(), IsEmpty());
}

TEST_F(StructureCheck, RefusesADtypeThatNoWeightHas) {
  edit_config({{"/torch_dtype", "float16"}});
  EXPECT_THAT(found("structure.config"), ::testing::ElementsAre(HasSubstr("dtype is \"float16\"")));
}

TEST_F(StructureCheck, WarnsOfTheDtypeOfPlainWeights) {
  for (auto& [name, tensors] : output_.files) {
    for (TinyTensor& tensor : tensors) {
      if (tensor.dtype == "BF16") tensor.dtype = "F16";
    }
  }
  edit_config({{"/torch_dtype", "float16"}});
  EXPECT_THAT(found("structure.config", Severity::kWarning),
              ::testing::ElementsAre(HasSubstr("dtype is \"float16\"")));
  EXPECT_THAT(found("structure.config"), IsEmpty());
}

TEST(ExpertDtype, IsThatOfTheExperts) {
  const std::filesystem::path source =
      std::filesystem::path(INGOT_SOURCE_DIR) / "tests/golden/families/deepseek_v4";
  const ingot::testing::TempDir directory;
  std::filesystem::copy(source, directory / "output", std::filesystem::copy_options::recursive);
  const auto faults = [&] {
    std::vector<std::string> texts;
    for (const Finding& finding :
         check_structure(open_compared(source, {}), directory / "output", {}).findings)
      if (finding.rule == "structure.config") texts.push_back(finding.message);
    return texts;
  };
  EXPECT_THAT(faults(), IsEmpty());
  Json config = formats::read_json_file(directory / "output" / "config.json", 1 << 20);
  config["expert_dtype"] = "fp8";
  std::ofstream(directory / "output" / "config.json") << config;
  EXPECT_THAT(faults(), ElementsAre("expert_dtype is \"fp8\", but the routed experts are mxfp4"));
}

TEST_F(StructureCheck, WarnsOfKeysThatItDoesNotKnow) {
  edit_config({{"/surprise", 1}});
  EXPECT_THAT(found("structure.config", Severity::kWarning),
              ::testing::ElementsAre(HasSubstr("surprise is 1, in the source absent")));
  EXPECT_EQ(check().errors(), 0U);
}

TEST_F(StructureCheck, TakesARepeatedChatTemplateForNoChange) {
  const Json tokenizer = {{"chat_template", "{{ messages }}"}};
  write_bytes(directory_ / "source/tokenizer_config.json", tokenizer.dump());
  write_bytes(directory_ / "output/tokenizer_config.json", tokenizer.dump());
  write_bytes(directory_ / "output/chat_template.jinja", "{{ messages }}");
  EXPECT_EQ(check().errors(), 0U);
  write_bytes(directory_ / "output/chat_template.jinja", "{{ others }}");
  EXPECT_THAT(found("structure.side-file"),
              ::testing::ElementsAre(HasSubstr("chat_template.jinja")));
}

TEST_F(StructureCheck, ReadsRopeInEitherSpelling) {
  const Json yarn = {{"type", "yarn"}, {"factor", 4.0}};
  Json config = formats::parse_json(source_.config, "config.json");
  config["rope_scaling"] = yarn;
  config["rope_theta"] = 5000;
  source_.config = output_.config = config.dump();
  source_.write(directory_ / "source");
  edit_config(
      {{"/rope_scaling"},
       {"/rope_theta"},
       {"/rope_parameters", {{"rope_type", "yarn"}, {"factor", 4}, {"rope_theta", 5000.0}}}});
  EXPECT_THAT(found("structure.config"), IsEmpty());
  edit_config({{"/rope_parameters/factor", 8}});
  EXPECT_THAT(found("structure.config"),
              ::testing::ElementsAre("config.json||rope_parameters.factor is 8, in the source 4.0 "
                                     "(rope_scaling.factor)"));
}

TEST_F(StructureCheck, ComparesSideFilesByTheirBytes) {
  std::string other(kTinyTokenizer);
  other[other.find("\"a\"") + 1] = 'b';
  write_bytes(directory_ / "output/tokenizer.json", other);
  EXPECT_THAT(found("structure.side-file"),
              ::testing::ElementsAre(HasSubstr("tokenizer.json||holds other bytes")));
  fs::remove(directory_ / "output/tokenizer.json");
  EXPECT_THAT(found("structure.side-file"),
              ::testing::ElementsAre(HasSubstr("tokenizer.json||is missing")));
}

TEST_F(StructureCheck, OnlyWarnsOfDocumentsAndExtraFiles) {
  write_bytes(directory_ / "output/README.md", "another text");
  write_bytes(directory_ / "output/notes.txt", "mine");
  EXPECT_EQ(check().errors(), 0U);
  EXPECT_EQ(found("structure.side-file", Severity::kWarning).size(), 2U);
}

TEST_F(StructureCheck, TakesOurOwnReportForNoSideFile) {
  write_bytes(directory_ / "output" / std::string(formats::kVerifyName), "{}");
  EXPECT_THAT(everything(), IsEmpty());
}

TEST_F(StructureCheck, ReportsAnOutputThatCannotBeOpened) {
  fs::resize_file(directory_ / "output/model.safetensors", 1000);
  write_bytes(directory_ / "output/tokenizer.json", "{}");
  const StructureReport report = check();
  EXPECT_GE(report.errors(), 2U);
  EXPECT_THAT(found(""), ::testing::Contains(HasSubstr("model.safetensors")));
  EXPECT_THAT(found("structure.side-file"), ::testing::SizeIs(1)) << "the rest is looked at too";
}

TEST_F(StructureCheck, SaysWithoutConfigThatThereIsNone) {
  fs::remove(directory_ / "output/config.json");
  EXPECT_THAT(found("structure.config"), ::testing::ElementsAre(HasSubstr("config.json")));
}

TEST_F(StructureCheck, ThrowsOnlyWhereThereIsNoDirectory) {
  fs::remove_all(directory_ / "output");
  ingot::testing::expect_error(ErrorCode::kNotFound, {"output"}, [&] { (void)check(); });
}

TEST_F(StructureCheck, ListsErrorsFirstWithoutLocalPaths) {
  write_bytes(directory_ / "output/README.md", "another text");
  fs::resize_file(directory_ / "output/model.safetensors", 1000);
  bool was_warning = false;
  for (const Finding& finding : check().findings) {
    EXPECT_THAT(finding.file + finding.message, ::testing::Not(HasSubstr(directory_.path())));
    const bool is_warning = finding.severity == Severity::kWarning;
    EXPECT_TRUE(is_warning || !was_warning) << finding.message;
    was_warning = is_warning;
  }
  EXPECT_TRUE(was_warning);
}

// Configs that another program writes without changing the model, and single changes of them.
// tests/golden/PROVENANCE.md says where the files come from.

Json saved_config(const std::string& name) {
  return formats::read_json_file(
      std::filesystem::path(INGOT_SOURCE_DIR) / "tests/golden/saved_configs" / (name + ".json"),
      1 << 20);
}

std::vector<std::string> errors(const Json& source, const Json& output) {
  check::Findings found("nowhere");
  compare_model_parameters(source, {.config = output, .file = "config.json"}, found);
  std::vector<std::string> messages;
  for (const Finding& finding : found.take()) {
    if (finding.severity == Severity::kError) messages.push_back(finding.message);
  }
  return messages;
}

class SavedConfig : public ::testing::TestWithParam<std::string> {
 protected:
  const Json released_ = saved_config(GetParam());
  const Json saved_ = saved_config(GetParam() + ".saved");
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
    // A prefix of dense layers together with a list of them.
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

TEST(ConfigMeaning, HeadDimMayBeEitherPartOfALatentHead) {
  formats::Json config = formats::parse_json(
      R"({"model_type": "glm_moe_dsa", "num_attention_heads": 64, "qk_nope_head_dim": 192,
          "qk_rope_head_dim": 64, "hidden_size": 6144, "kv_lora_rank": 512})",
      "config.json");
  for (const unsigned head_dim : {64U, 192U}) {
    config["head_dim"] = head_dim;
    EXPECT_THAT(formats::ConfigMeaning(config).contradictions(), ::testing::IsEmpty()) << head_dim;
  }
  config["head_dim"] = 65U;
  EXPECT_THAT(formats::ConfigMeaning(config).contradictions(), ::testing::SizeIs(1));
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
  conversion.execute.force = true;
  conversion.run();
  EXPECT_FALSE(fs::exists(conversion.output / formats::kVerifyName));
}

constexpr const char* kNorm = "model.layers.1.input_layernorm.weight";
constexpr const char* kOtherNorm = "model.layers.0.input_layernorm.weight";

std::vector<SchemeChange> changes(const TinyCheckpoint& source, const TinyCheckpoint& output) {
  const ingot::testing::TempDir directory;
  source.write(directory / "source");
  output.write(directory / "output");
  return scheme_changes(open_compared(directory / "source", {}).model,
                        open_compared(directory / "output", {}).model);
}

TEST(SchemeChanges, NameSchemesRolesAndBytesOfBothSides) {
  const TinyCheckpoint source = tiny_deepseek_v3();
  TinyCheckpoint output = source;
  TinyTensor& norm = tensor_of(output, kNorm);
  norm.dtype = "F32";
  const std::uint64_t n = norm.shape.at(0);
  const std::vector<SchemeChange> all = changes(source, output);
  ASSERT_EQ(all.size(), 2U);
  EXPECT_EQ(all[0].from, "bf16");
  EXPECT_EQ(all[0].to, "bf16");
  EXPECT_EQ(all[0].source_bytes, all[0].output_bytes);
  EXPECT_EQ(all[0].tensors + 1, source.files.begin()->second.size());
  EXPECT_EQ(all[1], (SchemeChange{.from = "bf16",
                                  .to = "f32",
                                  .roles = {"input-norm"},
                                  .tensors = 1,
                                  .source_bytes = 2 * n,
                                  .output_bytes = 4 * n}));
}

TEST(SchemeChanges, LeaveOutWhatOneSideLacks) {
  const TinyCheckpoint source = tiny_deepseek_v3();
  TinyCheckpoint output = source;
  std::erase_if(output.files.begin()->second,
                [](const TinyTensor& tensor) { return tensor.name == kOtherNorm; });
  const std::vector<SchemeChange> all = changes(source, output);
  ASSERT_EQ(all.size(), 1U);
  EXPECT_EQ(all[0].tensors + 1, source.files.begin()->second.size());
}

// Only the groups of a config decide engines' activations.

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
