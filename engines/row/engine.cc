#include "engines/row/engine.h"

#include <algorithm>
#include <array>

#include <fmt/format.h>

namespace ingot::engines {

using formats::ExpertForm;
using formats::Fuse;
using formats::GateUpOrder;
using formats::PartShape;
using formats::Role;
using formats::StorageRow;
using formats::TensorRule;

std::string_view evidence_text(Evidence evidence) {
  constexpr std::array<std::string_view, 8> kTexts = {
      "generated text on a GPU",   "generated text",     "loaded",
      "loaded, kernels replaced",  "read in its source", "not read",
      "not tried for this family", "not tried"};
  return kTexts[static_cast<std::size_t>(evidence)];
}

std::string engine_effect_text(const EngineLimit& limit) {
  switch (limit.effect) {
    case EngineEffect::kRefused:
      return limit.option.empty() ? "refused" : fmt::format("with {}", limit.option);
    case EngineEffect::kGarbage:
      return "garbage without an error";
    case EngineEffect::kGarbageWithout:
      return fmt::format("garbage without {}", limit.option);
    case EngineEffect::kRefusedOption:
      return fmt::format("refused with {}", limit.option);
    case EngineEffect::kCoarser:
      return "rounded";
    case EngineEffect::kRefusedOnCards:
      return "refused on some cards";
  }
  return {};
}

bool EngineRow::is_written_for(std::string_view family) const {
  return written_for.empty() || std::ranges::find(written_for, family) != written_for.end();
}

bool EngineRow::knows_name(const EngineWeight& weight) const {
  return weight.alias.empty() || std::ranges::any_of(names, [&](const EngineNames& row) {
           return row.family == weight.family && row.alias == weight.alias;
         });
}

const EngineLoad* EngineRow::find_load(const Dialect& dialect, SchemeId scheme,
                                       Activations activations) const {
  const auto row = std::ranges::find_if(loads, [&](const EngineLoad& load) {
    return load.scheme == scheme && (load.dialect.empty() || (load.dialect == dialect.name &&
                                                              load.activations == activations));
  });
  return row == loads.end() ? nullptr : &*row;
}

namespace {

struct ReadingRow {
  EngineReading reading{};
  std::string_view id, text;
};
constexpr std::array kReadings = {
    // modelopt.py, ModelOptQuantConfigBase.from_config
    ReadingRow{EngineReading::kFlatExcludes, "reader.modelopt.flat-excludes",
               "ModelOpt's block in config.json: exclude_modules counts where there is no ignore"},
    // transformers_utils/model_arch_config_convertor.py, _normalize_quantization_config
    ReadingRow{EngineReading::kProducerMixtures, "reader.modelopt.producer-mixtures",
               "ModelOpt's block with a producer: MIXED_PRECISION is read"},
};
static_assert(formats::rows_match_enum(kReadings, &ReadingRow::reading,
                                       EngineReading::kProducerMixtures));

}  // namespace

std::string_view reading_id(EngineReading reading) {
  return kReadings[static_cast<std::size_t>(reading)].id;
}
std::string_view reading_text(EngineReading reading) {
  return kReadings[static_cast<std::size_t>(reading)].text;
}

Evidence EngineRow::evidence_of(const EngineLoad& load) const {
  const bool is_read = std::ranges::find(read_again, row_id(load)) != read_again.end();
  return is_read ? std::max(load.evidence, Evidence::kRead) : load.evidence;
}

Evidence EngineRow::evidence_of(const EngineFamily& row) const {
  const bool is_read = std::ranges::any_of(read_again, [&](std::string_view id) {
    return id.starts_with("family.") && id.substr(7) == row.family;
  });
  return is_read ? std::max(row.evidence, Evidence::kRead) : row.evidence;
}

std::string_view EngineRow::ran_in(Evidence evidence) const {
  return evidence >= Evidence::kRead ? std::string_view() : tried.empty() ? version : tried;
}

std::string EngineRow::known_text(Evidence evidence) const {
  const std::string_view ran = ran_in(evidence);
  return ran.empty() || ran == version ? std::string(evidence_text(evidence))
                                       : fmt::format("{} in {}", evidence_text(evidence), ran);
}

bool EngineRow::has(EngineReading reading) const {
  return std::ranges::find(readings, reading) != readings.end();
}

std::string_view EngineRow::pin_of(std::string_view package) const {
  const auto pin = std::ranges::find(pins, package, &EnginePin::package);
  return pin == pins.end() ? std::string_view() : pin->version;
}

Evidence EngineRow::family_evidence(std::string_view family, SchemeId scheme) const {
  // Loaders cast plain weights: one dtype is as good as another.
  if (!formats::scheme_facts(scheme).quantized) scheme = SchemeId::kBf16;
  Evidence best = Evidence::kNotOfFamily;
  for (const EngineFamily& row : families) {
    if (row.family == family && row.schemes.contains(scheme))
      best = std::min(best, evidence_of(row));
  }
  return best;
}

namespace {

bool is_joined_latent(const TensorRule* rule) {
  return rule != nullptr && rule->fuse == Fuse::kQaKva;
}

bool is_in_own_stack(const Dialect& dialect, const EngineWeight& weight) {
  if (!weight.is_stacked || !formats::scheme_facts(weight.scheme).quantized)
    return weight.is_stacked;
  const StorageRow* storage = find_storage(dialect, weight.scheme);
  return storage != nullptr && storage->experts == ExpertForm::kStacked;
}

enum class ExpertMatrix : std::uint8_t { kNone, kGate, kGateUp, kDown };

ExpertMatrix matrix_of(const EngineWeight& weight) {
  using enum ExpertMatrix;
  if (!is_expert(weight)) return kNone;
  if (weight.rule == nullptr) {
    const auto has = [&](std::string_view part) {
      return weight.name.find(part) != std::string_view::npos;
    };
    return has("down_proj") || has(".w2.") ? kDown : has("gate_up") ? kGateUp : kGate;
  }
  const Role role = weight.rule->role;
  if (role == Role::kExpertDown || role == Role::kExpertsDown) return kDown;
  return role == Role::kExpertsGateUp ? kGateUp : kGate;
}

/// A rank's share of moe_intermediate_size, by a matrix of an expert; 0 where it is none.
std::uint64_t expert_width(const EngineWeight& weight) {
  using enum ExpertMatrix;
  const ExpertMatrix matrix = matrix_of(weight);
  if (matrix == kNone) return 0;
  return (matrix == kDown     ? weight.cols
          : matrix == kGateUp ? weight.rows / 2
                              : weight.rows) /
         weight.ranks;
}

using Weight = EngineWeight;

struct ScopeRow {
  EngineScope scope{};
  std::string_view id;  // in row_id(); empty: any weight
  std::string_view name;
  bool (*holds)(const Weight& w, const Dialect& dialect);
};

bool is_rotated(Role role) {
  return role == Role::kQProj || role == Role::kKProj;
}

/// True if the next weight of its module would begin inside a block of scales.
bool ends_in_block(const Weight& weight) {
  return weight.rule != nullptr && weight.block_rows != 0 &&
         rows_before_others(*weight.rule, weight.rows) % weight.block_rows != 0;
}

bool is_no_wider_than_group(const Weight& weight) {
  const std::uint64_t width = expert_width(weight);
  return width != 0 && matrix_of(weight) != ExpertMatrix::kDown && width <= weight.block_cols &&
         weight.block_cols < weight.cols;
}

bool has_few_bits(const Weight& weight) {
  return weight.packed_bits == 2 || weight.packed_bits == 3;
}

bool has_odd_groups(const Weight& weight) {
  const std::uint64_t size = weight.packed_group;
  return weight.packed_bits != 0 && size != 0 && size != 32 && size != 64 && size != 128;
}

/// True if it is a matrix of down_proj in groups, of which each rank has some.
bool has_groups_on_ranks(const Weight& weight) {
  return matrix_of(weight) == ExpertMatrix::kDown && weight.ranks > 1 && weight.packed_group != 0 &&
         weight.packed_group < weight.cols;
}

/// True if engines find no smaller group for experts that ranks cut: they halve it down to 32.
bool has_thin_groups(const Weight& weight) {
  std::uint64_t size = weight.packed_group;
  const std::uint64_t width = expert_width(weight);
  if (size == 0 || width == 0 || width % size == 0) return false;
  while (width % size != 0) size /= 2;
  return size < 32;
}

/// True if ranks cut its columns inside a group. An order of groups goes to every rank whole.
bool is_cut_in_group(const Weight& weight) {
  return !is_expert(weight) && !weight.has_group_order && weight.rule != nullptr &&
         weight.rule->cut == formats::Cut::kRow && weight.packed_group != 0 &&
         weight.packed_group < weight.cols &&
         (weight.cols % weight.packed_group != 0 ||
          weight.cols / weight.packed_group % weight.ranks != 0);
}

/// True if Marlin has a tile for a matrix of so many outputs and inputs: SGLang's
/// gptq_marlin.cuh:117, and vLLM's marlin_padded_nk(), which fills up all others.
constexpr bool has_tile(std::uint64_t rows, std::uint64_t cols) {
  return (rows % 64 == 0 && cols % 128 == 0) || (rows % 128 == 0 && cols % 64 == 0);
}

bool is_untiled(const Weight& weight) {
  if (is_expert(weight) || weight.module_rows == 0) return false;
  const bool is_cut = weight.rule->cut == formats::Cut::kRow;
  return !has_tile(weight.module_rows, weight.cols / (is_cut ? weight.ranks : 1));
}

/// True if Marlin for experts, whose tiles have 64 inputs and 128 outputs
/// (moe_wna16_marlin.cuh:140), has none for gate and up, or for down.
bool are_untiled_experts(const Weight& weight) {
  const std::uint64_t width = expert_width(weight);
  const std::uint64_t hidden = matrix_of(weight) == ExpertMatrix::kDown ? weight.rows : weight.cols;
  return width != 0 && (width % 64 != 0 || hidden % 128 != 0);
}

/// True if SGLang computes such experts in Triton where it is told to: compressed_tensors.py:653,
/// moe_wna16.py:185.
bool has_kernel_in_triton(const Weight& weight) {
  if (weight.has_group_order || weight.is_auto_round) return false;
  if (weight.packed_bits != 0) return true;
  return weight.scheme == formats::SchemeId::kInt4Group && !weight.has_zero_points &&
         !weight.has_row_scales && (weight.block_cols == 32 || weight.block_cols == 128);
}

using enum EngineScope;
constexpr std::array kScopes = {
    ScopeRow{kAny, "", "any weight", [](const Weight&, const Dialect&) { return true; }},
    ScopeRow{kExperts, "experts", "routed experts",
             [](const Weight& w, const Dialect&) { return is_expert(w); }},
    ScopeRow{kLinears, "linears", "other layers",
             [](const Weight& w, const Dialect&) { return !is_expert(w); }},
    ScopeRow{kOrdered, "ordered", "weights with an order of groups",
             [](const Weight& w, const Dialect&) { return w.has_group_order; }},
    ScopeRow{kAsymmetricExperts, "asymmetric-experts", "routed experts with zero points",
             [](const Weight& w, const Dialect&) { return w.has_zero_points && is_expert(w); }},
    ScopeRow{kRowScaledExperts, "row-scaled-experts", "routed experts with one scale a row",
             [](const Weight& w, const Dialect&) { return w.has_row_scales && is_expert(w); }},
    ScopeRow{kJoinedLatents, "joined-latents", "q_a_proj, kv_a_proj_with_mqa",
             [](const Weight& w, const Dialect&) { return is_joined_latent(w.rule); }},
    ScopeRow{
        kForeignExperts, "foreign-experts", "routed experts but stacks as released",
        [](const Weight& w, const Dialect& d) { return is_expert(w) && !is_in_own_stack(d, w); }},
    ScopeRow{kRotated, "rotated", "q_proj, k_proj",
             [](const Weight& w, const Dialect&) { return is_rotated(role_of(w.rule)); }},
    ScopeRow{kExpertsButK3, "experts-but-k3", "routed experts but of kimi_k3",
             [](const Weight& w, const Dialect&) { return is_expert(w) && w.family != "kimi_k3"; }},
    ScopeRow{kFreeScaledLinears, "free-scaled-linears",
             "other layers whose scales are no powers of two",
             [](const Weight& w, const Dialect&) {
               return !is_expert(w) && !w.has_power_of_two_scales;
             }},
    ScopeRow{kInverseNames, "inverse-names", "weights with weight_scale_inv, but of ministral3",
             [](const Weight& w, const Dialect&) {
               return w.has_inverse_name && w.family != "ministral3";
             }},
    ScopeRow{kPlainNames, "plain-names", "weights with weight_scale",
             [](const Weight& w, const Dialect&) { return !w.has_inverse_name; }},
    ScopeRow{kPlainNameExperts, "plain-name-experts", "routed experts with weight_scale",
             [](const Weight& w, const Dialect&) { return !w.has_inverse_name && is_expert(w); }},
    ScopeRow{kSharedExperts, "shared-experts", "shared experts",
             [](const Weight& w, const Dialect&) {
               return formats::kSharedExpertRoles.has(role_of(w.rule));
             }},
    ScopeRow{kDenseLayers, "dense-layers", "MLPs of layers without experts",
             [](const Weight& w, const Dialect&) {
               const Role role = role_of(w.rule);
               return role == Role::kDenseGate || role == Role::kDenseUp ||
                      role == Role::kDenseDown;
             }},
    ScopeRow{kFusedOtherwise, "fused-otherwise",
             "shared experts that are not stored as routed ones are",
             [](const Weight& w, const Dialect&) {
               return w.fused_otherwise == FusedOtherwise::kInModel;
             }},
    ScopeRow{kFusedInDraft, "fused-in-draft",
             "shared experts of MTP layers that are not stored as routed ones are",
             [](const Weight& w, const Dialect&) {
               return w.fused_otherwise == FusedOtherwise::kInDraft;
             }},
    ScopeRow{kTurnedStacks, "turned-stacks",
             "stacks of experts in another order than releases have them",
             [](const Weight& w, const Dialect&) { return w.is_turned_stack; }},
    ScopeRow{kOtherNames, "other-names", "weights under names that its loader does not know",
             [](const Weight& w, const Dialect&) { return !w.alias.empty(); }},
    ScopeRow{kIdentityExperts, "identity-experts",
             "routed experts, next to some that releases have no tensors of",
             [](const Weight& w, const Dialect&) { return w.has_identity_experts; }},
    ScopeRow{kStacks, "stacks", "stacks of experts",
             [](const Weight& w, const Dialect&) { return w.is_stacked && is_expert(w); }},
    ScopeRow{kEmbeddings, "embeddings", "embeddings",
             [](const Weight& w, const Dialect&) { return role_of(w.rule) == Role::kEmbedding; }},
    ScopeRow{kTiedEmbeddings, "tied-embeddings", "embeddings that are tied",
             [](const Weight& w, const Dialect&) {
               return w.is_tied && role_of(w.rule) == Role::kEmbedding;
             }},
    ScopeRow{kAsymmetric, "asymmetric", "weights with zero points",
             [](const Weight& w, const Dialect&) { return w.has_zero_points; }},
    ScopeRow{kFewBits, "few-bits", "weights of 2 or 3 bits, but of AutoRound",
             [](const Weight& w, const Dialect&) { return has_few_bits(w) && !w.is_auto_round; }},
    ScopeRow{kAutoRoundFewBits, "auto-round-few-bits", "weights of 2 or 3 bits of AutoRound",
             [](const Weight& w, const Dialect&) { return has_few_bits(w) && w.is_auto_round; }},
    ScopeRow{kOddGroups, "odd-groups",
             "other layers in groups of other than 32, 64, 128 columns or rows",
             [](const Weight& w, const Dialect&) { return has_odd_groups(w) && !is_expert(w); }},
    ScopeRow{kOddGroupExperts, "odd-group-experts",
             "routed experts in groups of other than 32, 64, 128 columns or rows",
             [](const Weight& w, const Dialect&) { return has_odd_groups(w) && is_expert(w); }},
    ScopeRow{kUnevenGroups, "uneven-groups", "other layers in groups of no multiple of 32 columns",
             [](const Weight& w, const Dialect&) {
               return has_odd_groups(w) && !is_expert(w) && w.packed_group % 32 != 0;
             }},
    ScopeRow{kNoZeroPoints, "no-zero-points",
             "other layers without zero points, but of models in F16",
             [](const Weight& w, const Dialect&) {
               return w.says_no_zero_points && !is_expert(w) && !w.is_in_half;
             }},
    ScopeRow{kNoZeroPointsOfAwq, "no-zero-points-of-awq",
             "other layers without zero points, but of AutoRound and of models in F16",
             [](const Weight& w, const Dialect&) {
               return w.says_no_zero_points && !is_expert(w) && !w.is_in_half && !w.is_auto_round;
             }},
    ScopeRow{kNoZeroPointExperts, "no-zero-point-experts",
             "routed experts without zero points, but of AutoRound",
             [](const Weight& w, const Dialect&) {
               return w.says_no_zero_points && is_expert(w) && !w.is_auto_round;
             }},
    ScopeRow{kNotHalfExperts, "not-half-experts", "routed experts, but of models in F16",
             [](const Weight& w, const Dialect&) { return is_expert(w) && !w.is_in_half; }},
    ScopeRow{kCutBlocks, "cut-blocks", "joined weights that end inside a block",
             [](const Weight& w, const Dialect&) { return ends_in_block(w); }},
    ScopeRow{kWideGroups, "wide-groups", "gate, up of experts no wider on a rank than a group",
             [](const Weight& w, const Dialect&) { return is_no_wider_than_group(w); }},
    ScopeRow{kUnevenExperts, "uneven-experts", "experts whose width on a rank is no multiple of 64",
             [](const Weight& w, const Dialect&) { return expert_width(w) % 64 != 0; }},
    ScopeRow{kCutGroups, "cut-groups", "other layers whose groups of columns ranks would cut",
             [](const Weight& w, const Dialect&) { return is_cut_in_group(w); }},
    ScopeRow{kRankGroups, "rank-groups",
             "down_proj of experts in groups, on several ranks, but with an order of groups or of "
             "AutoRound",
             [](const Weight& w, const Dialect&) {
               return has_groups_on_ranks(w) && !w.has_group_order && !w.is_auto_round;
             }},
    ScopeRow{kOwnRankGroups, "own-rank-groups",
             "down_proj of experts in groups, on several ranks, with an order of groups or of "
             "AutoRound",
             [](const Weight& w, const Dialect&) {
               return has_groups_on_ranks(w) && (w.has_group_order || w.is_auto_round);
             }},
    ScopeRow{kThinExperts, "thin-experts",
             "experts whose width on a rank has no whole groups of 32 columns or more",
             [](const Weight& w, const Dialect&) { return has_thin_groups(w); }},
    ScopeRow{kUntiled, "untiled",
             "other layers of no multiple of 64 outputs and 128 inputs, or 128 and 64, on a rank",
             [](const Weight& w, const Dialect&) { return is_untiled(w); }},
    ScopeRow{kUntiledExperts, "untiled-experts",
             "experts whose width on a rank is no multiple of 64, or hidden size of 128, but in "
             "plain groups",
             [](const Weight& w, const Dialect&) {
               return are_untiled_experts(w) && !has_kernel_in_triton(w);
             }},
    ScopeRow{kUntiledOfMarlin, "untiled-of-marlin",
             "experts whose width on a rank is no multiple of 64, or hidden size of 128, in plain "
             "groups",
             [](const Weight& w, const Dialect&) {
               return are_untiled_experts(w) && has_kernel_in_triton(w);
             }},
};
static_assert(formats::rows_match_enum(kScopes, &ScopeRow::scope, kUntiledOfMarlin));

std::string form_id(std::string_view kind, std::string_view dialect, std::optional<SchemeId> scheme,
                    std::optional<Activations> activations) {
  std::string id = fmt::format("{}.{}.{}", kind,
                               dialect.empty()                   ? "any"
                               : dialect == "compressed-tensors" ? "ct"
                                                                 : dialect,
                               scheme ? formats::scheme_facts(*scheme).name : "any");
  if (activations) id += fmt::format(".{}", activations_name(*activations));
  return id;
}

}  // namespace

bool is_expert(const EngineWeight& weight) {
  if (weight.rule == nullptr) return weight.name.find(".experts.") != std::string_view::npos;
  return is_routed_expert(weight.rule->role);
}

std::string_view engine_scope_name(EngineScope scope) {
  return kScopes[static_cast<std::size_t>(scope)].name;
}

std::string row_id(const EngineLoad& load) {
  return form_id("load", load.dialect, load.scheme, load.activations);
}

std::string row_id(const EngineLimit& limit) {
  const std::string_view scope = kScopes[static_cast<std::size_t>(limit.scope)].id;
  std::string id = form_id(limit.family.empty() ? "limit" : fmt::format("limit.{}", limit.family),
                           limit.dialect, limit.scheme, limit.activations);
  return scope.empty() ? id : fmt::format("{}.{}", id, scope);
}

bool is_in_scope(EngineScope scope, const Dialect& dialect, const EngineWeight& weight) {
  return kScopes[static_cast<std::size_t>(scope)].holds(weight, dialect);
}

std::uint64_t rows_before_others(const TensorRule& rule, std::uint64_t rows) {
  switch (rule.role) {
    case Role::kExpertsGateUp:
      return rule.gate_up == GateUpOrder::kHalves ? rows / 2 : rows;
    case Role::kQProj:  // latent attention has one that nothing is joined with
      return rule.fuse == Fuse::kQkv ? rows : 0;
    case Role::kQaProj:
    case Role::kKProj:
    case Role::kDenseGate:
    case Role::kSharedGate:
    case Role::kExpertGate:
    case Role::kExpertsGate:
      return rows;
    default:
      return 0;
  }
}

bool is_joined_number(PartShape shape, const TensorRule* rule) {
  return shape == PartShape::kOne && is_joined_latent(rule);
}

}  // namespace ingot::engines
