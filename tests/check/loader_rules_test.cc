#include "check/rules/loader_rules.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <set>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "formats/dialect/engine_limits.h"
#include "tests/check/rule_fixture.h"
#include "tests/support/temp_dir.h"

namespace ingot::formats {
namespace {

using testing::EditableCheckpoint;
using testing::kAttention;
using testing::kDense;
using testing::kMoe;
using testing::make_plain;
using testing::make_spelled;
using testing::make_synthetic;
using testing::make_weight_plain;
using testing::quantization;
using testing::rule_fixtures;
using testing::RuleFixture;
using testing::Spelled;
using testing::TempDir;

void set_scale(EditableCheckpoint& checkpoint, const std::string& name, float value) {
  std::memcpy(checkpoint.at(name).bytes.data(), &value, sizeof value);
}

std::vector<Finding> run_all(const EditableCheckpoint& edited,
                             const RuleOptions& rule_options = {.deep = true, .threads = 2}) {
  const TempDir dir;
  edited.write(dir.path());
  ErrorList faults;
  OpenOptions options;
  options.faults = &faults;
  const Checkpoint checkpoint = Checkpoint::open(dir.path(), options);
  return run_loader_rules(checkpoint, rule_options);
}

bool is_of_engine(std::string_view rule) {
  return rule.starts_with("engine.");
}

// Without what engines make of a sound spelling, which some tests ask for alone.
std::vector<Finding> run(const EditableCheckpoint& edited,
                         const RuleOptions& rule_options = {.deep = true, .threads = 2}) {
  std::vector<Finding> findings = run_all(edited, rule_options);
  std::erase_if(findings, [](const Finding& finding) { return is_of_engine(finding.rule); });
  return findings;
}

std::string text_of(const std::vector<Finding>& findings) {
  std::string text;
  for (const Finding& finding : findings) {
    text += std::string(finding.rule) + ": " + finding.file + " " + finding.tensor + " " +
            finding.message + "\n";
  }
  return text;
}

class EveryRule : public ::testing::TestWithParam<const LoaderRule*> {};

std::vector<const LoaderRule*> all_rules() {
  std::vector<const LoaderRule*> rules;
  for (const LoaderRule& rule : loader_rules()) rules.push_back(&rule);
  return rules;
}

INSTANTIATE_TEST_SUITE_P(LoaderRules, EveryRule, ::testing::ValuesIn(all_rules()),
                         [](const auto& rule) {
                           std::string name(rule.param->name);
                           std::replace_if(
                               name.begin(), name.end(),
                               [](char c) { return c == '.' || c == '-'; }, '_');
                           return name;
                         });

TEST_P(EveryRule, FiresAloneOnItsViolations) {
  const LoaderRule& rule = *GetParam();
  std::size_t n_fixtures = 0;
  for (const RuleFixture& fixture : rule_fixtures()) {
    if (fixture.rule != rule.name) continue;
    SCOPED_TRACE(++n_fixtures);
    EditableCheckpoint edited = fixture.make();
    fixture.damage(edited);
    const auto look = [&](const RuleOptions& options) {
      return is_of_engine(rule.name) ? run_all(edited, options) : run(edited, options);
    };
    const std::vector<Finding> findings =
        look({.deep = true, .threads = 2, .tensor_parallel = fixture.tensor_parallel});
    bool has_fired = false;
    for (const Finding& finding : findings) {
      EXPECT_FALSE(finding.message.empty());
      EXPECT_FALSE(finding.file.empty() && finding.tensor.empty());
      if (fixture.also.contains(finding.rule)) continue;
      has_fired = true;
      EXPECT_EQ(finding.rule, rule.name)
          << finding.file << " " << finding.tensor << ": " << finding.message;
      EXPECT_EQ(finding.severity, rule.severity);
      EXPECT_EQ(error_code_name(finding.code), error_code_name(fixture.code)) << finding.message;
    }
    EXPECT_TRUE(has_fired) << text_of(findings);
    // What headers alone can tell is told without reading values, and nothing else is.
    const std::vector<Finding> by_headers =
        look({.threads = 2, .values = false, .tensor_parallel = fixture.tensor_parallel});
    EXPECT_EQ(std::any_of(by_headers.begin(), by_headers.end(),
                          [&](const Finding& finding) { return finding.rule == rule.name; }),
              !rule.reads_values);
  }
  EXPECT_GT(n_fixtures, 0U) << "no fixture violates this rule";
}

TEST(LoaderRules, HaveARowForEveryFixture) {
  for (const RuleFixture& fixture : rule_fixtures()) {
    const auto rules = loader_rules();
    EXPECT_TRUE(std::any_of(rules.begin(), rules.end(), [&](const LoaderRule& rule) {
      return rule.name == fixture.rule;
    })) << fixture.rule;
  }
}

TEST(LoaderRules, AreOfDialectsThatThereAre) {
  for (const LoaderRule& rule : loader_rules()) {
    if (!rule.dialect.empty()) {
      EXPECT_NE(find_dialect(rule.dialect), nullptr) << rule.name;
    }
  }
}

// What vLLM 0.32 and SGLang 0.5.23 said when they were given each spelling, with experts and with
// attention where the scheme takes it.
std::set<std::string_view> known_complaints(const Dialect& dialect,
                                            const SchemeSpelling& spelling) {
  using enum SchemeId;
  using enum Activations;
  const SchemeId scheme = spelling.scheme;
  const Activations activations = spelling.activations;
  if (dialect.name == "modelopt" && scheme == kFp8Channel)
    return {"engine.refused-by-all", "modelopt.algo-of-sglang"};
  if (scheme == kInt8Block) return {"engine.refused-by-vllm"};
  if (dialect.name != "compressed-tensors") return {};
  switch (scheme) {
    case kFp8Block:
    case kFp8Channel:
      if (activations == kWeightOnly) return {"engine.refused-by-all"};
      return {};
    case kFp8Tensor:
      if (activations != kStatic) return {"engine.refused-by-all"};
      return {};
    case kInt8Channel:
      if (activations != kDynamic) return {"engine.refused-by-all"};
      return {"engine.refused-by-sglang"};
    case kMxfp4:
    case kMxfp8:
      return {"engine.refused-by-sglang"};
    default:
      return {};
  }
}

/// Checks that of the known complaints each is made, and leaves the others.
std::string other_complaints(std::vector<Finding> findings, const Dialect& dialect,
                             const SchemeSpelling& spelling) {
  const auto known = known_complaints(dialect, spelling);
  for (const std::string_view rule : known) {
    EXPECT_NE(std::erase_if(findings, [&](const Finding& f) { return f.rule == rule; }), 0U)
        << rule;
  }
  return text_of(findings);
}

TEST(LoaderRules, AreQuietOnEverySpellingOfEveryDialect) {
  for (const Dialect* dialect : dialects()) {
    for (const SchemeSpelling& spelling : dialect->spellings) {
      SCOPED_TRACE(std::string(dialect->name) + " " +
                   std::string(scheme_facts(spelling.scheme).name) + " " +
                   std::string(activations_name(spelling.activations)));
      const auto findings = run_all(
          make_spelled({std::string(dialect->name), spelling.scheme, spelling.activations}));
      EXPECT_EQ(other_complaints(findings, *dialect, spelling), "");
    }
  }
}

TEST(LoaderRules, AreQuietOnASoundCheckpoint) {
  EXPECT_THAT(run(make_synthetic()), ::testing::IsEmpty());
  EXPECT_THAT(run(make_synthetic([](SynthOptions& o) { o.ue8m0 = true; })), ::testing::IsEmpty());
  EXPECT_THAT(run(make_plain()), ::testing::IsEmpty());
}

TEST(LoaderRules, HaveUniqueNamesAndSayWhoRefuses) {
  std::set<std::string_view> names;
  for (const LoaderRule& rule : loader_rules()) {
    EXPECT_TRUE(names.insert(rule.name).second) << rule.name;
    EXPECT_FALSE(rule.loaders.empty()) << rule.name;
    EXPECT_FALSE(rule.rule.empty()) << rule.name;
  }
}

std::set<std::string> documented_lines() {
  const std::filesystem::path path = std::filesystem::path(INGOT_SOURCE_DIR) / "docs/formats.md";
  std::ifstream file(path);
  std::set<std::string> lines;
  for (std::string line; std::getline(file, line);) lines.insert(line);
  return lines;
}

TEST(EngineLimits, StandInTheDocumentation) {
  const std::set<std::string> lines = documented_lines();
  for (const EngineLimit& limit : engine_limits()) {
    const std::string line =
        fmt::format("| {} | `{}` | `{}` | {} | {} | {} | {} |", engine_name(limit.engine),
                    limit.dialect, scheme_facts(limit.scheme).name,
                    limit.activations ? activations_name(*limit.activations) : "any",
                    engine_scope_name(limit.scope), limit.reason,
                    limit.option.empty() ? std::string(limit.instead)
                                         : fmt::format("the same files with `{}`", limit.option));
    EXPECT_TRUE(lines.contains(line)) << line;
  }
}

TEST(LoaderRules, StandInTheDocumentation) {
  const std::set<std::string> lines = documented_lines();
  for (const LoaderRule& rule : loader_rules()) {
    const std::string line = fmt::format(
        "| `{}` | {} | {} | {} | {} |", rule.name, rule.dialect.empty() ? "any" : rule.dialect,
        rule.loaders, rule.severity == Severity::kError ? "error" : "warning", rule.rule);
    EXPECT_TRUE(lines.contains(line)) << line;
  }
}

TEST(LoaderRules, SeeEveryKindOfBadScale) {
  for (const float bad :
       {0.0F, -1.0F, std::numeric_limits<float>::infinity(),
        -std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN(), -0.0F}) {
    EditableCheckpoint edited = make_synthetic();
    set_scale(edited, kDense + "up_proj.weight_scale_inv", bad);
    const std::vector<Finding> findings = run(edited);
    ASSERT_EQ(findings.size(), 1U) << bad;
    EXPECT_EQ(findings[0].rule, "fp8.scale-values");
    EXPECT_EQ(findings[0].tensor, kDense + "up_proj.weight_scale_inv");
  }
}

TEST(LoaderRules, ReadBf16AndE8m0Scales) {
  const std::string name = kDense + "up_proj.weight_scale_inv";
  EditableCheckpoint bf16 = make_synthetic();
  bf16.put_zeros(name, DType::kBf16, bf16.at(name).shape);
  ASSERT_EQ(run(bf16).size(), 1U);  // zeros
  for (std::size_t i = 0; i < bf16.at(name).bytes.size(); i += 2)
    bf16.at(name).bytes[i + 1] = std::byte{0x3F};
  EXPECT_THAT(run(bf16), ::testing::IsEmpty());

  EditableCheckpoint e8m0 = make_synthetic();
  e8m0.put_zeros(name, DType::kF8E8M0, e8m0.at(name).shape);  // 2^-127
  EXPECT_THAT(run(e8m0), ::testing::IsEmpty());
  e8m0.at(name).bytes[0] = std::byte{0xFF};
  ASSERT_EQ(run(e8m0).size(), 1U);
  EXPECT_EQ(run(e8m0)[0].rule, "fp8.scale-values");
}

TEST(LoaderRules, KnowTheSubnormalPowerOfTwoThatE8m0Has) {
  EditableCheckpoint edited =
      make_synthetic([](SynthOptions& o) { o.ue8m0 = o.subnormal_scales = true; });
  EXPECT_THAT(run(edited), ::testing::IsEmpty());
  set_scale(edited, kDense + "up_proj.weight_scale_inv", 0x1p-128F);
  const std::vector<Finding> findings = run(edited);
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].rule, "fp8.ue8m0-claim");
}

