#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "formats/base/checked.h"
#include "formats/base/error.h"
#include "formats/family/family.h"
#include "formats/family/rule_scope.h"

namespace ingot::formats {
namespace {

struct DimFacts {
  Dim dim;
  std::string_view keys;  ///< what it is computed from, for messages
};

constexpr std::array kDims = {
    DimFacts{Dim::kNone, ""},
    DimFacts{Dim::kOne, ""},
    DimFacts{Dim::kVocab, "vocab_size"},
    DimFacts{Dim::kHidden, "hidden_size"},
    DimFacts{Dim::kTwoHidden, "hidden_size"},
    DimFacts{Dim::kIntermediate, "intermediate_size"},
    DimFacts{Dim::kMoeIntermediate, "moe_intermediate_size"},
    DimFacts{Dim::kTwoMoeIntermediate, "moe_intermediate_size"},
    DimFacts{Dim::kSharedIntermediate, "moe_intermediate_size or shared_expert_intermediate_size"},
    DimFacts{Dim::kExperts, "n_routed_experts or num_experts"},
    DimFacts{Dim::kQLora, "q_lora_rank"},
    DimFacts{Dim::kKvLora, "kv_lora_rank"},
    DimFacts{Dim::kKvA, "kv_lora_rank and qk_rope_head_dim"},
    DimFacts{Dim::kMlaQ, "num_attention_heads and qk_nope_head_dim"},
    DimFacts{Dim::kMlaKvB, "num_attention_heads and qk_nope_head_dim"},
    DimFacts{Dim::kMlaV, "num_attention_heads and v_head_dim"},
    DimFacts{Dim::kGqaQ, "num_attention_heads and head_dim"},
    DimFacts{Dim::kGatedGqaQ, "num_attention_heads and head_dim"},
    DimFacts{Dim::kGqaKv, "num_key_value_heads and head_dim"},
    DimFacts{Dim::kHeads, "num_attention_heads"},
    DimFacts{Dim::kHeadDim, "head_dim"},
    DimFacts{Dim::kLinearQkv, "linear_num_value_heads and linear_value_head_dim"},
    DimFacts{Dim::kLinearV, "linear_num_value_heads and linear_value_head_dim"},
    DimFacts{Dim::kLinearHeads, "linear_num_value_heads"},
    DimFacts{Dim::kLinearValueDim, "linear_value_head_dim"},
    DimFacts{Dim::kIndexQ, "index_n_heads and index_head_dim"},
    DimFacts{Dim::kIndexDim, "index_head_dim"},
    DimFacts{Dim::kIndexHeads, "index_n_heads"},
    DimFacts{Dim::kRotaryHalf, "qk_rope_head_dim or head_dim"},
};

static_assert(rows_match_enum(kDims, &DimFacts::dim, Dim::kRotaryHalf));

std::uint64_t product(std::uint64_t a, std::uint64_t b) {
  const auto result = checked_mul(a, b);
  if (!result) {
    throw Error(ErrorCode::kLimit, fmt::format("a width of {} x {} does not fit 64 bits", a, b))
        .in_file("config.json");
  }
  return *result;
}

/// Configs of GQA families may leave head_dim out.
std::uint64_t gqa_head_dim(const ModelConfig& config) {
  if (config.head_dim != 0 || config.num_attention_heads == 0) return config.head_dim;
  return config.hidden_size / config.num_attention_heads;
}

/// Queries and keys of each head of keys, values of each head of values.
std::uint64_t linear_qkv(const ModelConfig& config) {
  const std::uint64_t keys =
      product(2, product(config.linear_num_key_heads, config.linear_key_head_dim));
  const auto all =
      checked_add(keys, product(config.linear_num_value_heads, config.linear_value_head_dim));
  return all ? *all : product(keys, keys);
}

bool occurs(const TensorRule& rule, const ModelConfig& config) {
  if (rule.presence == Presence::kOptional || rule.presence == Presence::kStacked) return false;
  if (rule.scope == Scope::kModel) {
    return promise_of(rule.presence, config, std::nullopt) != Promise::kForbidden;
  }
  const auto n_layers = narrow<std::uint32_t>(layer_count(config), "the number of layers");
  for (std::uint32_t layer = 0; layer < n_layers; ++layer) {
    if (!scope_holds(rule.scope, config, layer)) continue;
    const Promise promise = promise_of(rule.presence, config, layer);
    if (promise == Promise::kRequired || rule.presence == Presence::kPerExpert) return true;
  }
  return false;
}

}  // namespace

// The factors are below 2^33 (model_config.h bounds every number), so their sums cannot overflow,
// their products can.
std::uint64_t dim_size(Dim dim, const ModelConfig& config) {
  switch (dim) {
    case Dim::kNone:
      return 0;
    case Dim::kOne:
      return 1;
    case Dim::kVocab:
      return config.vocab_size;
    case Dim::kHidden:
      return config.hidden_size;
    case Dim::kTwoHidden:
      return product(2, config.hidden_size);
    case Dim::kIntermediate:
      return config.intermediate_size;
    case Dim::kMoeIntermediate:
      return config.moe_intermediate_size;
    case Dim::kTwoMoeIntermediate:
      return product(2, config.moe_intermediate_size);
    case Dim::kSharedIntermediate:
      return config.shared_intermediate_size;
    case Dim::kExperts:
      return config.n_routed_experts;
    case Dim::kQLora:
      return config.q_lora_rank;
    case Dim::kKvLora:
      return config.kv_lora_rank;
    case Dim::kKvA:
      return config.kv_lora_rank + config.qk_rope_head_dim;
    case Dim::kMlaQ:
      return product(config.num_attention_heads, config.qk_nope_head_dim + config.qk_rope_head_dim);
    case Dim::kMlaKvB:
      return product(config.num_attention_heads, config.qk_nope_head_dim + config.v_head_dim);
    case Dim::kMlaV:
      return product(config.num_attention_heads, config.v_head_dim);
    case Dim::kGqaQ:
      return product(config.num_attention_heads, gqa_head_dim(config));
    case Dim::kGatedGqaQ:
      return product(2, product(config.num_attention_heads, gqa_head_dim(config)));
    case Dim::kGqaKv:
      return product(config.num_key_value_heads, gqa_head_dim(config));
    case Dim::kHeads:
      return config.num_attention_heads;
    case Dim::kHeadDim:
      return gqa_head_dim(config);
    case Dim::kLinearQkv:
      return linear_qkv(config);
    case Dim::kLinearV:
      return product(config.linear_num_value_heads, config.linear_value_head_dim);
    case Dim::kLinearHeads:
      return config.linear_num_value_heads;
    case Dim::kLinearValueDim:
      return config.linear_value_head_dim;
    case Dim::kIndexQ:
      return product(config.index_n_heads, config.index_head_dim);
    case Dim::kIndexDim:
      return config.index_head_dim;
    case Dim::kIndexHeads:
      return config.index_n_heads;
    case Dim::kRotaryHalf:
      return (config.qk_rope_head_dim != 0 ? config.qk_rope_head_dim : gqa_head_dim(config)) / 2;
  }
  return 0;
}

Shape rule_shape(const TensorRule& rule, const ModelConfig& config) {
  Shape shape;
  for (const Dim dim : rule.shape) {
    if (dim == Dim::kNone) break;
    shape.push_back(dim_size(dim, config));
  }
  return shape;
}

Shape weight_shape(const TensorRule& rule, const ModelConfig& config, bool is_quantized) {
  Shape shape = rule_shape(rule, config);
  if (stack_order(rule, is_quantized) != rule.stack)
    std::swap(shape[shape.size() - 2], shape[shape.size() - 1]);
  return shape;
}

void require_widths(const Family& family, const ModelConfig& config) {
  if (family.rules.empty()) return;
  std::vector<std::string_view> missing;
  if (config.num_hidden_layers == 0) missing.emplace_back("num_hidden_layers");
  for (const TensorRule& rule : family.rules) {
    for (const Dim dim : rule.shape) {
      if (dim == Dim::kNone) break;
      const std::string_view keys = kDims[static_cast<std::size_t>(dim)].keys;
      if (std::find(missing.begin(), missing.end(), keys) != missing.end()) continue;
      if (dim_size(dim, config) == 0 && occurs(rule, config)) missing.push_back(keys);
    }
  }
  if (missing.empty()) return;
  throw Error(ErrorCode::kCorrupt,
              fmt::format("family {} needs {}, which the config lacks or has as 0", family.name,
                          fmt::join(missing, "; ")))
      .in_file("config.json");
}

}  // namespace ingot::formats
