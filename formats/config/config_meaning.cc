// Rows say which keys loaders read (vLLM, SGLang, transformers, and the families here) and what
// their absence means to all of them. Values that transformers 5 derives and writes are computed
// here in the same way.

#include "formats/config/config_meaning.h"

#include <algorithm>
#include <array>
#include <optional>
#include <set>
#include <utility>

#include <fmt/format.h>

#include "formats/config/key_spellings.h"
#include "formats/config/model_config.h"
#include "formats/config/nested_config.h"
#include "formats/config/released_words.h"
#include "formats/config/rope_meaning.h"
#include "formats/json/json.h"

namespace ingot::formats {
namespace {

constexpr std::size_t kShownBytes = 200;
constexpr std::uint64_t kMaxLayers = std::uint64_t{1} << 14;  // whose kinds are listed
constexpr std::uint64_t kMaxWidth = std::uint64_t{1} << 32;

struct KeyRow {
  std::string_view key;          ///< the meaning, and its usual spelling
  std::string_view absent = {};  ///< JSON that its absence means to every reader; empty: no such
};

constexpr std::array kKeys = {
    KeyRow{"model_type"},
    KeyRow{"architectures"},
    KeyRow{"vocab_size"},
    KeyRow{"hidden_size"},
    KeyRow{"intermediate_size"},
    KeyRow{"moe_intermediate_size"},
    KeyRow{"num_hidden_layers"},
    KeyRow{"num_attention_heads"},
    KeyRow{"n_routed_experts"},
    KeyRow{"n_shared_experts"},
    KeyRow{"num_experts_per_tok"},
    KeyRow{"q_lora_rank"},
    KeyRow{"kv_lora_rank"},
    KeyRow{"qk_nope_head_dim"},
    KeyRow{"qk_rope_head_dim"},
    KeyRow{"v_head_dim"},
    KeyRow{"index_n_heads"},
    KeyRow{"index_head_dim"},
    KeyRow{"index_topk"},
    KeyRow{"max_position_embeddings"},
    KeyRow{"rms_norm_eps"},
    KeyRow{"hidden_act", "\"silu\""},
    KeyRow{"tie_word_embeddings", "false"},
    KeyRow{"attention_bias", "false"},
    KeyRow{"mlp_bias", "false"},
    KeyRow{"rope_interleave", "true"},
    KeyRow{"indexer_rope_interleave"},
    KeyRow{"norm_topk_prob"},
    KeyRow{"routed_scaling_factor"},
    KeyRow{"scoring_func"},
    KeyRow{"topk_method"},
    KeyRow{"n_group", "1"},
    KeyRow{"topk_group", "1"},
    KeyRow{"use_sliding_window", "false"},
    KeyRow{"sliding_window"},
    KeyRow{"max_window_layers"},
    KeyRow{"use_qk_norm"},
    KeyRow{"attn_logit_softcapping"},
    KeyRow{"final_logit_softcapping"},
    KeyRow{"query_pre_attn_scalar"},
    KeyRow{"attention_chunk_size"},
    KeyRow{"attention_multiplier"},
    KeyRow{"embedding_multiplier"},
    KeyRow{"residual_multiplier"},
    KeyRow{"logits_scaling"},
    KeyRow{"swiglu_limit"},
    KeyRow{"llama_4_scaling"},
    KeyRow{"bos_token_id"},
    KeyRow{"eos_token_id"},
    KeyRow{"pad_token_id"},
};

// No parameter of the model as it is loaded: who saved the file, training, or read elsewhere
// (quantization_config by loader rules, dtypes, those of experts too, and MTP layers by
// verification).
constexpr std::array<std::string_view, 31> kOther = {"quantization_config",
                                                     "expert_dtype",
                                                     "compression_config",
                                                     "dtype",
                                                     "torch_dtype",
                                                     "num_mtp_layers",
                                                     "transformers_version",
                                                     "_name_or_path",
                                                     "_attn_implementation",
                                                     "_experts_implementation",
                                                     "attention_dropout",
                                                     "hidden_dropout",
                                                     "initializer_range",
                                                     "ep_size",
                                                     "pretraining_tp",
                                                     "use_cache",
                                                     "return_dict",
                                                     "output_attentions",
                                                     "output_hidden_states",
                                                     "output_router_logits",
                                                     "router_aux_loss_coef",
                                                     "router_jitter_noise",
                                                     "aux_loss_alpha",
                                                     "seq_aux",
                                                     "gradient_checkpointing",
                                                     "torchscript",
                                                     "chunk_size_feed_forward",
                                                     "problem_type",
                                                     "id2label",
                                                     "label2id",
                                                     "is_encoder_decoder"};

// Read together, into one meaning.
constexpr std::array<std::string_view, 16> kDerived = {"head_dim",
                                                       "qk_head_dim",
                                                       "num_key_value_heads",
                                                       "layer_types",
                                                       "mlp_layer_types",
                                                       "first_k_dense_replace",
                                                       "moe_layer_freq",
                                                       "decoder_sparse_step",
                                                       "mlp_only_layers",
                                                       "indexer_types",
                                                       "index_topk_pattern",
                                                       "index_topk_freq",
                                                       "index_skip_topk_offset",
                                                       "partial_rotary_factor",
                                                       "rotary_dim",
                                                       "rope_theta"};

// Two names of meanings that are compared elsewhere.
using Twins = std::pair<std::string_view, std::string_view>;
constexpr std::array kTwins = {Twins{"dtype", "torch_dtype"},
                               Twins{"num_nextn_predict_layers", "num_mtp_layers"}};

// Models of transformers that point head_dim at the rotated slice, whatever the file says.
constexpr std::array<std::string_view, 6> kHeadIsRope = {
    "deepseek_v2", "deepseek_v3", "deepseek_v32", "kimi_k2", "glm_moe_dsa", "glm4_moe_lite"};

template <std::size_t N>
bool is_in(const std::array<std::string_view, N>& words, std::string_view word) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

std::optional<std::uint64_t> whole(const Json& value) {
  return value.is_number_unsigned() ? std::optional(value.get<std::uint64_t>()) : std::nullopt;
}

// One id is no list, and neither is the same number for every layer.
Json plain(const Json& value) {
  const bool is_one = value.is_array() && !value.empty() && value[0].is_number() &&
                      std::ranges::all_of(value, [&](const Json& v) { return v == value[0]; });
  return is_one ? value[0] : value;
}

Json words_of(const std::vector<bool>& flags, std::string_view yes, std::string_view no) {
  Json list = Json::array();
  for (const bool flag : flags) list.push_back(flag ? yes : no);
  return list;
}

}  // namespace

std::string config_text(const Json& value) {
  if (value.is_null()) return "absent";
  std::string text = value.dump(-1, ' ', false, Json::error_handler_t::replace);
  if (text.size() <= kShownBytes) return text;
  text.resize(kShownBytes);
  return text + "...";
}

bool says_nothing(const Json& value) {
  return value.is_null() || value == false || value == 0 || value == -1 ||
         (value.is_structured() && value.empty());
}

std::string cache_words(const Json& block) {
  if (!block.is_object()) return {};
  for (const auto& [key, value] : block.items()) {
    if (key.starts_with("kv_cache") && !value.is_null() && value != "auto")
      return fmt::format("{} is {}", key, config_text(value));
  }
  return cache_words(json_member(block, "quantization"));
}

/// Reads one object: the whole config, or its text_config.
class ConfigMeaning::Reader {
 public:
  Reader(const Json& object, std::string prefix, ConfigMeaning& meaning)
      : object_(object), prefix_(std::move(prefix)), meaning_(meaning) {}