TEST(LoaderRules, CountNanCodesOnlyWhenDeep) {
  EditableCheckpoint edited = make_synthetic();
  edited.at(kDense + "up_proj.weight").bytes[7] = std::byte{0x7F};
  edited.at(kDense + "up_proj.weight").bytes[9] = std::byte{0xFF};
  const TempDir dir;
  edited.write(dir.path());
  const Checkpoint checkpoint = Checkpoint::open(dir.path());
  EXPECT_THAT(run_loader_rules(checkpoint, {}), ::testing::IsEmpty());
  const std::vector<Finding> findings = run_loader_rules(checkpoint, {.deep = true});
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_THAT(findings[0].message, ::testing::HasSubstr("2 NaN codes"));
  EXPECT_THAT(findings[0].message, ::testing::HasSubstr("element 7"));
}

TEST(LoaderRules, ListMissingTensorsCollectively) {
  EditableCheckpoint edited = make_synthetic();
  edited.tensors.erase("model.norm.weight");
  edited.tensors.erase("lm_head.weight");
  edited.tensors.erase("model.layers.1.input_layernorm.weight");
  const std::vector<Finding> findings = run(edited);
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_THAT(findings[0].message, ::testing::HasSubstr("3 tensors"));
  EXPECT_THAT(findings[0].message, ::testing::HasSubstr("lm_head.weight"));
  EXPECT_THAT(findings[0].message, ::testing::HasSubstr("model.layers.1.input_layernorm.weight"));
}

