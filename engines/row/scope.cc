#include "engines/row/scope.h"

#include <array>

namespace ingot::engines {

using formats::ExpertForm;
using formats::Fuse;
using formats::GateUpOrder;
using formats::PartShape;
using formats::Role;
using formats::StorageRow;
using formats::TensorRule;

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
  switch (weight.rule->role) {
    case Role::kExpertsGateUp:
      return kGateUp;
    case Role::kExpertDown:
    case Role::kExpertsDown:
      return kDown;
    default:
      return kGate;
  }
}

/// A rank's share of moe_intermediate_size, by a matrix of an expert; 0 where it is none.
std::uint64_t expert_width(const EngineWeight& weight) {
  switch (matrix_of(weight)) {
    case ExpertMatrix::kNone:
      return 0;
    case ExpertMatrix::kGate:
      return weight.rows / weight.ranks;
    case ExpertMatrix::kGateUp:
      return weight.rows / 2 / weight.ranks;
    case ExpertMatrix::kDown:
      return weight.cols / weight.ranks;
  }
  return 0;
}

struct ScopeRow {
  EngineScope scope{};
  std::string_view name;
  bool (*holds)(const Dialect& dialect, const EngineWeight& weight);
};

using Weight = EngineWeight;

constexpr std::array kScopes = {
    ScopeRow{EngineScope::kAny, "any weight", [](const Dialect&, const Weight&) { return true; }},
    ScopeRow{EngineScope::kExperts, "routed experts",
             [](const Dialect&, const Weight& weight) { return is_expert(weight); }},
    ScopeRow{EngineScope::kLinears, "other layers",
             [](const Dialect&, const Weight& weight) { return !is_expert(weight); }},
    ScopeRow{EngineScope::kOrdered, "weights with an order of groups",
             [](const Dialect&, const Weight& weight) { return weight.has_group_order; }},
    ScopeRow{EngineScope::kAsymmetricExperts, "routed experts with zero points",
             [](const Dialect&, const Weight& weight) {
               return weight.has_zero_points && is_expert(weight);
             }},
    ScopeRow{EngineScope::kRowScaledExperts, "routed experts with one scale a row",
             [](const Dialect&, const Weight& weight) {
               return weight.has_row_scales && is_expert(weight);
             }},
    ScopeRow{EngineScope::kJoinedLatents, "q_a_proj, kv_a_proj_with_mqa",
             [](const Dialect&, const Weight& weight) { return is_joined_latent(weight.rule); }},
    ScopeRow{EngineScope::kForeignExperts, "routed experts but stacks as released",
             [](const Dialect& dialect, const Weight& weight) {
               return is_expert(weight) && !is_in_own_stack(dialect, weight);
             }},
    ScopeRow{EngineScope::kRotated, "q_proj, k_proj",
             [](const Dialect&, const Weight& weight) {
               const Role role = role_of(weight.rule);
               return role == Role::kQProj || role == Role::kKProj;
             }},
    ScopeRow{EngineScope::kExpertsButK3, "routed experts but of kimi_k3",
             [](const Dialect&, const Weight& weight) {
               return is_expert(weight) && weight.family != "kimi_k3";
             }},
    ScopeRow{EngineScope::kFreeScaledLinears, "other layers whose scales are no powers of two",
             [](const Dialect&, const Weight& weight) {
               return !is_expert(weight) && !weight.has_power_of_two_scales;
             }},
    ScopeRow{EngineScope::kInverseNames, "weights with weight_scale_inv, but of ministral3",
             [](const Dialect&, const Weight& weight) {
               return weight.has_inverse_name && weight.family != "ministral3";
             }},
    ScopeRow{EngineScope::kPlainNames, "weights with weight_scale",
             [](const Dialect&, const Weight& weight) { return !weight.has_inverse_name; }},
    ScopeRow{EngineScope::kPlainNameExperts, "routed experts with weight_scale",
             [](const Dialect&, const Weight& weight) {
               return !weight.has_inverse_name && is_expert(weight);
             }},
    // The next weight of its module would begin inside a block of scales.
    ScopeRow{EngineScope::kCutBlocks, "joined weights that end inside a block",
             [](const Dialect&, const Weight& weight) {
               return weight.rule != nullptr && weight.block_rows != 0 &&
                      rows_before_others(*weight.rule, weight.rows) % weight.block_rows != 0;
             }},
    ScopeRow{EngineScope::kWideGroups, "gate, up of experts no wider on a rank than a group",
             [](const Dialect&, const Weight& weight) {
               const std::uint64_t width = expert_width(weight);
               return width != 0 && matrix_of(weight) != ExpertMatrix::kDown &&
                      width <= weight.block_cols && weight.block_cols < weight.cols;
             }},
    ScopeRow{EngineScope::kUnevenExperts, "experts whose width on a rank is no multiple of 64",
             [](const Dialect&, const Weight& weight) { return expert_width(weight) % 64 != 0; }},
};
static_assert(formats::rows_match_enum(kScopes, &ScopeRow::scope, EngineScope::kUnevenExperts));

}  // namespace

bool is_expert(const EngineWeight& weight) {
  if (weight.rule == nullptr) return weight.name.find(".experts.") != std::string_view::npos;
  return is_routed_expert(weight.rule->role);
}

std::string_view engine_scope_name(EngineScope scope) {
  return kScopes[static_cast<std::size_t>(scope)].name;
}

bool is_in_scope(EngineScope scope, const Dialect& dialect, const EngineWeight& weight) {
  return kScopes[static_cast<std::size_t>(scope)].holds(dialect, weight);
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
