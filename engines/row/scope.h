#pragma once

#include <cstdint>
#include <string_view>

#include "formats/dialect/dialect.h"

// The weights that an engine's limit is about, by the facts that engines see: role, shape,
// the numbers that share a scale, and the ranks that it is cut for.

namespace ingot::engines {

using formats::Dialect;

/// The weights that an engine's limit is about.
enum class EngineScope : std::uint8_t {
  kAny,
  kExperts,  ///< routed experts, which engines load as one module
  kLinears,  ///< all other linear layers
  // Weights that have a further property, whatever their widths.
  kOrdered,            ///< weights whose columns have an order of groups
  kAsymmetricExperts,  ///< routed experts that have zero points
  kRowScaledExperts,   ///< routed experts that have one scale a row, and no groups
  kJoinedLatents,      ///< q_a_proj and kv_a_proj_with_mqa, which engines load as one module
  kForeignExperts,     ///< routed experts, but for stacks that are plain or in the family's dialect
  kRotated,            ///< q_proj and k_proj, whose rows a loader may turn for its rotary embedding
  kExpertsButK3,       ///< routed experts, but of family kimi_k3, whose loader renames them
  kFreeScaledLinears,  ///< all other linear layers, where scales need not be powers of two
  kInverseNames,       ///< weights with a weight_scale_inv, but not of family ministral3
  kPlainNames,         ///< weights whose scale is called weight_scale
  kPlainNameExperts,   ///< routed experts whose scale is called weight_scale
  kSharedExperts,      ///< shared experts
  kFusedOtherwise,     ///< shared experts that are loaded as routed ones, and stored otherwise
  kFusedInDraft,       ///< shared experts of MTP layers, where the draft model does so
  kTurnedStacks,       ///< plain stacks of experts in another order than releases have them
  kEmbeddings,         ///< embedding of the model
  kTiedEmbeddings,     ///< embedding of the model, where it is the head too
  kAsymmetric,         ///< weights with zero points
  kFewBits,            ///< GPTQ's codes of 2 or 3 bits, but those of AutoRound
  kAutoRoundFewBits,   ///< AutoRound's codes of 2 or 3 bits
  kOddGroups,          ///< groups of other than 32, 64 or 128 columns, or rows, but in experts
  kOddGroupExperts,    ///< routed experts with such groups
  kUnevenGroups,       ///< AWQ's groups of no multiple of 32 columns, but in experts
  kNoZeroPoints,       ///< AWQ of a config without zero points, but experts; not of models in F16
  kNoZeroPointsOfAwq,  ///< such weights, but those of AutoRound
  kNoZeroPointExperts,  ///< routed experts in AWQ without zero points, but of AutoRound
  kNotHalfExperts,      ///< routed experts, but of models in F16
  // Weights of some widths, on so many ranks.
  kCutBlocks,      ///< weights in front of others in a module, with rows that end inside a block
  kWideGroups,     ///< gate and up of experts: width on a rank <= group of columns < columns
  kUnevenExperts,  ///< routed experts whose width on a rank is no multiple of 64
  kCutGroups,      ///< linears of which a group of columns would be on two ranks
  kRankGroups,  ///< experts' down_proj in groups on several ranks: neither ordered nor AutoRound's
  kOwnRankGroups,  ///< such down_proj that has an order of groups, or is of AutoRound
  kThinExperts,    ///< experts whose width on a rank has no group of 32, 64 or more columns
};
std::string_view engine_scope_name(EngineScope scope);
/// True if the scope is about a further property of some weights of a scheme.
constexpr bool is_special(EngineScope scope) {
  return scope >= EngineScope::kOrdered;
}
/// True if the scope is about widths, which differ among models.
constexpr bool is_of_widths(EngineScope scope) {
  return scope >= EngineScope::kCutBlocks;
}

/// True if the scope is about some models only: other programs read such weights.
constexpr bool is_of_models(EngineScope scope) {
  return is_of_widths(scope) || scope == EngineScope::kFusedOtherwise ||
         scope == EngineScope::kFusedInDraft || scope == EngineScope::kTurnedStacks;
}

/// Answer whether a shared expert is one that SGLang loads as a routed one (fused_layers()), and
/// stored in another form than those.
enum class FusedOtherwise : std::uint8_t { kNo, kInModel, kInDraft };

/// A weight of a checkpoint, as far as engines tell it from others.
struct EngineWeight {
  std::string_view name;
  const formats::TensorRule* rule =
      nullptr;  ///< null outside the grammar: the name tells experts then
  formats::SchemeId scheme{};
  formats::Activations activations{};
  bool has_group_order = false, has_zero_points = false;
  std::string_view family = {};  ///< Family::name
  bool is_stacked = false;       ///< one tensor has a matrix of each expert
  bool is_turned_stack = false;  ///< plain stack in another order than releases have it
  std::uint64_t rows = 0;        ///< outputs of a matrix
  std::uint64_t cols = 0;        ///< inputs of a matrix
  std::uint64_t block_rows = 0;  ///< rows that share a scale, where there are blocks; else 0
  std::uint64_t block_cols = 0;  ///< columns that share a scale, where there are blocks; else 0
  bool has_row_scales = false;   ///< the config says one scale a row where others have groups
  bool has_power_of_two_scales = false;
  bool has_inverse_name = false;  ///< scale is called weight_scale_inv
  /// Bits of a code as GPTQ, AWQ or AutoRound packs it, and the columns of a group as its config
  /// has them, 0 for rows; 0 bits: packed by none of these.
  std::uint64_t packed_bits = 0, packed_group = 0;
  bool is_auto_round = false;
  bool says_no_zero_points = false;  ///< AWQ whose config says that codes have none
  bool is_in_half = false;           ///< the model computes in F16, by its config
  FusedOtherwise fused_otherwise = FusedOtherwise::kNo;
  bool is_tied = false;     ///< embedding is the head too
  std::uint64_t ranks = 1;  ///< ranks of tensor parallelism, which cut it; not 0
};
/// True if the weight is one of the routed experts, or a stack of them.
bool is_expert(const EngineWeight& weight);
bool is_in_scope(EngineScope scope, const Dialect& dialect, const EngineWeight& weight);

/// Number of rows of such a weight in front of another's in the module that engines make of
/// both; 0 where it is the last of its module, or the only one in it.
std::uint64_t rows_before_others(const formats::TensorRule& rule, std::uint64_t rows);

/// True if a part of one number has no dimensions where its dialect says [1]: SGLang joins those of
/// q_a_proj and kv_a_proj, and asserts on two of shape [1]; vLLM takes either.
bool is_joined_number(formats::PartShape shape, const formats::TensorRule* rule);

}  // namespace ingot::engines
