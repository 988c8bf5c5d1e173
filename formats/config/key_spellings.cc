#include "formats/config/key_spellings.h"

#include <algorithm>

namespace ingot::formats {
namespace {

constexpr std::array kSpellings = {
    KeySpellings{"num_hidden_layers", {"num_layers"}},
    KeySpellings{"intermediate_size", {"ffn_hidden_size"}},
    KeySpellings{"moe_intermediate_size", {"expert_ffn_hidden_size"}},
    KeySpellings{"num_key_value_heads", {"num_attention_groups"}},
    KeySpellings{"n_routed_experts", {"num_experts", "num_local_experts", "moe_num_experts"}},
    KeySpellings{"n_shared_experts",
                 {"num_shared_experts", "num_shared_expert", "moe_num_shared_experts"}},
    KeySpellings{"num_experts_per_tok",
                 {"num_experts_per_token", "moe_topk", "moe_k", "moe_top_k"}},
    KeySpellings{"shared_expert_intermediate_size",
                 {"moe_shared_expert_intermediate_size", "share_expert_dim",
                  "shared_intermediate_size", "share_expert_dims"}},
    KeySpellings{"first_k_dense_replace", {"moe_layer_num_skipped", "dense_mlp_idx"}},
};

}  // namespace

std::span<const std::string_view> other_spellings(std::string_view key) {
  const auto row = std::ranges::find(kSpellings, key, &KeySpellings::key);
  return row == kSpellings.end() ? std::span<const std::string_view>() : row->others;
}

}  // namespace ingot::formats