  void read() {
    for (const KeyRow& row : kKeys) read_row(row);
    read_rotary_dim();
    read_rope(object_, prefix_,
              {.say = [this](const std::string& meaning,
                             SaidValue said) { say(meaning, std::move(said)); },
               .contradict = [this](std::string sentence) { contradict(std::move(sentence)); }});
    forget_idle_rope(meaning_.known_, prefix_ + "rope.");
    read_widths();
    read_mlp_layers();
    read_layer_types();
    read_indexers();
    read_twins();
    read_unknown();
  }

 private:
  [[nodiscard]] const Json& at(std::string_view key) const { return json_member(object_, key); }
  [[nodiscard]] std::string path(std::string_view key) const {
    return fmt::format("{}{}", prefix_, key);
  }
  [[nodiscard]] std::optional<std::uint64_t> number(std::string_view key) const {
    return whole(at(key));
  }
  [[nodiscard]] std::uint64_t layers() const {
    return std::min(number("num_hidden_layers").value_or(0), kMaxLayers);
  }

  // Keeps a value, or finds that it contradicts the one that is known.
  void say(const std::string& meaning, SaidValue said) {
    const auto [known, is_new] = meaning_.known_.try_emplace(prefix_ + meaning, std::move(said));
    if (is_new || *known->second.value == *said.value) return;
    contradict(fmt::format("{} is {}, but {} is {}: readers take one or the other", said.path,
                           config_text(said.value), known->second.path,
                           config_text(known->second.value)));
  }

