#pragma once

#include <span>
#include <string_view>

#include "convert/recipe/recipe.h"

namespace ingot::convert {

/// Kinds of tensors that the default recipes treat alike.
enum class RoleGroup : std::uint8_t {
  kExperts,     ///< routed experts, one by one or stacked
  kShared,      ///< shared experts
  kDenseMlp,    ///< MLP of layers without experts
  kAttention,   ///< q, k, v, q_a, q_b, kv_a and o projections
  kDenseModel,  ///< MLP and attention, but not linear attention, of models without experts
  kKvB,         ///< kv_b projection, which engines take apart for MLA
  kIndexerQ,    ///< wq_b of the sparse-attention indexer
  kIndexerK,    ///< wk of the indexer, which engines join with weights_proj
  kNever,       ///< embedding, head, norms, router and its bias, weights_proj, k_norm, eh_proj
};
std::string_view role_group_name(RoleGroup group);

/// The action of a default recipe on a group.
enum class Treatment : std::uint8_t {
  kQuantize,
  kOnRequest,  ///< quantized only with --quantize-attention
  kBf16,       ///< quantized tensors of the source become BF16
  kLeave,      ///< stays as it is where the target dialect can hold it, else becomes BF16
};
std::string_view treatment_name(Treatment treatment);

/// One line of a default recipe. The first line that fits target, dialect and group holds; lines of
/// kDenseModel hold before those of the groups that it has the tensors of.
struct DefaultRecipeLine {
  formats::SchemeId to{};
  std::string_view dialect;  ///< empty: any
  RoleGroup group{};
  Treatment treatment{};
  std::string_view reason;
};
std::span<const DefaultRecipeLine> default_recipe_lines();

/// The dialect of that name; throws kInvalidArgument, beginning with `what`, where there is none.
const formats::Dialect& require_dialect(std::string_view name, std::string_view what);

/// The dialect of the output: Choices::dialect, else for --to that of the family if it holds the
/// scheme, or the default of the scheme with the activations asked for, else the source's if it
/// holds every scheme that a rule names, else the default of the first that it does not. Throws
/// kInvalidArgument for a name that no dialect has.
const formats::Dialect& target_dialect(const Recipe& recipe, const formats::Checkpoint& source);

/// Appends the rules of last resort: the meaning of `recipe.mtp` and `recipe.to` for this model in
/// this dialect. Plain targets take in the source's quantized tensors; so does any target for the
/// generic family, which has no roles. The plain target `narrower` (formats::narrower_dtype) also
/// takes in those that were saved in more bits. `has_plain_only`: no tensor of the source is
/// quantized; then a plain target of the generic family takes in all that have no more bits.
void add_default_rules(Recipe& recipe, const formats::Family& family,
                       const formats::ModelConfig& config, const formats::Dialect& dialect,
                       std::optional<formats::SchemeId> narrower = std::nullopt,
                       bool has_plain_only = false);

}  // namespace ingot::convert
