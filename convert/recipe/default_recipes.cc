#include "convert/recipe/default_recipes.h"

#include <algorithm>
#include <array>
#include <initializer_list>
#include <set>
#include <vector>

#include <fmt/format.h>

#include "formats/checkpoint/stored_facts.h"
#include "formats/dialect/dialect.h"
#include "formats/dialect/dialect_words.h"
#include "formats/family/roles.h"
#include "formats/text/spelling.h"

namespace ingot::convert {

using formats::Role;
using formats::SchemeId;

namespace {

using enum RoleGroup;
using enum Treatment;

struct GroupFacts {
  RoleGroup group;
  std::string_view name;
  formats::RoleSet roles;
};
constexpr formats::RoleSet kKvBRoles = {Role::kKvbProj};
constexpr formats::RoleSet kAttentionRoles = formats::kAttentionRoles.without(kKvBRoles);
constexpr formats::RoleSet kDenseModelRoles =
    formats::kDenseMlpRoles |
    kAttentionRoles.without({Role::kLinearAttentionIn, Role::kLinearAttentionOut});
// All other roles are kNever.
constexpr std::array kGroups = {
    GroupFacts{kExperts, "experts", formats::kExpertRoles},
    GroupFacts{kShared, "shared-experts", formats::kSharedExpertRoles},
    GroupFacts{kDenseMlp, "dense-mlp", formats::kDenseMlpRoles},
    GroupFacts{kAttention, "attention", kAttentionRoles},
    GroupFacts{kDenseModel, "dense-models", kDenseModelRoles},
    GroupFacts{kKvB, "kv-b", kKvBRoles},
    GroupFacts{kIndexerQ, "indexer-q", {Role::kIndexerQ}},
    GroupFacts{kIndexerK, "indexer-k", {Role::kIndexerK}},
    GroupFacts{kNever, "never", {}},
};
static_assert(formats::rows_match_enum(kGroups, &GroupFacts::group, kNever));
constexpr std::array<std::string_view, 4> kTreatmentNames = {"quantize", "on request", "bf16",
                                                             "leave"};

constexpr std::string_view kAsReleased = "as DeepSeek releases it";
constexpr std::string_view kLinear = "a linear layer that every loader of the scheme quantizes";
constexpr std::string_view kMlp = "nearly all parameters are here, and 4 bits hurt least";
constexpr std::string_view kInt4Experts = "nearly all parameters; released so by Kimi-K2-Thinking";
constexpr std::string_view kEveryToken = "few parameters that see every token; released as BF16";
constexpr std::string_view kJoined = "engines join it with weights_proj, which is BF16";
constexpr std::string_view kOnlyLinears = "a dense model has no other linear layers";
constexpr std::string_view kNarrow = "narrow and sensitive; published 4-bit models leave it";
constexpr std::string_view kAbsorbed = "engines decode it for MLA; no published recipe has it so";
constexpr std::string_view kNativeExperts = "as DeepSeek-V4 is released, by DeepSeek and by NVIDIA";
constexpr std::string_view kOfModelslim = "the recipes for Ascend leave it floating-point";
constexpr std::string_view kIndexer = "no published recipe quantizes the indexer this way";

// In addition to these lines every recipe leaves kNever.
std::vector<DefaultRecipeLine> make_lines() {
  std::vector<DefaultRecipeLine> lines;
  using Groups = std::initializer_list<RoleGroup>;
  const auto add = [&](SchemeId to, Groups groups, Treatment treatment, std::string_view reason,
                       std::string_view dialect = {}) {
    for (const RoleGroup group : groups) lines.push_back({to, dialect, group, treatment, reason});
  };
  const Groups projections = {kExperts, kShared, kDenseMlp, kAttention};
  add(SchemeId::kFp8Block, projections, kQuantize, kAsReleased);
  add(SchemeId::kFp8Block, {kKvB, kIndexerQ, kIndexerK}, kQuantize, kAsReleased);

  for (const SchemeId to : {SchemeId::kFp8Channel, SchemeId::kFp8Tensor}) {
    add(to, projections, kQuantize, kLinear);
    add(to, {kKvB, kIndexerQ}, kQuantize, kLinear);
    add(to, {kIndexerK}, kBf16, kJoined);
  }

  add(SchemeId::kInt8Channel, projections, kQuantize, kLinear);
  for (const RoleGroup group : {kKvB, kIndexerQ}) {
    add(SchemeId::kInt8Channel, {group}, kBf16, kOfModelslim, "modelslim");
    add(SchemeId::kInt8Channel, {group}, kQuantize, kLinear);
  }
  add(SchemeId::kInt8Channel, {kIndexerK}, kBf16, kJoined);

  add(SchemeId::kInt8Block, projections, kQuantize, kLinear);
  add(SchemeId::kInt8Block, {kKvB}, kQuantize, kLinear);
  add(SchemeId::kInt8Block, {kIndexerQ}, kBf16, kIndexer);
  add(SchemeId::kInt8Block, {kIndexerK}, kBf16, kJoined);

  // Families under DeepSeek's native names: the dialect has these schemes for no others.
  for (const SchemeId to : {SchemeId::kMxfp4, SchemeId::kNvfp4}) {
    add(to, {kExperts}, kQuantize, kNativeExperts, "deepseek");
    add(to, {kShared, kDenseMlp, kAttention, kKvB, kIndexerQ, kIndexerK}, kLeave, kNativeExperts,
        "deepseek");
  }

  // Schemes with a scale per group of columns.
  for (const formats::SchemeFacts& facts : formats::schemes()) {
    if (facts.group_rows != 1 || facts.group_cols == 0 || facts.chooses_cols) continue;
    const SchemeId to = facts.id;
    if (facts.code_bits == 8) {
      add(to, projections, kQuantize, kLinear);
    } else {
      add(to, {kDenseModel}, kQuantize, kOnlyLinears);
      add(to, {kExperts, kShared, kDenseMlp}, kQuantize, kMlp);
      add(to, {kAttention}, kOnRequest, kNarrow);
    }
    add(to, {kKvB}, kLeave, kAbsorbed);
    add(to, {kIndexerQ}, kLeave, kIndexer);
    add(to, {kIndexerK}, kLeave, kJoined);
  }

  add(SchemeId::kInt4Group, {kDenseModel}, kQuantize, kOnlyLinears);
  add(SchemeId::kInt4Group, {kExperts}, kQuantize, kInt4Experts);
  add(SchemeId::kInt4Group, {kAttention}, kOnRequest, kNarrow);
  add(SchemeId::kInt4Group, {kShared, kDenseMlp}, kLeave, kEveryToken);
  add(SchemeId::kInt4Group, {kKvB}, kLeave, kAbsorbed);
  add(SchemeId::kInt4Group, {kIndexerQ}, kLeave, kIndexer);
  add(SchemeId::kInt4Group, {kIndexerK}, kLeave, kJoined);
  return lines;
}

const DefaultRecipeLine* find_line(SchemeId to, std::string_view dialect, RoleGroup group) {
  for (const DefaultRecipeLine& line : default_recipe_lines()) {
    if (line.to == to && line.group == group && (line.dialect.empty() || line.dialect == dialect))
      return &line;
  }
  return nullptr;
}

RoleGroup role_group_of(Role role) {
  const auto* const row =
      std::find_if(kGroups.begin(), kGroups.end(),
                   [&](const GroupFacts& facts) { return facts.roles.has(role); });
  return row == kGroups.end() ? kNever : row->group;
}

// Finds the line of a default recipe for a model's tensors of a role; null: there is none.
const DefaultRecipeLine* find_line(SchemeId to, std::string_view dialect, Role role,
                                   const formats::ModelConfig& config) {
  const bool is_dense_model = config.n_routed_experts == 0 && kDenseModelRoles.has(role);
  const DefaultRecipeLine* line = is_dense_model ? find_line(to, dialect, kDenseModel) : nullptr;
  return line != nullptr ? line : find_line(to, dialect, role_group_of(role));
}

// The action on MTP layers when the user chooses none.
MtpPolicy default_mtp_policy(SchemeId to, bool is_native) {
  if (formats::scheme_facts(to).code_bits != 4) return MtpPolicy::kConvert;
  return is_native ? MtpPolicy::kKeep : MtpPolicy::kBf16;
}

Rule default_rule(std::string_view selector, std::string_view scheme) {
  return make_rule(selector, scheme, RuleOrigin::kDefault);
}

void add_mtp_rules(Recipe& recipe, const formats::ModelConfig& config) {
  if (recipe.mtp != MtpPolicy::kBf16 && recipe.mtp != MtpPolicy::kKeep) return;
  if (config.num_nextn_predict_layers == 0) return;
  const auto first = static_cast<std::uint32_t>(config.num_hidden_layers);
  if (recipe.mtp == MtpPolicy::kBf16) {
    Rule cast = default_rule("*", "bf16");
    cast.quantized_only = true;
    cast.first_layer = first;
    recipe.rules.push_back(std::move(cast));
  }
  Rule keep = default_rule("*", "keep");
  keep.first_layer = first;
  recipe.rules.push_back(std::move(keep));
}

}  // namespace

std::string_view role_group_name(RoleGroup group) {
  return kGroups[static_cast<std::size_t>(group)].name;
}

std::string_view treatment_name(Treatment treatment) {
  return kTreatmentNames[static_cast<std::size_t>(treatment)];
}

std::span<const DefaultRecipeLine> default_recipe_lines() {
  static const std::vector<DefaultRecipeLine> kLines = make_lines();
  return kLines;
}

const formats::Dialect& require_dialect(std::string_view name, std::string_view what) {
  const formats::Dialect* dialect = formats::find_dialect(name);
  if (dialect != nullptr) return *dialect;
  refuse_word(what, name, formats::dialects(), &formats::Dialect::name);
}

const formats::Dialect& target_dialect(const Recipe& recipe, const formats::Checkpoint& source) {
  if (!recipe.choices.dialect.empty()) return require_dialect(recipe.choices.dialect, "--dialect");
  const formats::Dialect& of_source = source.dialect();
  const Choices& choices = recipe.choices;
  const auto default_of = [&](SchemeId scheme) -> const formats::Dialect& {
    return formats::default_dialect(scheme, recipe.choices.activations);
  };
  if (recipe.to && formats::scheme_facts(*recipe.to).quantized) {
    const std::string_view own = source.family().dialect;
    if (own.empty()) return default_of(*recipe.to);
    const formats::Dialect& of_family = require_dialect(own, "the family's dialect");
    const formats::StorageRow* row =
        formats::find_storage(of_family, source.family(), *recipe.to, recipe.choices.activations);
    // Static activations need the user's choice.
    const bool has_inputs =
        choices.activations || choices.activation_scales != nullptr || choices.input_scale;
    const bool is_asked_for =
        row != nullptr && (row->activations != formats::Activations::kStatic || has_inputs);
    const bool fits = is_asked_for && (row->experts != formats::ExpertForm::kStacked ||
                                       recipe.choices.experts != ExpertChoice::kSeparate);
    return fits ? of_family : default_of(*recipe.to);
  }
  for (const Rule& rule : recipe.rules) {
    if (!rule.scheme || !formats::scheme_facts(*rule.scheme).quantized) continue;
    // A source that has no other experts than the rest goes on having one scheme.
    const bool is_held =
        formats::find_storage(of_source, source.family(), *rule.scheme) != nullptr &&
        (!formats::is_of_experts(of_source, source.family(), *rule.scheme) ||
         formats::says_mxfp4_experts(source.config()));
    if (of_source.is_read_only || !is_held) return default_of(*rule.scheme);
  }
  // An output without quantized weights needs a dialect that declares its cache.
  const bool is_plain_output =
      recipe.to ? !is_quantized(*recipe.to) : formats::has_plain_only(source);
  const bool declares_cache = choices.kv_scales != nullptr && is_plain_output;
  return of_source.is_read_only || declares_cache ? default_of(SchemeId::kInt4Group) : of_source;
}

void add_default_rules(Recipe& recipe, const formats::Family& family,
                       const formats::ModelConfig& config, const formats::Dialect& dialect,
                       std::optional<SchemeId> narrower, bool has_plain_only) {
  if (!recipe.mtp && recipe.to)
    recipe.mtp = default_mtp_policy(*recipe.to, formats::is_native(dialect, family));
  add_mtp_rules(recipe, config);
  if (!recipe.to) return;
  const std::string_view word = formats::scheme_facts(*recipe.to).name;
  const bool is_cast = !formats::scheme_facts(*recipe.to).quantized;
  if (is_cast || family.rules.empty()) {
    // Tensors that the model's makers left plain stay so, whatever their dtype. Where none is
    // quantized, and no family says which are weights, all are meant.
    Rule rule = default_rule("*", word);
    rule.quantized_only = !(is_cast && has_plain_only && family.rules.empty());
    rule.narrows_saved = narrower == recipe.to;
    recipe.rules.push_back(std::move(rule));
    return;
  }
  std::set<Role> seen;
  for (const formats::TensorRule& row : family.rules) {
    if (!row.fp8_by_default || !seen.insert(row.role).second) continue;
    // A gate that engines join with queries, keys and values is quantized as these are.
    const bool is_joined_gate = row.role == Role::kAttentionGate && row.fuse == formats::Fuse::kQkv;
    const DefaultRecipeLine* line =
        find_line(*recipe.to, dialect.name, is_joined_gate ? Role::kQProj : row.role, config);
    if (line == nullptr || line->treatment == kLeave) continue;
    const std::string selector = fmt::format("role:{}", formats::role_name(row.role));
    if (line->treatment == kBf16) {
      Rule rule = default_rule(selector, "bf16");
      rule.quantized_only = true;
      recipe.rules.push_back(std::move(rule));
    } else if (line->treatment == kQuantize || recipe.choices.quantize_attention) {
      recipe.rules.push_back(default_rule(selector, word));
    }
  }
}

}  // namespace ingot::convert