TEST(LoaderRules, NameExpertsBeyondTheConfig) {
  EditableCheckpoint edited = make_synthetic();
  edited.tensors[kMoe + "experts.4.up_proj.weight"] = edited.at(kMoe + "experts.3.up_proj.weight");
  edited.tensors[kMoe + "experts.4.up_proj.weight_scale_inv"] =
      edited.at(kMoe + "experts.3.up_proj.weight_scale_inv");
  const std::vector<Finding> findings = run(edited);
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].rule, "moe.expert-ids");
  EXPECT_EQ(findings[0].code, ErrorCode::kUnknownTensor);
}

TEST(LoaderRules, AcceptStackedExpertsOfTheRightShape) {
  EditableCheckpoint edited = make_plain();
  edited.erase_prefix(kMoe + "experts.");
  edited.put_zeros(kMoe + "experts.gate_up_proj", DType::kBf16, {4, 256, 256});
  edited.put_zeros(kMoe + "experts.down_proj", DType::kBf16, {4, 256, 128});
  EXPECT_THAT(run(edited), ::testing::IsEmpty());
}

TEST(LoaderRules, RefuseAStaticActivationSchemeBesideBlocks) {
  EditableCheckpoint edited = make_synthetic();
  quantization(edited)["activation_scheme"] = "static";
  const std::vector<Finding> findings = run(edited);
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].rule, "fp8.activation-scheme");
  EXPECT_EQ(findings[0].code, ErrorCode::kUnsupported);
}

