#include "formats/config/keys.h"

#include <algorithm>
#include <limits>
#include <map>

#include "formats/json/json.h"

namespace ingot::formats {
namespace {

// The words of these enums are short, and for this table only.
namespace key_table {

using enum KeyType;
using enum KeySense;
using M = ModelConfig;

// Rows of kModel have the keys that loaders read (vLLM, SGLang, transformers, and families here).
struct Line {
  std::string_view spellings;  ///< spellings of the key, separated by blanks
  KeyType type = kAny;
  KeySense sense = kElsewhere;
  KeyField field = {};
  std::string_view absent = {};
};

constexpr Line kLines[] = {
    {"model_type", kWord, kModel, &M::model_type},
    {"vocab_size", kWidth, kModel, &M::vocab_size},
    {"hidden_size d_model n_embd", kWidth, kModel, &M::hidden_size},
    {"intermediate_size ffn_hidden_size", kWidth, kModel, &M::intermediate_size},
    {"moe_intermediate_size expert_ffn_hidden_size", kWidth, kModel, &M::moe_intermediate_size},
    {"num_hidden_layers num_layers n_layers n_layer", kOne, kModel, &M::num_hidden_layers},
    {"num_attention_heads n_heads n_head", kWidth, kModel, &M::num_attention_heads},
    {"n_routed_experts num_experts num_local_experts moe_num_experts", kCount, kModel,
     &M::n_routed_experts},
    {"n_shared_experts num_shared_experts num_shared_expert moe_num_shared_experts", kCount, kModel,
     &M::n_shared_experts},
    {"num_experts_per_tok num_experts_per_token moe_topk moe_k moe_top_k top_k_experts", kCount,
     kModel, &M::num_experts_per_tok},
    {"q_lora_rank", kWidth, kModel, &M::q_lora_rank},
    {"kv_lora_rank", kWidth, kModel, &M::kv_lora_rank},
    {"qk_nope_head_dim", kWidth, kModel, &M::qk_nope_head_dim},
    {"qk_rope_head_dim", kWidth, kModel, &M::qk_rope_head_dim},
    {"v_head_dim", kWidth, kModel, &M::v_head_dim},
    {"index_n_heads", kWidth, kModel, &M::index_n_heads},
    {"index_head_dim", kWidth, kModel, &M::index_head_dim},
    {"index_topk", kWidth, kModel, &M::index_topk},
    {"max_position_embeddings max_seq_len model_max_length", kWidth, kModel,
     &M::max_position_embeddings},
    {"rms_norm_eps layer_norm_epsilon layernorm_epsilon norm_eps layer_norm_eps", kReal, kModel,
     &M::rms_norm_eps},
    {"hidden_act", kWord, kModel, {}, "\"silu\""},
    {"tie_word_embeddings tie_embedding", kFlag, kModel, &M::tie_word_embeddings, "false"},
    {"attention_bias", kFlag, kModel, &M::attention_bias, "false"},
    {"mlp_bias", kFlag, kModel, {}, "false"},
    {"rope_interleave", kFlag, kModel, {}, "true"},
    {"scoring_func", kWord, kModel, &M::scoring_func},
    {"topk_method", kWord, kModel, &M::topk_method},
    {"n_group num_expert_group", kOne, kModel, {}, "1"},
    {"topk_group", kOne, kModel, {}, "1"},
    {"norm_topk_prob moe_renormalize norm_expert_weight", kAny, kModel},
    {"use_sliding_window", kFlag, kModel, {}, "false"},
    {"head_dim", kWidth, kDerived, &M::head_dim},
    {"num_key_value_heads num_attention_groups", kWidth, kDerived, &M::num_key_value_heads},
    {"first_k_dense_replace moe_layer_num_skipped dense_mlp_idx num_dense_layers", kOne, kDerived},
    {"moe_layer_freq", kOne, kDerived},
    {"decoder_sparse_step", kOne, kDerived},
    {"rope_theta", kReal, kDerived},
    {"rope.rope_theta", kReal, kDerived, {}, "10000"},
    {"rope.rope_type rope.type", kWord, kDerived, {}, "\"default\""},
    {"rope.partial_rotary_factor", kReal, kDerived, {}, "1"},
    {"rope.beta_fast", kReal, kDerived, {}, "32"},
    {"rope.beta_slow", kReal, kDerived, {}, "1"},
    {"dtype torch_dtype", kWord, kElsewhere, &M::dtype},
    {"num_nextn_predict_layers mtp_num_hidden_layers", kOne, kElsewhere,
     &M::num_nextn_predict_layers},
    {"shared_intermediate_size shared_expert_intermediate_size moe_shared_expert_intermediate_size "
     "share_expert_dim share_expert_dims",
     kWidth, kFamily, &M::shared_intermediate_size},
    {"linear_num_key_heads", kWidth, kFamily, &M::linear_num_key_heads},
    {"linear_num_value_heads", kWidth, kFamily, &M::linear_num_value_heads},
    {"linear_key_head_dim", kWidth, kFamily, &M::linear_key_head_dim},
    {"linear_value_head_dim", kWidth, kFamily, &M::linear_value_head_dim},
    {"intermediate_size_mlp dense_intermediate_size", kWidth, kFamily},
    {"conv_kernel_size sconv_kernel_size", kWidth, kFamily},
    {"interleave_moe_layer_step", kOne, kFamily},
    {"moe_layer_start_index", kOne, kFamily},
    {"moe_layer_end_index", kOne, kFamily},
    {"moe_layer_interval", kOne, kFamily},
    {"moe_layers_enum", kWord, kFamily},
    {"hybrid_override_pattern", kWord, kFamily},
    {"mtp_hybrid_override_pattern", kWord, kFamily},
    {"layer_group_size", kOne, kFamily},
    {"full_attention_interval", kOne, kFamily},
    {"attn_layer_period", kOne, kFamily},
    {"attn_layer_offset", kOne, kFamily},
    {"expert_layer_period", kOne, kFamily},
    {"expert_layer_offset", kOne, kFamily},
};

// Keys of any type, without another spelling.
struct Plain {
  KeySense sense;
  std::string_view keys;
};
constexpr Plain kPlain[] = {
    {kModel,
     "architectures indexer_rope_interleave routed_scaling_factor "
     "sliding_window max_window_layers use_qk_norm attn_logit_softcapping "
     "final_logit_softcapping query_pre_attn_scalar attention_chunk_size "
     "attention_multiplier embedding_multiplier residual_multiplier logits_scaling "
     "swiglu_limit llama_4_scaling bos_token_id eos_token_id pad_token_id"},
    {kDerived,
     "qk_head_dim layer_types mlp_layer_types mlp_only_layers indexer_types "
     "index_topk_pattern index_topk_freq index_skip_topk_offset rotary_dim rope_parameters "
     "rope_scaling partial_rotary_factor"},
    {kFamily, "compress_ratios moe_layers"},
    {kElsewhere,
     "num_mtp_layers quantization_config expert_dtype compression_config "
     "transformers_version _name_or_path _attn_implementation _experts_implementation "
     "attention_dropout hidden_dropout initializer_range ep_size pretraining_tp use_cache "
     "return_dict output_attentions output_hidden_states output_router_logits "
     "router_aux_loss_coef router_jitter_noise aux_loss_alpha seq_aux gradient_checkpointing "
     "torchscript chunk_size_feed_forward problem_type id2label label2id is_encoder_decoder"},
};

}  // namespace key_table

}  // namespace

// Splits without a stream: a stream without memory for a word reports no error, and the table would
// stay short until the process ends.
std::vector<std::string> words_in(std::string_view text) {
  std::vector<std::string> words;
  for (std::size_t at = text.find_first_not_of(' '); at != std::string_view::npos;
       at = text.find_first_not_of(' ', at)) {
    const std::size_t end = std::min(text.find(' ', at), text.size());
    words.emplace_back(text.substr(at, end - at));
    at = end;
  }
  return words;
}

std::span<const KeyRow> key_rows() {
  static const std::vector<KeyRow> rows = [] {
    std::vector<KeyRow> all;
    for (const auto& [spellings, type, sense, field, absent] : key_table::kLines)
      all.push_back({words_in(spellings), type, sense, field, absent});
    for (const key_table::Plain& plain : key_table::kPlain) {
      for (std::string& key : words_in(plain.keys))
        all.push_back({.spellings = {std::move(key)}, .sense = plain.sense});
    }
    return all;
  }();
  return rows;
}

const KeyRow* find_key(std::string_view key) {
  static const std::map<std::string_view, const KeyRow*> by_spelling = [] {
    std::map<std::string_view, const KeyRow*> all;
    for (const KeyRow& row : key_rows()) {
      for (const std::string& spelling : row.spellings) all.emplace(spelling, &row);
    }
    return all;
  }();
  const auto found = by_spelling.find(key);
  return found == by_spelling.end() ? nullptr : found->second;
}

const std::string& spelling_in(const Json& keys, std::string_view key) {
  const std::vector<std::string>& all = find_key(key)->spellings;
  const auto said = std::ranges::find_if(
      all, [&](const std::string& one) { return !json_member(keys, one).is_null(); });
  return said == all.end() ? all.front() : *said;
}

bool is_per_layer(const Json& value, LayerCounts layers) {
  return value.is_array() &&
         (value.size() == layers.main || value.size() == layers.main + layers.mtp);
}

ConfigKeys::ConfigKeys(const Json& keys, std::string_view where) : fields_(keys, where) {
  const auto number_or_zero = [&](const char* key) {
    const Json* value = find(key);
    return value == nullptr ? 0 : whole_number(*value, kMaxCount).value_or(0);
  };
  layers_ = {.main = number_or_zero("num_hidden_layers"),
             .mtp = number_or_zero("num_nextn_predict_layers")};
}

const char* ConfigKeys::spelling(std::string_view key) const {
  const std::vector<std::string>& all = find_key(key)->spellings;
  const auto said = std::ranges::find_if(
      all, [&](const std::string& one) { return fields_.find(one.c_str()) != nullptr; });
  return said == all.end() ? all.front().c_str() : said->c_str();
}

LayerNumber ConfigKeys::number(std::string_view key) const {
  const KeyType type = find_key(key)->type;
  const std::uint64_t most = type == KeyType::kWidth ? kMaxWidth : kMaxCount;
  const char* said = spelling(key);
  const Json* value = fields_.find(said);
  if (value == nullptr || value->empty() || !is_per_layer(*value, layers_))
    return {.largest = fields_.optional_number(said, most), .by_layer = {}};
  LayerNumber number;
  for (const Json& entry : *value) number.by_layer.push_back(fields_.as_number(said, entry, most));
  number.largest = std::ranges::max(number.by_layer);
  if (std::ranges::min(number.by_layer) == *number.largest) number.by_layer.clear();
  if (type == KeyType::kOne && !number.by_layer.empty())
    refuse(key, "differs between layers, where one is needed");
  return number;
}

std::uint64_t ConfigKeys::step(std::string_view key, std::uint64_t if_missing) const {
  const auto step = fields_.optional_number(spelling(key), kMaxCount).value_or(if_missing);
  if (step == 0) refuse(key, "is 0");
  return step;
}

std::optional<double> ConfigKeys::real(std::string_view key) const {
  return fields_.optional_real(spelling(key), 0, std::numeric_limits<double>::infinity());
}

}  // namespace ingot::formats
