#include "formats/loader_rules.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <map>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "formats/synth.h"
#include "tests/check/editable_checkpoint.h"
#include "tests/support/temp_dir.h"

namespace ingot::formats {
namespace {

using testing::EditableCheckpoint;
using testing::TempDir;

// Names in a tiny V3.2: layer 0 is dense, 1 a mixture of 4 experts, 2 the multi-token prediction
// layer.
const std::string kDense = "model.layers.0.mlp.";
const std::string kMoe = "model.layers.1.mlp.";
const std::string kAttention = "model.layers.0.self_attn.";
const std::string kMtp = "model.layers.2.";

// A checkpoint that violates one row and no other.
struct Fixture {
  std::function<void(SynthOptions&)> options = [](SynthOptions&) {};
  std::function<void(EditableCheckpoint&)> damage = [](EditableCheckpoint&) {};
  ErrorCode code{};
};

EditableCheckpoint make(const std::function<void(SynthOptions&)>& edit) {
  SynthOptions options;
  options.family = find_family("deepseek_v32");
  options.size = SynthSize::kTiny;
  edit(options);
  const TempDir dir;
  write_synthetic_checkpoint(dir.path(), options);
  return EditableCheckpoint::load(dir.path());
}

void set_scale(EditableCheckpoint& checkpoint, const std::string& name, float value) {
  std::memcpy(checkpoint.at(name).bytes.data(), &value, sizeof value);
}

// Makes an FP8 weight plain, as a cast would.
void make_plain(EditableCheckpoint& checkpoint, const std::string& name) {
  checkpoint.put_zeros(name, DType::kBf16, checkpoint.at(name).shape);
  checkpoint.tensors.erase(name + "_scale_inv");
}

void put_fp8(EditableCheckpoint& checkpoint, const std::string& name) {
  const Shape shape = checkpoint.at(name).shape;
  checkpoint.put_zeros(name, DType::kF8E4M3, shape);
  const Shape scale = block_scale_shape(shape, 128, 128);
  checkpoint.put_zeros(name + "_scale_inv", DType::kF32, scale);
  for (std::size_t i = 0; i < checkpoint.at(name + "_scale_inv").bytes.size(); i += 4) {
    const float one = 1;
    std::memcpy(checkpoint.at(name + "_scale_inv").bytes.data() + i, &one, sizeof one);
  }
}

Json& quantization(EditableCheckpoint& checkpoint) {
  return checkpoint.config.at("quantization_config");
}

const std::map<std::string_view, Fixture>& fixtures() {
  static const std::map<std::string_view, Fixture> table = {
      {"container.metadata-format",
       {.damage = [](EditableCheckpoint& c) { c.with_metadata = false; },
        .code = ErrorCode::kNotFound}},
      {"container.entry-point",
       {.damage = [](EditableCheckpoint& c) { c.file_name = "weights.safetensors"; },
        .code = ErrorCode::kNotFound}},
      {"fp8.config-present",
       {.damage = [](EditableCheckpoint& c) { c.config.erase("quantization_config"); },
        .code = ErrorCode::kNotFound}},
      {"fp8.config-without-weights",
       {.options = [](SynthOptions& o) { o.fp8 = false; },
        .damage =
            [](EditableCheckpoint& c) {
              c.config["quantization_config"] = {{"activation_scheme", "dynamic"},
                                                 {"fmt", "e4m3"},
                                                 {"quant_method", "fp8"},
                                                 {"weight_block_size", {128, 128}}};
            },
        .code = ErrorCode::kMismatch}},
      {"fp8.activation-scheme",
       {.damage = [](EditableCheckpoint& c) { quantization(c).erase("activation_scheme"); },
        .code = ErrorCode::kNotFound}},
      {"fp8.block-size",
       {.damage = [](EditableCheckpoint& c) { quantization(c).erase("weight_block_size"); },
        .code = ErrorCode::kCorrupt}},
      {"fp8.weight-quantized",
       {.damage = [](EditableCheckpoint& c) { make_plain(c, kAttention + "o_proj.weight"); },
        .code = ErrorCode::kDtypeMismatch}},
      {"fp8.plain-module",
       {.damage = [](EditableCheckpoint& c) { put_fp8(c, kMtp + "eh_proj.weight"); },
        .code = ErrorCode::kDtypeMismatch}},
      {"fp8.weight-dtype",
       {.damage =
            [](EditableCheckpoint& c) {
              c.at(kAttention + "o_proj.weight").dtype = DType::kF8E5M2;
            },
        .code = ErrorCode::kUnsupported}},
      {"fp8.scale-present",
       {.damage =
            [](EditableCheckpoint& c) { c.tensors.erase(kAttention + "o_proj.weight_scale_inv"); },
        .code = ErrorCode::kMissingTensor}},
      {"fp8.scale-dtype",
       {.damage =
            [](EditableCheckpoint& c) {
              const std::string name = kAttention + "o_proj.weight_scale_inv";
              c.put_zeros(name, DType::kF16, c.at(name).shape);
            },
        .code = ErrorCode::kDtypeMismatch}},
      {"fp8.scale-shape",
       {.damage =
            [](EditableCheckpoint& c) {
              std::swap(c.at(kDense + "up_proj.weight_scale_inv").shape[0],
                        c.at(kDense + "up_proj.weight_scale_inv").shape[1]);
            },
        .code = ErrorCode::kShapeMismatch}},
      {"fp8.scale-values",
       {.damage =
            [](EditableCheckpoint& c) { set_scale(c, kDense + "up_proj.weight_scale_inv", 0.0F); },
        .code = ErrorCode::kBadScale}},
      {"fp8.ue8m0-claim",
       {.damage = [](EditableCheckpoint& c) { quantization(c)["scale_fmt"] = "ue8m0"; },
        .code = ErrorCode::kMismatch}},
      {"fp8.nan-code",
       {.damage =
            [](EditableCheckpoint& c) {
              c.at(kDense + "up_proj.weight").bytes[12345] = std::byte{0xFF};
            },
        .code = ErrorCode::kNonFinite}},
      {"fp8.merged-partition",
       {.options = [](SynthOptions& o) { o.moe_intermediate = 144; },
        .code = ErrorCode::kShapeMismatch}},
      {"fused.scheme",
       {.damage =
            [](EditableCheckpoint& c) {
              make_plain(c, kDense + "gate_proj.weight");
              quantization(c)["modules_to_not_convert"] = {kDense + "gate_proj"};
            },
        .code = ErrorCode::kMismatch}},
      {"moe.expert-ids",
       {.damage = [](EditableCheckpoint& c) { EXPECT_EQ(c.erase_prefix(kMoe + "experts.3."), 6U); },
        .code = ErrorCode::kMissingTensor}},
      {"moe.stacked-shape",
       {.options = [](SynthOptions& o) { o.fp8 = false; },
        .damage =
            [](EditableCheckpoint& c) {
              EXPECT_EQ(c.erase_prefix(kMoe + "experts."), 12U);
              c.put_zeros(kMoe + "experts.gate_up_proj", DType::kBf16, {4, 256, 256});
              c.put_zeros(kMoe + "experts.down_proj", DType::kBf16, {4, 128, 256});
            },
        .code = ErrorCode::kShapeMismatch}},
      {"router.correction-bias",
       {.damage =
            [](EditableCheckpoint& c) { c.tensors.erase(kMoe + "gate.e_score_correction_bias"); },
        .code = ErrorCode::kMissingTensor}},
      {"router.correction-bias-dtype",
       {.damage =
            [](EditableCheckpoint& c) {
              c.put_zeros(kMoe + "gate.e_score_correction_bias", DType::kBf16, {4});
            },
        .code = ErrorCode::kDtypeMismatch}},
      {"indexer.complete",
       {.damage =
            [](EditableCheckpoint& c) { c.tensors.erase(kAttention + "indexer.k_norm.bias"); },
        .code = ErrorCode::kMissingTensor}},
      {"mtp.present",
       {.damage = [](EditableCheckpoint& c) { EXPECT_GT(c.erase_prefix(kMtp), 20U); },
        .code = ErrorCode::kMissingTensor}},
      {"mtp.complete",
       {.damage = [](EditableCheckpoint& c) { c.tensors.erase(kMtp + "enorm.weight"); },
        .code = ErrorCode::kMissingTensor}},
      {"model.complete",
       {.damage = [](EditableCheckpoint& c) { c.tensors.erase("model.norm.weight"); },
        .code = ErrorCode::kMissingTensor}},
      {"model.shape",
       {.damage =
            [](EditableCheckpoint& c) { c.put_zeros("model.norm.weight", DType::kF32, {255}); },
        .code = ErrorCode::kShapeMismatch}},
  };
  return table;
}

std::vector<Finding> run(const EditableCheckpoint& edited) {
  const TempDir dir;
  edited.write(dir.path());
  ErrorList faults;
  OpenOptions options;
  options.faults = &faults;
  const Checkpoint checkpoint = Checkpoint::open(dir.path(), options);
  return run_loader_rules(checkpoint, {.deep = true, .threads = 2});
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

TEST_P(EveryRule, FiresAloneOnItsViolation) {
  const LoaderRule& rule = *GetParam();
  ASSERT_TRUE(fixtures().contains(rule.name)) << "no fixture violates this rule";
  const Fixture& fixture = fixtures().at(rule.name);
  EditableCheckpoint edited = make(fixture.options);
  fixture.damage(edited);
  const std::vector<Finding> findings = run(edited);
  ASSERT_FALSE(findings.empty());
  for (const Finding& finding : findings) {
    EXPECT_EQ(finding.rule, rule.name)
        << finding.file << " " << finding.tensor << ": " << finding.message;
    EXPECT_EQ(finding.severity, rule.severity);
    EXPECT_EQ(error_code_name(finding.code), error_code_name(fixture.code)) << finding.message;
    EXPECT_FALSE(finding.message.empty());
    EXPECT_FALSE(finding.file.empty() && finding.tensor.empty());
  }
}

TEST(LoaderRules, AreQuietOnASoundCheckpoint) {
  EXPECT_THAT(run(make([](SynthOptions&) {})), ::testing::IsEmpty());
  EXPECT_THAT(run(make([](SynthOptions& o) { o.ue8m0 = true; })), ::testing::IsEmpty());
  EXPECT_THAT(run(make([](SynthOptions& o) { o.fp8 = false; })), ::testing::IsEmpty());
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
    EditableCheckpoint edited = make([](SynthOptions&) {});
    set_scale(edited, kDense + "up_proj.weight_scale_inv", bad);
    const std::vector<Finding> findings = run(edited);
    ASSERT_EQ(findings.size(), 1U) << bad;
    EXPECT_EQ(findings[0].rule, "fp8.scale-values");
    EXPECT_EQ(findings[0].tensor, kDense + "up_proj.weight_scale_inv");
  }
}

TEST(LoaderRules, ReadBf16AndE8m0Scales) {
  const std::string name = kDense + "up_proj.weight_scale_inv";
  EditableCheckpoint bf16 = make([](SynthOptions&) {});
  bf16.put_zeros(name, DType::kBf16, bf16.at(name).shape);
  ASSERT_EQ(run(bf16).size(), 1U);  // zeros
  for (std::size_t i = 0; i < bf16.at(name).bytes.size(); i += 2)
    bf16.at(name).bytes[i + 1] = std::byte{0x3F};
  EXPECT_THAT(run(bf16), ::testing::IsEmpty());

  EditableCheckpoint e8m0 = make([](SynthOptions&) {});
  e8m0.put_zeros(name, DType::kF8E8M0, e8m0.at(name).shape);  // 2^-127
  EXPECT_THAT(run(e8m0), ::testing::IsEmpty());
  e8m0.at(name).bytes[0] = std::byte{0xFF};
  ASSERT_EQ(run(e8m0).size(), 1U);
  EXPECT_EQ(run(e8m0)[0].rule, "fp8.scale-values");
}

TEST(LoaderRules, KnowTheSubnormalPowerOfTwoThatE8m0Has) {
  EditableCheckpoint edited = make([](SynthOptions& o) { o.ue8m0 = o.subnormal_scales = true; });
  EXPECT_THAT(run(edited), ::testing::IsEmpty());
  set_scale(edited, kDense + "up_proj.weight_scale_inv", 0x1p-128F);
  const std::vector<Finding> findings = run(edited);
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].rule, "fp8.ue8m0-claim");
}