TEST(LoaderRules, AcceptAPlainWeightThatTheConfigLists) {
  EditableCheckpoint edited = make_synthetic();
  make_weight_plain(edited, kAttention + "o_proj.weight");
  quantization(edited)["ignored_layers"] = {"model.layers.0.self_attn.o_proj"};
  EXPECT_THAT(run(edited), ::testing::IsEmpty());
}

// The largest released layout of two schemes: attention in FP8 blocks, MLPs in NVFP4.
TEST(LoaderRules, AreQuietOnAMixtureInTwoGroups) {
  const Spelled nvfp4 = {"compressed-tensors", SchemeId::kNvfp4, Activations::kWeightOnly};
  const Spelled fp8 = {"compressed-tensors", SchemeId::kFp8Block, Activations::kDynamic};
  EditableCheckpoint edited = make_spelled(nvfp4);
  for (const std::string& name : testing::spelled_weights(make_plain(), fp8)) {
    if (name.find("self_attn") != std::string::npos) put_spelled(edited, name, fp8);
  }
  Json groups = make_spelled(fp8).config["quantization_config"]["config_groups"];
  groups["group_1"] = quantization(edited)["config_groups"]["group_0"];
  groups["group_0"]["targets"] = {"re:.*self_attn.*"};
  groups["group_1"]["targets"] = {"re:.*mlp.*(gate|up|down)_proj$"};
  quantization(edited)["config_groups"] = groups;
  quantization(edited)["format"] = "mixed-precision";
  quantization(edited)["ignore"] = make_spelled(fp8).config["quantization_config"]["ignore"];
  EXPECT_EQ(text_of(run(edited)), "");

  // A group that says another scheme than its weights have.
  quantization(edited)["config_groups"]["group_0"]["weights"]["strategy"] = "channel";
  quantization(edited)["config_groups"]["group_0"]["weights"].erase("block_structure");
  const std::vector<Finding> findings = run(edited);
  ASSERT_FALSE(findings.empty());
  for (const Finding& finding : findings) EXPECT_EQ(finding.rule, "ct.targets");
}