  void contradict(std::string sentence) { meaning_.contradictions_.push_back(std::move(sentence)); }

  void forget_if(const std::string& meaning, const Json& absent) {
    const auto known = meaning_.known_.find(prefix_ + meaning);
    if (known != meaning_.known_.end() && known->second.value == absent)
      meaning_.known_.erase(known);
  }

  void read_row(const KeyRow& row) {
    const std::string meaning(row.key);
    const auto read = [&](std::string_view key) {
      if (key.empty() || at(key).is_null() || is_without_effect(key)) return;
      say(meaning, {.value = plain(at(key)), .path = path(key)});
    };
    read(row.key);
    std::ranges::for_each(other_spellings(row.key), read);
    if (!row.absent.empty()) forget_if(meaning, Json::parse(row.absent));
  }

  // A window that a switch turns off.
  [[nodiscard]] bool is_without_effect(std::string_view key) const {
    return (key == "sliding_window" || key == "max_window_layers") &&
           at("use_sliding_window") == false;
  }

  // A number that follows from others; a written one must be equal, and then adds no fact.
  void derive(std::string_view key, std::optional<std::uint64_t> wanted, const std::string& why) {
    if (at(key).is_null()) return;
    if (!wanted) return say(std::string(key), {.value = at(key), .path = path(key)});
    if (at(key) == *wanted) return;
    say(std::string(key), {.value = at(key), .path = path(key)});
    contradict(
        fmt::format("{} is {}, but {} make it {}", path(key), config_text(at(key)), why, *wanted));
  }

  // MiniMax: the part of a head that is rotated, in values.
  void read_rotary_dim() {
    const auto rotated = number("rotary_dim"), heads = number("num_attention_heads");
    std::optional<std::uint64_t> width = number("head_dim");
    if (!width && heads && *heads != 0) width = number("hidden_size").value_or(0) / *heads;
    if (!rotated || !width || *width == 0) return;
    say("rope.partial_rotary_factor",
        {.value = Json(static_cast<double>(*rotated) / static_cast<double>(*width)),
         .path = path("rotary_dim / head_dim")});
  }

  void read_widths() {
    const auto heads = number("num_attention_heads");
    const auto nope = number("qk_nope_head_dim"), rope = number("qk_rope_head_dim");
    if (nope && rope && *nope <= kMaxWidth && *rope <= kMaxWidth) {
      derive("qk_head_dim", *nope + *rope, "qk_nope_head_dim and qk_rope_head_dim");
    } else {
      derive("qk_head_dim", std::nullopt, "");
    }
    const Json& type = at("model_type");
    if (rope && type.is_string() && is_in(kHeadIsRope, type.get_ref<const std::string&>())) {
      // GLM-5.2 has the other part of a head there, which says as little.
      if (nope != number("head_dim"))
        derive("head_dim", rope, "latent attention and qk_rope_head_dim");
    } else {
      say_unless("head_dim", heads && *heads != 0 && number("hidden_size")
                                 ? Json(*number("hidden_size") / *heads)
                                 : Json());
    }
    say_unless("num_key_value_heads", at("num_attention_heads"));
  }