TEST(LoaderRules, CountNanCodesOnlyWhenDeep) {
  EditableCheckpoint edited = make([](SynthOptions&) {});
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
  EditableCheckpoint edited = make([](SynthOptions&) {});
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
  EditableCheckpoint edited = make([](SynthOptions&) {});
  edited.tensors[kMoe + "experts.4.up_proj.weight"] = edited.at(kMoe + "experts.3.up_proj.weight");
  edited.tensors[kMoe + "experts.4.up_proj.weight_scale_inv"] =
      edited.at(kMoe + "experts.3.up_proj.weight_scale_inv");
  const std::vector<Finding> findings = run(edited);
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].rule, "moe.expert-ids");
  EXPECT_EQ(findings[0].code, ErrorCode::kUnknownTensor);
}

TEST(LoaderRules, AcceptStackedExpertsOfTheRightShape) {
  EditableCheckpoint edited = make([](SynthOptions& o) { o.fp8 = false; });
  edited.erase_prefix(kMoe + "experts.");
  edited.put_zeros(kMoe + "experts.gate_up_proj", DType::kBf16, {4, 256, 256});
  edited.put_zeros(kMoe + "experts.down_proj", DType::kBf16, {4, 256, 128});
  EXPECT_THAT(run(edited), ::testing::IsEmpty());
}

TEST(LoaderRules, RefuseAStaticActivationSchemeBesideBlocks) {
  EditableCheckpoint edited = make([](SynthOptions&) {});
  quantization(edited)["activation_scheme"] = "static";
  const std::vector<Finding> findings = run(edited);
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].rule, "fp8.activation-scheme");
  EXPECT_EQ(findings[0].code, ErrorCode::kUnsupported);
}

TEST(LoaderRules, AcceptAPlainWeightThatTheConfigLists) {
  EditableCheckpoint edited = make([](SynthOptions&) {});
  make_plain(edited, kAttention + "o_proj.weight");
  quantization(edited)["ignored_layers"] = {"model.layers.0.self_attn.o_proj"};
  EXPECT_THAT(run(edited), ::testing::IsEmpty());
}

}  // namespace
}  // namespace ingot::formats