// docs/formats.md prints this block; older readers of it refuse nulls, loaders of today write them.
TEST(LoaderRules, AcceptEveryKeyThatCompressedTensorsWrites) {
  EditableCheckpoint edited =
      make_spelled({"compressed-tensors", SchemeId::kInt8Channel, Activations::kDynamic});
  quantization(edited)["config_groups"]["group_0"] = Json::parse(R"({
      "format": "int-quantized",
      "input_activations": {
        "actorder": null, "block_structure": null, "dynamic": true, "group_size": null,
        "num_bits": 8, "observer": null, "observer_kwargs": {}, "scale_dtype": null,
        "strategy": "token", "symmetric": true, "type": "int", "zp_dtype": null },
      "output_activations": null,
      "targets": ["Linear"],
      "weights": {
        "actorder": null, "block_structure": null, "dynamic": false, "group_size": null,
        "num_bits": 8, "observer": "memoryless_minmax", "observer_kwargs": {}, "scale_dtype": null,
        "strategy": "channel", "symmetric": true, "type": "int", "zp_dtype": null }})");
  quantization(edited)["sparsity_config"] = Json::object();
  quantization(edited)["transform_config"] = Json::object();
  EXPECT_EQ(text_of(run(edited)), "");
}

TEST(LoaderRules, NameTheLargestDegreeThatCutsAtAGroupsEdge) {
  // Rows of the dense MLP: 384 = 3 x 128, of experts: 128.
  std::map<std::string, std::string> messages;
  for (const Finding& finding : run(make_synthetic(), {.tensor_parallel = 6})) {
    EXPECT_EQ(finding.rule, "cut.group-edge");
    messages[finding.tensor] = finding.message;
  }
  EXPECT_THAT(messages.at(kDense + "gate_proj.weight"), ::testing::HasSubstr("at most 3;"));
  EXPECT_THAT(messages.at(kMoe + "experts.0.gate_proj.weight"), ::testing::HasSubstr("at most 1;"));
  EXPECT_FALSE(messages.contains(kAttention + "q_a_proj.weight")) << "it is replicated";

  // Rows of 16 columns do not mind, and INT8 minds nothing but whole parts.
  const auto nvfp4 =
      make_spelled({"compressed-tensors", SchemeId::kNvfp4, Activations::kWeightOnly});
  EXPECT_EQ(text_of(run(nvfp4, {.tensor_parallel = 8})), "");
  EXPECT_NE(text_of(run(nvfp4, {.tensor_parallel = 16})), "");
  const auto int8 =
      make_spelled({"compressed-tensors", SchemeId::kInt8Channel, Activations::kDynamic});
  EXPECT_EQ(text_of(run(int8, {.tensor_parallel = 16})), "");
}

TEST(LoaderRules, AcceptInt8CodeMinus128) {
  EditableCheckpoint edited =
      make_spelled({"compressed-tensors", SchemeId::kInt8Channel, Activations::kDynamic});
  edited.at(kDense + "up_proj.weight").bytes[3] = std::byte{0x80};
  EXPECT_EQ(text_of(run(edited)), "");
}

TEST(LoaderRules, ReadScalesOfEveryDtypeThatLoadersCopy) {
  EditableCheckpoint edited =
      make_spelled({"compressed-tensors", SchemeId::kInt8Channel, Activations::kDynamic});
  const std::string name = kAttention + "o_proj.weight_scale";
  for (const DType dtype : {DType::kBf16, DType::kF16}) {
    edited.put_zeros(name, dtype, edited.at(name).shape);
    ASSERT_EQ(run(edited).size(), 1U);  // zeros
    for (std::size_t i = 1; i < edited.at(name).bytes.size(); i += 2)
      edited.at(name).bytes[i] = std::byte{0x2C};
    EXPECT_EQ(text_of(run(edited)), "");
  }
}

TEST(LoaderRules, AreThoseOfTheDialectAtHand) {
  // No section `quantization`: modelopt.required-keys would say so.
  EditableCheckpoint edited =
      make_spelled({"compressed-tensors", SchemeId::kInt8Channel, Activations::kDynamic});
  edited.descriptions["hf_quant_config.json"] = Json::object();
  EXPECT_EQ(text_of(run(edited)), "");
}

