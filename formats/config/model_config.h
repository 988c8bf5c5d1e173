#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "formats/json/json_fwd.h"

namespace ingot::formats {

/// `quantization_config` of config.json, as far as the fields are common to the dialects.
struct QuantizationConfig {
  std::string quant_method;  ///< "fp8", "compressed-tensors", ...
  std::string fmt;           ///< "e4m3"
  std::string activation_scheme;
  std::string scale_fmt;  ///< "ue8m0" or empty
  std::optional<std::array<std::uint64_t, 2>> weight_block_size;
};

/// RoPE in either spelling (`rope_scaling` with `rope_theta`, or transformers 5's
/// `rope_parameters`, which wins).
struct RopeConfig {
  double theta = 10000.0;
  std::string type = "default";
  std::optional<double> factor, beta_fast, beta_slow, mscale, mscale_all_dim;
  std::optional<std::uint64_t> original_max_position_embeddings;
};

/// The place of a text model in the config of a model of several modalities, and in its checkpoint
/// (nested_config.h).
struct TextNesting {
  std::string key;         ///< `text_config` or its like; empty where the config is not nested
  std::string model_type;  ///< type of the text model
  /// True where the model has towers for images or sound: with a nested config, or an object for
  /// them next to the text model's keys.
  bool has_towers = false;
  /// True where `quantization_config` belongs among the text model's keys, where the class of the
  /// whole model looks; other loaders than vLLM ask the whole config only.
  bool holds_quantization = false;
  /// The prefix of the text model's names: `language_model.`, or `model.language_model.` in place
  /// of `model.`. Found in the names of a checkpoint (text_names.h), as are the next two.
  std::string prefix;
  /// True where the prefix is in place of `model.`, and not before it.
  bool replaces_model = false;
  /// First words of the names behind `model.`, where a checkpoint has these without any prefix: a
  /// model that was saved without the class around it.
  std::vector<std::string> bare_words;
  /// Keys of the text model, and keys of the whole model that it lacks, in the words of the
  /// releases; null where the file has just these.
  JsonValue keys;
};

/// config.json with types. A field that the file lacks is 0, empty or nullopt; a family checks the
/// fields that it requires. A number may be written as a list with an entry per layer: where these
/// differ, it is the largest, and `by_layer` has them.
struct ModelConfig {
  std::string model_type;    ///< type of the whole model
  std::string architecture;  ///< architectures[0], or empty
  std::string dtype;         ///< `dtype` or `torch_dtype`

  std::uint64_t vocab_size = 0;
  std::uint64_t hidden_size = 0;
  std::uint64_t intermediate_size = 0;
  std::uint64_t moe_intermediate_size = 0;
  std::uint64_t num_hidden_layers = 0;
  std::uint64_t num_nextn_predict_layers = 0;
  std::uint64_t num_attention_heads = 0;
  std::uint64_t num_key_value_heads = 0;  ///< defaults to num_attention_heads
  std::uint64_t head_dim = 0;             ///< GQA families only; meaningless under MLA
  std::uint64_t n_routed_experts = 0;     ///< number also called num_experts, num_local_experts
  std::uint64_t n_shared_experts = 0;
  std::uint64_t shared_intermediate_size = 0;  ///< width of all shared experts together
  std::uint64_t num_experts_per_tok = 0;
  std::uint64_t q_lora_rank = 0;  ///< 0: plain q_proj
  std::uint64_t kv_lora_rank = 0;
  std::uint64_t qk_nope_head_dim = 0;
  std::uint64_t qk_rope_head_dim = 0;
  std::uint64_t v_head_dim = 0;
  std::uint64_t index_n_heads = 0;
  std::uint64_t index_head_dim = 0;
  std::uint64_t index_topk = 0;
  std::uint64_t linear_num_key_heads = 0;  ///< number of linear attention, as are the next three
  std::uint64_t linear_num_value_heads = 0;
  std::uint64_t linear_key_head_dim = 0;
  std::uint64_t linear_value_head_dim = 0;
  std::uint64_t max_position_embeddings = 0;
  double rms_norm_eps = 0.0;
  std::string topk_method;
  std::string scoring_func;
  bool tie_word_embeddings = false;
  bool attention_bias = false;
  RopeConfig rope;
  std::optional<QuantizationConfig> quantization;

  /// Numbers that are not the same in all layers, by the names of the fields above: an entry per
  /// main layer; MTP layers may follow.
  std::map<std::string, std::vector<std::uint64_t>, std::less<>> by_layer;

  /// An entry per main layer, and per MTP layer where the config tells: whether it is a mixture of
  /// experts (first_k_dense_replace and moe_layer_freq, mlp_layer_types, or decoder_sparse_step and
  /// mlp_only_layers).
  std::vector<bool> layer_is_moe;
  /// One entry per main layer: whether its attention is linear (layer_types, or
  /// full_attention_interval); empty where none is.
  std::vector<bool> layer_is_linear;

  /// The place of the text model's keys; all other fields here are read from them.
  TextNesting text;

  /// The file as it is, keys in order; unknown keys are carried through.
  JsonValue raw;
};

/// Typed view of config.json's text. Throws kCorrupt naming `where` and the key for a wrong type, a
/// negative, fractional or absurd number (more than 2^20 layers or experts, any dimension above
/// 2^32).
ModelConfig parse_model_config(std::string_view text, std::string_view where);

/// The head that a class puts on the text model.
enum class ModelHead : std::uint8_t {
  kTokens,   ///< head of logits: `lm_head`
  kClasses,  ///< head of classes or rewards: `score`, `classifier`
  kNone,     ///< a bare model, or one of embeddings
};
/// Returns the head by the class that `architectures` names, as transformers and vLLM call classes;
/// kTokens where it names none, or one that says nothing of it.
ModelHead head_of(const ModelConfig& config);
/// True if vLLM builds the layers of this head with an empty name (models/qwen2_rm.py:53).
bool has_nameless_head(const ModelConfig& config);

/// Returns the config with the rope of layers of a type (`full_attention`), where `rope_parameters`
/// has an object for each type; else the config as given.
ModelConfig config_of_layers(const ModelConfig& config, std::string_view type);

}  // namespace ingot::formats
