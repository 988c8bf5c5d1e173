#include "formats/family/decoder_rules.h"
#include "formats/family/family_table.h"

namespace ingot::formats {
namespace {

constexpr std::array<std::string_view, 1> kModelTypes = {"gpt_oss"};

/// Grouped-query attention with biases, and in every head a sink that takes part in the softmax.
constexpr std::array kAttentionRules = {
    linear_rule("model.layers.{layer}.self_attn.q_proj.weight", Role::kQProj, Scope::kLayer,
                {Dim::kGqaQ, Dim::kHidden}, Cut::kColumn, Fuse::kQkv),
    plain_rule("model.layers.{layer}.self_attn.q_proj.bias", Role::kAttentionBias, Scope::kLayer,
               {Dim::kGqaQ}, Cut::kColumn),
    linear_rule("model.layers.{layer}.self_attn.k_proj.weight", Role::kKProj, Scope::kLayer,
                {Dim::kGqaKv, Dim::kHidden}, Cut::kColumn, Fuse::kQkv),
    plain_rule("model.layers.{layer}.self_attn.k_proj.bias", Role::kAttentionBias, Scope::kLayer,
               {Dim::kGqaKv}, Cut::kColumn),
    linear_rule("model.layers.{layer}.self_attn.v_proj.weight", Role::kVProj, Scope::kLayer,
                {Dim::kGqaKv, Dim::kHidden}, Cut::kColumn, Fuse::kQkv),
    plain_rule("model.layers.{layer}.self_attn.v_proj.bias", Role::kAttentionBias, Scope::kLayer,
               {Dim::kGqaKv}, Cut::kColumn),
    linear_rule("model.layers.{layer}.self_attn.o_proj.weight", Role::kOProj, Scope::kLayer,
                {Dim::kHidden, Dim::kGqaQ}, Cut::kRow),
    plain_rule("model.layers.{layer}.self_attn.o_proj.bias", Role::kAttentionBias, Scope::kLayer,
               {Dim::kHidden}),
    plain_rule("model.layers.{layer}.self_attn.sinks", Role::kAttentionSinks, Scope::kLayer,
               {Dim::kHeads}, Cut::kColumn),
};

/// The release has MXFP4 stacks, its BF16 copies plain ones. No release has experts one by one;
/// their names are those of other families.
constexpr std::array kMixtureRules = {
    plain_rule("model.layers.{layer}.mlp.router.weight", Role::kRouter, Scope::kMoeLayer,
               {Dim::kExperts, Dim::kHidden}),
    plain_rule("model.layers.{layer}.mlp.router.bias", Role::kRouterBias, Scope::kMoeLayer,
               {Dim::kExperts}),
    linear_rule("model.layers.{layer}.mlp.experts.gate_up_proj", Role::kExpertsGateUp,
                Scope::kMoeLayer, {Dim::kExperts, Dim::kHidden, Dim::kTwoMoeIntermediate},
                Cut::kColumn, Presence::kStacked, StackOrder::kInputMajor,
                GateUpOrder::kInterleaved),
    plain_rule("model.layers.{layer}.mlp.experts.gate_up_proj_bias", Role::kExpertsGateUpBias,
               Scope::kMoeLayer, {Dim::kExperts, Dim::kTwoMoeIntermediate}, Cut::kColumn,
               Presence::kStacked, GateUpOrder::kInterleaved),
    linear_rule("model.layers.{layer}.mlp.experts.down_proj", Role::kExpertsDown, Scope::kMoeLayer,
                {Dim::kExperts, Dim::kMoeIntermediate, Dim::kHidden}, Cut::kRow, Presence::kStacked,
                StackOrder::kInputMajor),
    plain_rule("model.layers.{layer}.mlp.experts.down_proj_bias", Role::kExpertsDownBias,
               Scope::kMoeLayer, {Dim::kExperts, Dim::kHidden}, Presence::kStacked),
    linear_rule("model.layers.{layer}.mlp.experts.{expert}.gate_proj.weight", Role::kExpertGate,
                Scope::kMoeLayer, {Dim::kMoeIntermediate, Dim::kHidden}, Cut::kColumn,
                Fuse::kGateUp, Presence::kPerExpert),
    plain_rule("model.layers.{layer}.mlp.experts.{expert}.gate_proj.bias", Role::kExpertGateBias,
               Scope::kMoeLayer, {Dim::kMoeIntermediate}, Cut::kColumn, Presence::kPerExpert),
    linear_rule("model.layers.{layer}.mlp.experts.{expert}.up_proj.weight", Role::kExpertUp,
                Scope::kMoeLayer, {Dim::kMoeIntermediate, Dim::kHidden}, Cut::kColumn,
                Fuse::kGateUp, Presence::kPerExpert),
    plain_rule("model.layers.{layer}.mlp.experts.{expert}.up_proj.bias", Role::kExpertUpBias,
               Scope::kMoeLayer, {Dim::kMoeIntermediate}, Cut::kColumn, Presence::kPerExpert),
    linear_rule("model.layers.{layer}.mlp.experts.{expert}.down_proj.weight", Role::kExpertDown,
                Scope::kMoeLayer, {Dim::kHidden, Dim::kMoeIntermediate}, Cut::kRow,
                Presence::kPerExpert),
    plain_rule("model.layers.{layer}.mlp.experts.{expert}.down_proj.bias", Role::kExpertDownBias,
               Scope::kMoeLayer, {Dim::kHidden}, Presence::kPerExpert),
};

constexpr auto kRules = concat_rules(kModelRules, kLayerNormRules, kAttentionRules, kMixtureRules);

}  // namespace

const Family kGptOss = {.name = "gpt_oss",
                        .summary = "gpt-oss: attention sinks, stacked experts with biases, MXFP4",
                        .model_types = kModelTypes,
                        .architecture = "GptOssForCausalLM",
                        .rules = kRules,
                        .reference_config = ""};

}  // namespace ingot::formats
