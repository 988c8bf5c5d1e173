#include "formats/family/decoder_rules.h"
#include "formats/family/family_table.h"

namespace ingot::formats {
namespace {

constexpr std::array<std::string_view, 2> kModelTypes = {"llama4", "llama4_text"};

constexpr std::array kAttentionRules = {
    linear_rule("model.layers.{layer}.self_attn.q_proj.weight", Role::kQProj, Scope::kLayer,
                {Dim::kGqaQ, Dim::kHidden}, Cut::kColumn, Fuse::kQkv),
    linear_rule("model.layers.{layer}.self_attn.k_proj.weight", Role::kKProj, Scope::kLayer,
                {Dim::kGqaKv, Dim::kHidden}, Cut::kColumn, Fuse::kQkv),
    linear_rule("model.layers.{layer}.self_attn.v_proj.weight", Role::kVProj, Scope::kLayer,
                {Dim::kGqaKv, Dim::kHidden}, Cut::kColumn, Fuse::kQkv),
    linear_rule("model.layers.{layer}.self_attn.o_proj.weight", Role::kOProj, Scope::kLayer,
                {Dim::kHidden, Dim::kGqaQ}, Cut::kRow),
};

constexpr std::array kDenseRules = {
    linear_rule("model.layers.{layer}.feed_forward.gate_proj.weight", Role::kDenseGate,
                Scope::kDenseLayer, {Dim::kIntermediate, Dim::kHidden}, Cut::kColumn,
                Fuse::kGateUp),
    linear_rule("model.layers.{layer}.feed_forward.up_proj.weight", Role::kDenseUp,
                Scope::kDenseLayer, {Dim::kIntermediate, Dim::kHidden}, Cut::kColumn,
                Fuse::kGateUp),
    linear_rule("model.layers.{layer}.feed_forward.down_proj.weight", Role::kDenseDown,
                Scope::kDenseLayer, {Dim::kHidden, Dim::kIntermediate}, Cut::kRow),
};

/// BF16 releases stack the experts, FP8 ones have them one by one.
constexpr std::array kMixtureRules = {
    plain_rule("model.layers.{layer}.feed_forward.router.weight", Role::kRouter, Scope::kMoeLayer,
               {Dim::kExperts, Dim::kHidden}),
    linear_rule("model.layers.{layer}.feed_forward.experts.gate_up_proj", Role::kExpertsGateUp,
                Scope::kMoeLayer, {Dim::kExperts, Dim::kHidden, Dim::kTwoMoeIntermediate},
                Cut::kColumn, Presence::kStacked, StackOrder::kInputMajor),
    linear_rule("model.layers.{layer}.feed_forward.experts.down_proj", Role::kExpertsDown,
                Scope::kMoeLayer, {Dim::kExperts, Dim::kMoeIntermediate, Dim::kHidden}, Cut::kRow,
                Presence::kStacked, StackOrder::kInputMajor),
    linear_rule("model.layers.{layer}.feed_forward.experts.{expert}.gate_proj.weight",
                Role::kExpertGate, Scope::kMoeLayer, {Dim::kMoeIntermediate, Dim::kHidden},
                Cut::kColumn, Fuse::kGateUp, Presence::kPerExpert),
    linear_rule("model.layers.{layer}.feed_forward.experts.{expert}.up_proj.weight",
                Role::kExpertUp, Scope::kMoeLayer, {Dim::kMoeIntermediate, Dim::kHidden},
                Cut::kColumn, Fuse::kGateUp, Presence::kPerExpert),
    linear_rule("model.layers.{layer}.feed_forward.experts.{expert}.down_proj.weight",
                Role::kExpertDown, Scope::kMoeLayer, {Dim::kHidden, Dim::kMoeIntermediate},
                Cut::kRow, Presence::kPerExpert),
    linear_rule("model.layers.{layer}.feed_forward.shared_expert.gate_proj.weight",
                Role::kSharedGate, Scope::kMoeLayer, {Dim::kMoeIntermediate, Dim::kHidden},
                Cut::kColumn, Fuse::kGateUp),
    linear_rule("model.layers.{layer}.feed_forward.shared_expert.up_proj.weight", Role::kSharedUp,
                Scope::kMoeLayer, {Dim::kMoeIntermediate, Dim::kHidden}, Cut::kColumn,
                Fuse::kGateUp),
    linear_rule("model.layers.{layer}.feed_forward.shared_expert.down_proj.weight",
                Role::kSharedDown, Scope::kMoeLayer, {Dim::kHidden, Dim::kMoeIntermediate},
                Cut::kRow),
};

constexpr auto kRules =
    concat_rules(kModelRules, kLayerNormRules, kAttentionRules, kDenseRules, kMixtureRules);

}  // namespace

const Family kLlama4 = {
    .name = "llama4",
    .summary = "Llama 4: grouped-query attention, input-major stacks of experts, images",
    .model_types = kModelTypes,
    .architecture = "Llama4ForConditionalGeneration",
    .rules = kRules,
    .reference_config = ""};

}  // namespace ingot::formats