  void say_unless(std::string_view key, const Json& absent) {
    if (at(key).is_null() || at(key) == absent) return;
    say(std::string(key), {.value = at(key), .path = path(key)});
  }

  // Which layers are mixtures, in each of the ways in which it is said.
  [[nodiscard]] std::optional<std::vector<bool>> listed_mixtures() const {
    const Json& types = at("mlp_layer_types");
    if (!types.is_array() || types.size() < layers()) return std::nullopt;
    std::vector<bool> mixtures;
    for (std::size_t i = 0; i < layers(); ++i) mixtures.push_back(types[i] == "sparse");
    return mixtures;
  }

  [[nodiscard]] std::optional<std::vector<bool>> mixtures_behind_prefix() const {
    const auto dense = number("first_k_dense_replace");
    const Json& frequency = at("moe_layer_freq");
    if (!dense && (frequency.is_null() || !at("mlp_layer_types").is_null())) return std::nullopt;
    const std::uint64_t every = std::max<std::uint64_t>(whole(frequency).value_or(1), 1);
    std::vector<bool> mixtures;
    for (std::size_t i = 0; i < layers(); ++i) {
      const bool is_listed = !frequency.is_array() || (i < frequency.size() && frequency[i] == 1);
      mixtures.push_back(i >= dense.value_or(0) && is_listed && i % every == 0);
    }
    return mixtures;
  }

  [[nodiscard]] std::optional<std::vector<bool>> mixtures_by_step() const {
    if (at("decoder_sparse_step").is_null() && at("mlp_only_layers").is_null()) return std::nullopt;
    const std::uint64_t step =
        std::max<std::uint64_t>(number("decoder_sparse_step").value_or(1), 1);
    std::vector<bool> mixtures;
    for (std::size_t i = 0; i < layers(); ++i) mixtures.push_back((i + 1) % step == 0);
    const Json& dense = at("mlp_only_layers");
    for (const Json& layer : dense.is_array() ? dense : Json::array()) {
      if (const auto i = whole(layer); i && *i < mixtures.size())
        mixtures[static_cast<std::size_t>(*i)] = false;
    }
    return mixtures;
  }

  // Said in no way it means that all are, where there are experts.
  void read_mlp_layers() {
    const bool has_experts = meaning_.known_.contains(path("n_routed_experts"));
    const std::array said = {
        std::pair("mlp_layer_types", listed_mixtures()),
        std::pair(number("first_k_dense_replace") ? "first_k_dense_replace" : "moe_layer_freq",
                  mixtures_behind_prefix()),
        std::pair("decoder_sparse_step", mixtures_by_step())};
    for (const auto& [key, mixtures] : said) {
      if (mixtures)
        say("mlp_layer_types",
            {.value = words_of(*mixtures, "sparse", "dense"), .path = path(key)});
    }
    const std::vector<bool> all(static_cast<std::size_t>(layers()), has_experts);
    forget_if("mlp_layer_types", words_of(all, "sparse", "dense"));
  }

  // One kind for all layers is the default of the model's code, if it is the kind that goes with
  // the rest.
  void read_layer_types() {
    const Json& types = at("layer_types");
    if (types.is_null()) return;
    if (!types.is_array()) return say("layer_types", {.value = types, .path = path("layer_types")});
    const bool is_sparse = !at("index_topk").is_null();
    Json kinds = Json::array();
    for (const Json& type : types) {
      const bool is_indexed = type == "indexed_attention" || type == "deepseek_sparse_attention";
      kinds.push_back(is_indexed ? Json("indexed_attention") : type);
    }
    const Json usual = is_sparse ? "indexed_attention" : "full_attention";
    const bool is_usual =
        std::all_of(kinds.begin(), kinds.end(), [&](const Json& kind) { return kind == usual; });
    if (is_usual && kinds.size() >= layers()) return;
    say("layer_types", {.value = std::move(kinds), .path = path("layer_types")});
  }

