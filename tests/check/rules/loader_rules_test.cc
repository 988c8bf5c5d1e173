#include "check/rules/loader_rules.h"

#include "engines/limits.h"
#include "tests/check/rules/rule_fixture.h"
#include "tests/support/test.h"

namespace ingot::formats {

using namespace check;

namespace {

using namespace ingot::testing;

void set_scale(EditableCheckpoint& checkpoint, const std::string& name, float value) {
  std::memcpy(checkpoint.at(name).bytes.data(), &value, sizeof value);
}

/// Whether opening a checkpoint finds all or a part of what the row is about.
bool is_of_structure(const LoaderRule& rule) {
  const auto* test = std::get_if<void (*)(const RuleInput&)>(&rule.test);
  return (test != nullptr && *test == nullptr) || rule.name == "fp8.scale-shape" ||
         rule.name == "int8.scale-present";
}

/// Whether opening finds a fault with this code and no other.
bool is_structure_at_fault(const EditableCheckpoint& edited, ErrorCode code) {
  ErrorList faults;
  run_all_rules(edited, {}, &faults);
  return !faults.empty() && std::ranges::all_of(faults.errors(), [&](const Error& fault) {
    return fault.code() == code;
  });
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
    if (fixture.damage) fixture.damage(edited);
    const auto look = [&](const RuleOptions& options) {
      return is_of_engine(rule.name) ? run_all_rules(edited, options) : run_rules(edited, options);
    };
    const std::vector<Finding> findings =
        look({.deep = true, .threads = 2, .tensor_parallel = fixture.tensor_parallel});
    const bool is_told = is_of_structure(rule) && is_structure_at_fault(edited, fixture.code);
    bool has_fired = is_told;
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
    // Findings that headers can tell are found without reading values, and no others.
    const std::vector<Finding> by_headers =
        look({.threads = 2, .most_bytes = 0, .tensor_parallel = fixture.tensor_parallel});
    EXPECT_EQ(std::any_of(by_headers.begin(), by_headers.end(),
                          [&](const Finding& finding) { return finding.rule == rule.name; }) ||
                  is_told,
              !rule.reads_values);
  }
  EXPECT_GT(n_fixtures, 0U) << "no fixture violates this rule";
}

TEST(LoaderRules, CompareLargeTiedTablesWhereTheyBegin) {
  EditableCheckpoint edited = make_fp8();
  edited.config["tie_word_embeddings"] = true;
  const auto is_apart = [&] {
    const std::vector<Finding> findings = run_rules(edited, {.most_bytes = 16});
    return std::ranges::find(findings, "model.tied-head", &Finding::rule) != findings.end();
  };
  EXPECT_TRUE(is_apart());
  edited.at("lm_head.weight").bytes = edited.at("model.embed_tokens.weight").bytes;
  EXPECT_FALSE(is_apart());
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

TEST(LoaderRules, AreQuietOnASoundCheckpoint) {
  EXPECT_THAT(run_rules(make_synthetic()), ::testing::IsEmpty());
  EXPECT_THAT(run_rules(make_synthetic([](SynthOptions& o) { o.ue8m0 = true; })),
              ::testing::IsEmpty());
  EXPECT_THAT(run_rules(make_plain()), ::testing::IsEmpty());
}

TEST(LoaderRules, WordsThatSayNothingAreNoUnknownKeys) {
  EditableCheckpoint checkpoint = make_synthetic();
  for (const bool is_meant : {false, true}) {
    for (const char* key : {"weight_per_tensor", "act_per_tensor"})
      quantization(checkpoint)[key] = is_meant;
    EXPECT_THAT(run_rules(checkpoint), ::testing::SizeIs(is_meant ? 2 : 0));
  }
}

// As nvidia/Qwen3.6-35B-A3B-NVFP4 has it.
TEST(LoaderRules, ModeloptHasQuantizedHeadsThatItsConfigNames) {
  EditableCheckpoint checkpoint =
      make_spelled({"modelopt", SchemeId::kNvfp4, Activations::kStatic});
  put_spelled(checkpoint, "lm_head.weight", {"modelopt", SchemeId::kNvfp4, Activations::kStatic});
  Json& statement = checkpoint.descriptions.at("hf_quant_config.json")["quantization"];
  for (Json* list : {&statement["exclude_modules"], &quantization(checkpoint)["ignore"]})
    list->erase(std::ranges::find(*list, Json("lm_head")));
  EXPECT_THAT(text_of(run_rules(checkpoint)), ::testing::Not(::testing::HasSubstr("lm_head")));
}

TEST(LoaderRules, TellOnlyOfAlgorithmsThatSglangsReaderRefuses) {
  EditableCheckpoint checkpoint =
      make_spelled({"modelopt", SchemeId::kFp8Channel, Activations::kDynamic});
  const auto told = [&](const char* algo) {
    checkpoint.descriptions.at("hf_quant_config.json")["quantization"]["quant_algo"] = algo;
    quantization(checkpoint)["quant_algo"] = algo;
    return text_of(run_rules(checkpoint)).find("SGLang 0.5.23 does not know") != std::string::npos;
  };
  EXPECT_TRUE(told("FP8_PER_CHANNEL_PER_TOKEN"));
  EXPECT_FALSE(told("MXFP8"));
}

TEST(LoaderRules, AcceptATiedHeadOfEqualBytes) {
  EditableCheckpoint tied = make_synthetic();
  tied.config["tie_word_embeddings"] = true;
  tied.tensors["lm_head.weight"] = tied.at("model.embed_tokens.weight");
  EXPECT_THAT(run_rules(tied), ::testing::IsEmpty());
}

TEST(LoaderRules, HaveUniqueNamesAndSayWhoRefuses) {
  std::set<std::string_view> names;
  for (const LoaderRule& rule : loader_rules()) {
    EXPECT_TRUE(names.insert(rule.name).second) << rule.name;
    EXPECT_FALSE(rule.loaders.empty()) << rule.name;
    EXPECT_FALSE(rule.rule.empty()) << rule.name;
  }
}

TEST(LoaderRules, SeeEveryKindOfBadScale) {
  for (const float bad :
       {0.0F, -1.0F, std::numeric_limits<float>::infinity(),
        -std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN(), -0.0F}) {
    EditableCheckpoint edited = make_synthetic();
    set_scale(edited, kDense + "up_proj.weight_scale_inv", bad);
    const Finding finding = only(run_rules(edited));
    EXPECT_EQ(finding.rule, "fp8.scale-values");
    EXPECT_EQ(finding.tensor, kDense + "up_proj.weight_scale_inv");
  }
}

TEST(LoaderRules, ReadBf16AndE8m0Scales) {
  const std::string name = kDense + "up_proj.weight_scale_inv";
  EditableCheckpoint bf16 = make_synthetic();
  bf16.put_zeros(name, DType::kBf16, bf16.at(name).shape);
  ASSERT_EQ(run_rules(bf16).size(), 1U);  // zeros
  for (std::size_t i = 0; i < bf16.at(name).bytes.size(); i += 2)
    bf16.at(name).bytes[i + 1] = std::byte{0x3F};
  EXPECT_THAT(run_rules(bf16), ::testing::IsEmpty());

  EditableCheckpoint e8m0 = make_synthetic();
  e8m0.put_zeros(name, DType::kF8E8M0, e8m0.at(name).shape);  // 2^-127
  EXPECT_THAT(run_rules(e8m0), ::testing::IsEmpty());
  e8m0.at(name).bytes[0] = std::byte{0xFF};
  ASSERT_EQ(run_rules(e8m0).size(), 1U);
  EXPECT_EQ(run_rules(e8m0)[0].rule, "fp8.scale-values");
}

TEST(LoaderRules, KnowTheSubnormalPowerOfTwoOfE8m0) {
  EditableCheckpoint edited =
      make_synthetic([](SynthOptions& o) { o.ue8m0 = o.subnormal_scales = true; });
  EXPECT_THAT(run_rules(edited), ::testing::IsEmpty());
  set_scale(edited, kDense + "up_proj.weight_scale_inv", 0x1p-128F);
  const Finding finding = only(run_rules(edited));
  EXPECT_EQ(finding.rule, "fp8.ue8m0-claim");
}

TEST(LoaderRules, CountNanCodesOnlyWhenDeep) {
  EditableCheckpoint edited = make_synthetic();
  edited.at(kDense + "up_proj.weight").bytes[7] = std::byte{0x7F};
  edited.at(kDense + "up_proj.weight").bytes[9] = std::byte{0xFF};
  const TempDir dir;
  edited.write(dir.path());
  const Checkpoint checkpoint = Checkpoint::open(dir.path());
  EXPECT_THAT(run_loader_rules(checkpoint, {}), ::testing::IsEmpty());
  const Finding finding = only(run_loader_rules(checkpoint, {.deep = true}));
  EXPECT_THAT(finding.message, ::testing::HasSubstr("2 codes that are NaN"));
  EXPECT_THAT(finding.message, ::testing::HasSubstr("element 7"));
}

TEST(LoaderRules, ListMissingTensorsCollectively) {
  EditableCheckpoint edited = make_synthetic();
  edited.tensors.erase("model.norm.weight");
  edited.tensors.erase("lm_head.weight");
  edited.tensors.erase("model.layers.1.input_layernorm.weight");
  const Finding finding = only(run_rules(edited));
  EXPECT_THAT(finding.message, ::testing::HasSubstr("3 tensors"));
  EXPECT_THAT(finding.message, ::testing::HasSubstr("lm_head.weight"));
  EXPECT_THAT(finding.message, ::testing::HasSubstr("model.layers.1.input_layernorm.weight"));
}

TEST(LoaderRules, NameExpertsBeyondTheConfig) {
  EditableCheckpoint edited = make_synthetic();
  edited.tensors[kMoe + "experts.4.up_proj.weight"] = edited.at(kMoe + "experts.3.up_proj.weight");
  edited.tensors[kMoe + "experts.4.up_proj.weight_scale_inv"] =
      edited.at(kMoe + "experts.3.up_proj.weight_scale_inv");
  const Finding finding = only(run_rules(edited));
  EXPECT_EQ(finding.rule, "moe.expert-ids");
  EXPECT_EQ(finding.code, ErrorCode::kUnknownTensor);
}

TEST(LoaderRules, SayNothingOfIndexersThatNobodyKnows) {
  EditableCheckpoint checkpoint =
      EditableCheckpoint::load(INGOT_SOURCE_DIR "/tests/golden/forward/glm5_next/checkpoint");
  Json& text = checkpoint.config.contains("text_config") ? checkpoint.config["text_config"]
                                                         : checkpoint.config;
  text["indexer_types"] = std::vector<std::string>(3, "full");
  const TempDir dir;
  checkpoint.write(dir.path());
  EXPECT_THAT(run_loader_rules(Checkpoint::open(dir.path()), {}), ::testing::IsEmpty());
}

TEST(LoaderRules, AcceptStackedExpertsOfTheRightShape) {
  EditableCheckpoint edited = make_plain();
  edited.erase_prefix(kMoe + "experts.");
  edited.put_zeros(kMoe + "experts.gate_up_proj", DType::kBf16, {4, 256, 256});
  edited.put_zeros(kMoe + "experts.down_proj", DType::kBf16, {4, 256, 128});
  EXPECT_THAT(run_rules(edited), ::testing::IsEmpty());
}

TEST(LoaderRules, RefuseAStaticActivationSchemeBesideBlocks) {
  EditableCheckpoint edited = make_synthetic();
  quantization(edited)["activation_scheme"] = "static";
  const Finding finding = only(run_rules(edited));
  EXPECT_EQ(finding.rule, "fp8.activation-scheme");
  EXPECT_EQ(finding.code, ErrorCode::kUnsupported);
}

TEST(LoaderRules, AcceptAPlainWeightThatTheConfigLists) {
  EditableCheckpoint edited = make_synthetic();
  make_weight_plain(edited, kAttention + "o_proj.weight");
  quantization(edited)["ignored_layers"] = {"model.layers.0.self_attn.o_proj"};
  EXPECT_THAT(run_rules(edited), ::testing::IsEmpty());
}

}  // namespace
}  // namespace ingot::formats