// What our writers derive from a model's weights, in place of what was written by hand.
void derive_config(EditableCheckpoint& edited, const Dialect& dialect,
                   const SchemeSpelling& spelling) {
  const TempDir dir;
  edited.write(dir.path());
  const Checkpoint checkpoint = Checkpoint::open(dir.path());
  std::vector<WrittenTensor> written;
  for (const LogicalTensor& tensor : checkpoint.tensors()) {
    WrittenTensor& one = written.emplace_back();
    one.name = tensor.name;
    one.scheme = tensor.encoding.scheme;
    one.activations = spelling.activations;
    one.rule = tensor.rule;
    one.layer = tensor.layer;
    one.expert = tensor.expert;
    one.rank = tensor.shape.size();
    if (scheme_facts(one.scheme).quantized)
      one.block = {tensor.encoding.block_rows, tensor.encoding.block_cols};
    tensor.encoding.stored.for_each(
        [&](Part, std::uint32_t index) { one.stored.push_back(checkpoint.stored()[index].name); });
  }
  ModelConfig source = checkpoint.config();
  source.quantization.reset();
  source.raw.erase("quantization_config");
  const WrittenModel model = {.source = source, .description = nullptr, .tensors = written};
  const Json block = dialect.quantization_config(model);
  if (block.is_null()) {
    edited.config.erase("quantization_config");
  } else {
    edited.config["quantization_config"] = block;
  }
  edited.descriptions.clear();
  if (dialect.description != nullptr)
    edited.descriptions[std::string(dialect.description_file)] = dialect.description(model);
}

TEST(LoaderRules, AcceptWhatEveryDialectDerives) {
  for (const Dialect* dialect : dialects()) {
    for (const SchemeSpelling& spelling : dialect->spellings) {
      SCOPED_TRACE(std::string(dialect->name) + " " +
                   std::string(scheme_facts(spelling.scheme).name) + " " +
                   std::string(activations_name(spelling.activations)));
      EditableCheckpoint edited =
          make_spelled({std::string(dialect->name), spelling.scheme, spelling.activations});
      derive_config(edited, *dialect, spelling);
      EXPECT_EQ(other_complaints(run_all(edited), *dialect, spelling), "")
          << edited.config["quantization_config"].dump();
    }
  }
}

// Every key of a dialect's JSON by every kind of value: findings, never another exception.
TEST(LoaderRules, ReadAnyJson) {
  const Json odd_values = {nullptr,
                           true,
                           -1,
                           1.5,
                           "x",
                           "re:(",
                           Json::array(),
                           Json::object(),
                           {1, "a"},
                           {{"a", {{"b", 1}}}}};
  const std::map<std::string, std::vector<std::string>> places = {
      {"compressed-tensors",
       {"/config_groups", "/ignore", "/format", "/config_groups/group_0",
        "/config_groups/group_0/targets", "/config_groups/group_0/weights",
        "/config_groups/group_0/format", "/config_groups/group_0/weights/num_bits",
        "/config_groups/group_0/weights/type", "/config_groups/group_0/weights/strategy",
        "/config_groups/group_0/weights/group_size", "/config_groups/group_0/input_activations",
        "/config_groups/group_0/input_activations/dynamic"}},
      {"modelopt",
       {"/quantization", "/quantization/quant_algo", "/quantization/exclude_modules",
        "/quantization/group_size", "/quantization/quantized_layers"}},
      {"modelslim", {"/model_quant_type", "/lm_head.weight", "/model.layers.0.x"}}};
  for (const auto& [dialect, pointers] : places) {
    const SchemeId scheme = dialect == "modelopt" ? SchemeId::kNvfp4 : SchemeId::kInt8Channel;
    const EditableCheckpoint sound = make_spelled({dialect, scheme, Activations::kStatic});
    for (const std::string& pointer : pointers) {
      for (const Json& value : odd_values) {
        SCOPED_TRACE(dialect + " " + pointer + " = " + value.dump());
        EditableCheckpoint edited = sound;
        Json& owner = edited.descriptions.empty() ? quantization(edited)
                                                  : edited.descriptions.begin()->second;
        owner[Json::json_pointer(pointer)] = value;
        try {
          run(edited, {.values = false});
        } catch (const Error&) {
          // Said by the structure too.
        }
      }
    }
  }
}

}  // namespace
}  // namespace ingot::formats