  void read_indexers() {
    if (const Json& types = at("indexer_types"); types.is_array())
      say("indexer_types", {.value = types, .path = path("indexer_types")});
    if (const Json& pattern = at("index_topk_pattern"); pattern.is_string()) {
      std::vector<bool> own;
      for (const char letter : pattern.get_ref<const std::string&>()) own.push_back(letter == 'F');
      say("indexer_types",
          {.value = words_of(own, "full", "shared"), .path = path("index_topk_pattern")});
    } else if (pattern.is_array()) {
      say("indexer_types", {.value = pattern, .path = path("index_topk_pattern")});
    } else if (const std::uint64_t every = number("index_topk_freq").value_or(1); every > 1) {
      const std::uint64_t offset = number("index_skip_topk_offset").value_or(2);
      std::vector<bool> own;
      for (std::uint64_t i = 0; i < layers(); ++i)
        own.push_back((i + 1 > offset ? i + 1 - offset : 0) % every == 0);
      say("indexer_types",
          {.value = words_of(own, "full", "shared"), .path = path("index_topk_freq")});
    }
    const std::vector<bool> all(static_cast<std::size_t>(layers()), true);
    forget_if("indexer_types", words_of(all, "full", "shared"));
  }

  void read_twins() {
    for (const auto& [key, twin] : kTwins) {
      if (at(key).is_null() || at(twin).is_null() || at(key) == at(twin)) continue;
      contradict(fmt::format("{} is {}, but {} is {}: readers take one or the other", path(twin),
                             config_text(at(twin)), path(key), config_text(at(key))));
    }
  }

  void read_unknown() {
    static const std::set<std::string_view> known = [] {
      std::set<std::string_view> keys(kOther.begin(), kOther.end());
      keys.insert(kMtpLayerKeys.begin(), kMtpLayerKeys.end());
      keys.insert(kDerived.begin(), kDerived.end());
      keys.insert(kRopeObjects.begin(), kRopeObjects.end());
      for (const KeyRow& row : kKeys) {
        keys.insert(row.key);
        const auto others = other_spellings(row.key);
        keys.insert(others.begin(), others.end());
      }
      return keys;
    }();
    if (!object_.is_object()) return;
    for (const auto& [key, value] : object_.items()) {
      const bool is_text = std::ranges::find(text_config_keys(), key) != text_config_keys().end() &&
                           value.is_object();
      if (known.contains(key) || value.is_null() || is_text) continue;
      meaning_.unknown_.emplace(path(key), SaidValue{.value = value, .path = path(key)});
    }
  }

  const Json& object_;
  std::string prefix_;
  ConfigMeaning& meaning_;
};

ConfigMeaning::ConfigMeaning(const Json& given) {
  // The order of keys means nothing, in objects within it too.
  const nlohmann::json sorted(given);
  const Json config(sorted);
  const std::string key = text_nesting(config).key;
  const std::string prefix = key.empty() ? "" : fmt::format("{}.", key);
  if (!key.empty()) Reader(config, "", *this).read();
  Json text = key.empty() ? config : json_member(config, key);
  use_released_words(text);
  Reader(text, prefix, *this).read();
  if (key.empty()) return;
  // Some readers look for rope above the text model's own keys.
  for (const auto& [meaning, said] : known_) {
    if (!meaning.starts_with("rope.")) continue;
    const auto own = known_.find(prefix + meaning);
    if (own == known_.end() || *own->second.value == *said.value) continue;
    contradictions_.push_back(fmt::format("{} is {}, but {} is {}: readers take one or the other",
                                          said.path, config_text(said.value), own->second.path,
                                          config_text(own->second.value)));
  }
}

}  // namespace ingot::formats
