#include "formats/config/released_words.h"

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "formats/config/keys.h"
#include "formats/json/json.h"
#include "formats/json/json_fields.h"

namespace ingot::formats {
namespace {

constexpr const char* kLayerTypes = "layer_types";
constexpr const char* kMlpTypes = "mlp_layer_types";
constexpr const char* kRope = "rope_parameters";
constexpr const char* kByLayer = "per_layer_config";
constexpr std::uint64_t kMostLayers = std::uint64_t{1} << 16;  // layers that get a list
constexpr std::string_view kSliding = "sliding_attention", kFull = "full_attention",
                           kLinearType = "linear_attention";

/// Sliding layers, and every so many layers one with full attention.
Json types_by_step(std::uint64_t n_layers, std::uint64_t every) {
  Json types = Json::array();
  for (std::uint64_t i = 1; i <= n_layers; ++i) types.push_back(i % every == 0 ? kFull : kSliding);
  return types;
}

/// The meaning of saved words.
struct Translation {
  /// Released keys (dots lead into objects), and what the saved words make of them.
  std::vector<std::pair<std::string, Json>> values;
  std::vector<const char*> words;  ///< saved words with this meaning
  bool is_rule = false;            ///< true: holds whatever the released keys say
  bool are_apart = false;          ///< true: each key is valid by itself
  bool stay = false;               ///< the words have a meaning of their own, too
};
using Translated = std::optional<Translation>;

/// The entry that `words` has for every word of a list; nullopt where one has none.
template <std::size_t N>
std::optional<Json> translated(const Json& list,
                               const std::array<std::pair<std::string_view, Json>, N>& words) {
  if (!list.is_array()) return std::nullopt;
  Json result = Json::array();
  for (const Json& entry : list) {
    const auto row = std::ranges::find_if(words, [&](const auto& w) { return entry == w.first; });
    if (row == words.end()) return std::nullopt;
    result.push_back(row->second);
  }
  return result;
}

/// Belongs to a model, or to the text model in it.
bool is_of(const Json& keys, std::string_view model_type) {
  const Json& said = json_member(keys, "model_type");
  return said == model_type || said == fmt::format("{}_text", model_type);
}

// DeepSeek-V4: how many tokens an entry of each kind of layer represents.
Translated compress_ratios(const Json& keys) {
  constexpr const char* kRates = "compress_rates";
  constexpr const char *kShort = "compressed_sparse_attention",
                       *kLong = "heavily_compressed_attention";
  const Json& rates = json_member(keys, kRates);
  if (!rates.is_object()) return std::nullopt;
  const std::array<std::pair<std::string_view, Json>, 3> words = {
      {{kSliding, 0}, {kShort, json_member(rates, kShort)}, {kLong, json_member(rates, kLong)}}};
  std::optional<Json> ratios = translated(json_member(keys, kLayerTypes), words);
  if (!ratios) return std::nullopt;
  return Translation{{{"compress_ratios", *std::move(ratios)}}, {kLayerTypes, kRates}};
}

// DeepSeek-V4: the first layers have a table in place of a router.
Translated hash_layers(const Json& keys) {
  const std::array<std::pair<std::string_view, Json>, 2> words = {{{"hash_moe", 1}, {"moe", 0}}};
  const std::optional<Json> has_table = translated(json_member(keys, kMlpTypes), words);
  if (!has_table || !keys.contains("compress_ratios") ||
      !std::ranges::is_sorted(*has_table, std::ranges::greater()))
    return std::nullopt;
  return Translation{{{"num_hash_layers", std::ranges::count(*has_table, Json(1))}}, {kMlpTypes}};
}

// Parameters of one kind of layers, without the keys that releases do not have there.
Json scaling_of(Json rope) {
  for (const char* key : {"rope_theta", "partial_rotary_factor", "attention_factor"})
    rope.erase(key);
  return rope;
}

bool is_plain_value(const Json& rope) {
  const Json& type = json_member(rope, "rope_type");
  return type.is_null() || text_at(rope, "rope_type") == "default";
}

// DeepSeek-V4: plain for windows, stretched for compressed entries without an effect on magnitudes.
Translated two_ropes(const Json& keys) {
  constexpr const char* kPart = "partial_rotary_factor";
  const Json& main = json_member(json_member(keys, kRope), "main");
  const Json& compress = json_member(json_member(keys, kRope), "compress");
  if (!main.is_object() || !compress.is_object() || !is_plain_value(main)) return std::nullopt;
  const Json& strength = json_member(compress, "attention_factor");
  if (!strength.is_null() && strength != 1) return std::nullopt;
  Translation said{{{"rope_theta", json_member(main, "rope_theta")},
                    {"compress_rope_theta", json_member(compress, "rope_theta")}},
                   {kRope}};
  if (!is_plain_value(compress)) said.values.emplace_back("rope_scaling", scaling_of(compress));
  const Json& whole = json_member(keys, "head_dim");
  const Json& part = json_member(keys, "qk_rope_head_dim");
  // This key says again how much of a head is rotated.
  if (whole.is_number() && part.is_number() &&
      json_member(keys, kPart) == part.get<double>() / whole.get<double>())
    said.words.push_back(kPart);
  return said;
}

// MiniMax-M3: layers that choose blocks.
Translated sparse_blocks(const Json& keys) {
  constexpr std::array kSame = {std::pair("index_n_heads", "sparse_num_index_heads"),
                                std::pair("index_head_dim", "sparse_index_dim"),
                                std::pair("index_block_size", "sparse_block_size"),
                                std::pair("index_topk_blocks", "sparse_topk_blocks"),
                                std::pair("index_local_blocks", "sparse_local_block")};
  constexpr std::string_view kObject = "sparse_attention_config";
  const std::array<std::pair<std::string_view, Json>, 2> words = {
      {{kFull, 0}, {"minimax_m3_sparse", 1}}};
  std::optional<Json> frequency = translated(json_member(keys, kLayerTypes), words);
  if (!frequency || json_member(keys, "index_topk_blocks").is_null()) return std::nullopt;
  Translation said{{}, {kLayerTypes}};
  const auto say = [&](std::string_view key, Json value) {
    said.values.emplace_back(fmt::format("{}.{}", kObject, key), std::move(value));
  };
  say("use_sparse_attention", true);
  for (const auto& [word, key] : kSame) {
    say(key, json_member(keys, word));
    said.words.push_back(word);
  }
  say("sparse_init_block", 0);
  say("sparse_score_type", "max");
  say("sparse_disable_index_value", Json(frequency->size(), 1));
  say("sparse_attention_freq", *std::move(frequency));
  return said;
}

// The gate of MiniMax-M3 has always been the clamped one, and that of Gemma GELU by tanh.
Translated older_gates(const Json& keys) {
  constexpr const char* kGate = "hidden_act";
  struct Gate {
    std::string_view model_type, said, meant;
  };
  constexpr std::array kGates = {Gate{"minimax_m3_vl", "silu", "swigluoai"},
                                 Gate{"gemma", "gelu", "gelu_pytorch_tanh"}};
  const auto gate = std::ranges::find_if(kGates, [&](const Gate& one) {
    return is_of(keys, one.model_type) && json_member(keys, kGate) == one.said;
  });
  if (gate == kGates.end()) return std::nullopt;
  return Translation{{{kGate, gate->meant}}, {}, /*is_rule=*/true};
}

// Nemotron-H: a letter for each layer, of the model or of a step of prediction.
template <bool IsOfStep>
Translated layer_letters(const Json& keys) {
  constexpr const char* kWord = IsOfStep ? "mtp_layers_block_type" : "layers_block_type";
  constexpr const char* kPattern =
      IsOfStep ? "mtp_hybrid_override_pattern" : "hybrid_override_pattern";
  const std::array<std::pair<std::string_view, Json>, 7> words = {{{"mamba", "M"},
                                                                   {kLinearType, "M"},
                                                                   {"attention", "*"},
                                                                   {kFull, "*"},
                                                                   {"moe", "E"},
                                                                   {"mlp", "-"},
                                                                   {"dense", "-"}}};
  const std::optional<Json> letters = translated(json_member(keys, kWord), words);
  if (!letters) return std::nullopt;
  std::string text;
  for (const Json& letter : *letters) text += letter.get_ref<const std::string&>();
  Translation said{{{kPattern, std::move(text)}}, {kWord}};
  if (!IsOfStep) said.values.emplace_back("num_hidden_layers", letters->size());
  return said;
}

// Step: layers with a window have heads of their own.
Translated sliding_heads(const Json& keys) {
  constexpr const char *kOther = "attention_other_setting", *kHeads = "num_sliding_attention_heads";
  const Json& heads = json_member(keys, kHeads);
  if (heads.is_null() || !json_member(keys, kLayerTypes).is_array()) return std::nullopt;
  // Layers in which they are other heads again have no words there.
  for (const auto& [layer, own] : json_member(keys, kByLayer).items()) {
    if (own != Json{{"num_attention_heads", heads}}) return std::nullopt;
  }
  Translation said{{}, {kByLayer, kHeads}};
  const auto say = [&](std::string_view key, const Json& value) {
    said.values.emplace_back(fmt::format("{}.{}", kOther, key), value);
  };
  say("num_attention_heads", heads);
  if (keys.contains(kOther)) return said;
  say("attention_type", kSliding);
  say("num_attention_groups", json_member(keys, spelling_in(keys, "num_key_value_heads")));
  say("head_dim", json_member(keys, "head_dim"));
  return said;
}

// Gemma 4: layers with full attention have heads of their own.
Translated full_heads(const Json& keys) {
  constexpr std::array kWords = {std::pair("head_dim", "global_head_dim"),
                                 std::pair("num_key_value_heads", "num_global_key_value_heads")};
  const Json& by_layer = json_member(keys, kByLayer);
  const Json& types = json_member(keys, kLayerTypes);
  if (!by_layer.is_object() || by_layer.empty() || !types.is_array()) return std::nullopt;
  const Json& own = by_layer.front();
  std::size_t n_full = 0;
  // Full layers that differ from each other have no words there.
  for (std::size_t i = 0; i < types.size(); ++i) {
    const bool is_full = types[i] == kFull;
    if (json_member(by_layer, std::to_string(i).c_str()) != (is_full ? own : Json()))
      return std::nullopt;
    n_full += is_full;
  }
  Translation said{{}, {kByLayer}};
  for (const auto& [key, released] : kWords) {
    if (own.is_object() && own.contains(key)) said.values.emplace_back(released, own.at(key));
  }
  if (n_full != by_layer.size() || said.values.size() != own.size() || said.values.empty())
    return std::nullopt;
  return said;
}

// Gemma 4: the model's class gives every sixth layer full attention where no list says otherwise,
// and the last one whatever the list says.
Translated full_last_layer(const Json& keys) {
  constexpr std::uint64_t kEvery = 6;
  if (!is_of(keys, "gemma4") && !is_of(keys, "gemma4_unified")) return std::nullopt;
  const auto n_layers = whole_number(json_member(keys, "num_hidden_layers"), kMostLayers);
  Json types = json_member(keys, kLayerTypes);
  const bool is_said = !types.is_null();
  if (!is_said && n_layers) types = types_by_step(*n_layers, kEvery);
  if (!types.is_array() || types.empty() || (is_said && types.back() != kSliding))
    return std::nullopt;
  types.back() = kFull;
  return Translation{{{kLayerTypes, std::move(types)}}, {}, /*is_rule=*/true};
}

// Step: rope of each layer.
Translated rope_by_layer(const Json& keys) {
  const Json& rope = json_member(keys, kRope);
  const Json &full = json_member(rope, kFull), &sliding = json_member(rope, kSliding);
  if (json_member(keys, "attention_other_setting").is_null() || !full.is_object() ||
      (!sliding.is_null() && !sliding.is_object()) || !is_plain_value(sliding))
    return std::nullopt;
  Translation said{{}, {kRope}};
  for (const auto& [own, released] :
       {std::pair("rope_theta", "rope_theta"),
        std::pair("partial_rotary_factor", "partial_rotary_factors")}) {
    const std::array<std::pair<std::string_view, Json>, 2> words = {
        {{kFull, json_member(full, own)}, {kSliding, json_member(sliding, own)}}};
    std::optional<Json> list = translated(json_member(keys, kLayerTypes), words);
    if (!list) return std::nullopt;
    if (std::ranges::all_of(*list, &Json::is_null)) continue;
    // Without a part all of a head is rotated.
    for (Json& one : *list) one = one.is_null() ? Json(1.0) : std::move(one);
    said.values.emplace_back(released, *std::move(list));
  }
  if (!is_plain_value(full)) said.values.emplace_back("rope_scaling", scaling_of(full));
  return said;
}

// MiMo: a 1 for each layer with a window, which has twice the key heads; and the rope of both.
Translated mimo_windows(const Json& keys) {
  const std::array<std::pair<std::string_view, Json>, 2> words = {{{kFull, 0}, {kSliding, 1}}};
  std::optional<Json> pattern = translated(json_member(keys, kLayerTypes), words);
  if (!is_of(keys, "mimo_v2_flash") || !pattern) return std::nullopt;
  Translation said{{{"hybrid_layer_pattern", *std::move(pattern)}}, {kLayerTypes}};
  const auto heads =
      whole_number(json_member(keys, spelling_in(keys, "num_key_value_heads")), kMostLayers);
  if (heads) said.values.emplace_back("swa_num_key_value_heads", 2 * *heads);
  return said;
}

Translated mimo_mixtures(const Json& keys) {
  const std::array<std::pair<std::string_view, Json>, 2> words = {{{"dense", 0}, {"sparse", 1}}};
  std::optional<Json> mixtures = translated(json_member(keys, kMlpTypes), words);
  if (!is_of(keys, "mimo_v2_flash") || !mixtures) return std::nullopt;
  return Translation{{{"moe_layer_freq", *std::move(mixtures)}}, {kMlpTypes}};
}

Translated mimo_ropes(const Json& keys) {
  constexpr const char* kPart = "partial_rotary_factor";
  const Json& rope = json_member(keys, kRope);
  const Json &full = json_member(rope, kFull), &sliding = json_member(rope, kSliding);
  if (!is_of(keys, "mimo_v2_flash") || !rope.is_object() || !is_plain_value(full) ||
      !is_plain_value(sliding) || (full.is_null() && sliding.is_null()))
    return std::nullopt;
  const Json& part = json_member(full.is_null() ? sliding : full, kPart);
  if (!full.is_null() && !sliding.is_null() && json_member(sliding, kPart) != part)
    return std::nullopt;
  Translation said{{}, {kRope}};
  const auto say = [&](const char* key, const Json& value) {
    if (!value.is_null()) said.values.emplace_back(key, value);
  };
  say("rope_theta", json_member(full, "rope_theta"));
  say("swa_rope_theta", json_member(sliding, "rope_theta"));
  say(kPart, part);
  return said;
}

// Translates MiMo's window: its class counts the token itself in `sliding_window`, and saves the
// number of earlier tokens next to it.
Translated mimo_window(const Json& keys) {
  constexpr const char* kWindow = "sliding_window";
  const Json& size = json_member(keys, "sliding_window_size");
  const auto before = whole_number(size, ConfigKeys::kMaxCount);
  if (!is_of(keys, "mimo_v2_flash") || !before || json_member(keys, kWindow) != *before + 1)
    return std::nullopt;
  return Translation{{{kWindow, size}}, {}, /*is_rule=*/true};
}

// Kimi Linear: the numbers of its layers, counted from 1, by kind.
Translated listed_layers(const Json& keys) {
  const Json& types = json_member(keys, kLayerTypes);
  if (!is_of(keys, "kimi_linear") || !types.is_array()) return std::nullopt;
  Json linear = Json::array(), full = Json::array();
  for (std::size_t i = 0; i < types.size(); ++i) {
    if (types[i] != kLinearType && types[i] != kFull) return std::nullopt;
    (types[i] == kLinearType ? linear : full).push_back(i + 1);
  }
  return Translation{{{"linear_attn_config.kda_layers", std::move(linear)},
                      {"linear_attn_config.full_attn_layers", std::move(full)}},
                     {kLayerTypes}};
}

// Words of linear attention that have other names in releases.
Translated linear_words(const Json& keys) {
  struct Renamed {
    std::string_view model_type;
    const char *word, *released;
  };
  constexpr const char *kWidth = "linear_head_dim", *kHeads = "linear_num_heads",
                       *kKernel = "linear_conv_kernel_dim";
  constexpr const char *kOwnWidth = "linear_attn_config.head_dim",
                       *kOwnHeads = "linear_attn_config.num_heads",
                       *kOwnKernel = "linear_attn_config.short_conv_kernel_size";
  constexpr std::array kRows = {
      Renamed{"kimi_linear", kWidth, kOwnWidth},
      Renamed{"kimi_linear", kHeads, kOwnHeads},
      Renamed{"kimi_linear", kKernel, kOwnKernel},
      Renamed{"glm5_next", kWidth, kOwnWidth},
      Renamed{"glm5_next", kHeads, kOwnHeads},
      Renamed{"glm5_next", kKernel, kOwnKernel},
      Renamed{"glm5_next", "linear_lower_bound", "linear_attn_config.gate_lower_bound"},
      Renamed{"bailing_hybrid", kHeads, "num_attention_heads"},
      Renamed{"bailing_hybrid", kKernel, "short_conv_kernel_size"}};
  Translation said{{}, {}, /*is_rule=*/false, /*are_apart=*/true};
  for (const auto& [model_type, word, released] : kRows) {
    const Json& value = json_member(keys, word);
    if (value.is_null() || !is_of(keys, model_type)) continue;
    said.values.emplace_back(released, value);
    said.words.push_back(word);
  }
  // The gate is the safe one if the config has a lower bound.
  const auto bound = keys.find("linear_lower_bound");
  if (is_of(keys, "glm5_next") && bound != keys.end())
    said.values.emplace_back("linear_attn_config.safe_gate", !bound->is_null());
  return said.values.empty() ? std::nullopt : Translated(std::move(said));
}

// Ling 3: the model's class puts the rotated part of a head where releases have the width of a
// linear one.
Translated linear_head_of_ling(const Json& keys) {
  constexpr const char *kWidth = "linear_head_dim", *kHead = "head_dim";
  const Json& width = json_member(keys, kWidth);
  if (!is_of(keys, "bailing_hybrid") || width.is_null()) return std::nullopt;
  const bool is_rotated = json_member(keys, kHead) == json_member(keys, "qk_rope_head_dim");
  return Translation{{{kHead, width}}, {kWidth}, is_rotated};
}

// Beam, Dots 3 and Muse: the list of layers with full attention that their classes make where a
// config has none. Muse counts from the last layer, and gives layers with full attention no rope.
Translated types_of_class(const Json& keys) {
  struct Class {
    std::string_view model_type;
    bool (*is_full)(std::uint64_t layer, std::uint64_t n_layers);
    bool says_bases = false;  ///< `layer_rope_theta` is 0 in these layers
  };
  constexpr auto kOfBeam = [](std::uint64_t i, std::uint64_t n) {
    return (i + 1) % 6 == 0 || i + 1 == n;
  };
  constexpr auto kOfDots = [](std::uint64_t i, std::uint64_t) { return i < 2 || i % 4 == 1; };
  constexpr auto kOfMuse = [](std::uint64_t i, std::uint64_t n) { return (n - 1 - i) % 4 == 0; };
  constexpr std::array kClasses = {Class{"beam", kOfBeam}, Class{"dots3_note", kOfDots},
                                   Class{"muse_glimmer", kOfMuse, true},
                                   Class{"muse_spark", kOfMuse, true}};
  constexpr const char* kBases = "layer_rope_theta";
  const auto found =
      std::ranges::find_if(kClasses, [&](const Class& one) { return is_of(keys, one.model_type); });
  const auto n_layers = whole_number(json_member(keys, "num_hidden_layers"), kMostLayers);
  if (found == kClasses.end() || !n_layers) return std::nullopt;
  const bool has_windows = json_member(keys, "use_sliding_window") != false;
  Json types = Json::array(), bases = Json::array();
  for (std::uint64_t i = 0; i < *n_layers; ++i) {
    const bool is_full = found->is_full(i, *n_layers);
    types.push_back(is_full || !has_windows ? kFull : kSliding);
    bases.push_back(is_full ? 0 : 1);
  }
  Translation said{{}, {}, /*is_rule=*/true};
  if (json_member(keys, kLayerTypes).is_null()) said.values.emplace_back(kLayerTypes, types);
  if (found->says_bases && json_member(keys, kBases).is_null())
    said.values.emplace_back(kBases, bases);
  return said.values.empty() ? std::nullopt : Translated(std::move(said));
}

// Inkling 2: the kinds of the layers behind each one, whose queries of sources have its number.
Translated next_types(const Json& keys) {
  const Json& types = json_member(keys, kLayerTypes);
  if ((!is_of(keys, "inkling2") && !is_of(keys, "inkling2_loop")) || !types.is_array() ||
      types.empty())
    return std::nullopt;
  return Translation{{{"next_layer_types", Json(types.begin() + 1, types.end())}},
                     {},
                     /*is_rule=*/true};
}

// Dots 3: layers with windows have heads and ranks of their own, the others an indexer.
Translated dots_layers(const Json& keys) {
  constexpr std::array kOwnKeys = {
      "num_attention_heads", "num_key_value_heads", "q_lora_rank", "kv_lora_rank", "head_dim",
      "qk_nope_head_dim",    "qk_rope_head_dim",    "v_head_dim"};
  constexpr const char *kWithIndexer = "indexed_attention", *kWindowWord = "sliding_window",
                       *kSharedWord = "shared_experts_intermediate_size";
  const std::array<std::pair<std::string_view, Json>, 2> words = {
      {{kWithIndexer, kFull}, {kSliding, kSliding}}};
  std::optional<Json> types = translated(json_member(keys, kLayerTypes), words);
  const Json& by_layer = json_member(keys, kByLayer);
  if (!is_of(keys, "dots3_note") || !types || !by_layer.is_object()) return std::nullopt;
  for (const auto& [layer, own] : by_layer.items()) {
    if (!own.is_object() || own != by_layer.front()) return std::nullopt;
  }
  Translation said{{{kLayerTypes, *std::move(types)}}, {kByLayer}, /*is_rule=*/true};
  const auto say = [&](const std::string& released, const Json& value, const char* word) {
    if (value.is_null()) return;
    said.values.emplace_back(released, value);
    if (word != nullptr) said.words.push_back(word);
  };
  for (const char* key : kOwnKeys) {
    if (!by_layer.empty())
      say(fmt::format("swa_{}", key), json_member(by_layer.front(), key), nullptr);
  }
  say("sliding_window_size", json_member(keys, kWindowWord), kWindowWord);
  say("moe_shared_expert_intermediate_size", json_member(keys, kSharedWord), kSharedWord);
  const Json& rope = json_member(keys, kRope);
  const Json &full = json_member(rope, kWithIndexer), &sliding = json_member(rope, kSliding);
  if (!is_plain_value(full) || !is_plain_value(sliding)) return std::nullopt;
  say("rope_theta", json_member(full, "rope_theta"), kRope);
  say("swa_rope_theta", json_member(sliding, "rope_theta"), nullptr);
  return said;
}

// Command A+: the dense layers at the front have a pattern of their own, where no list says more.
Translated windows_by_two_patterns(const Json& keys) {
  const auto number = [&](const char* key, std::uint64_t if_missing) {
    return whole_number(json_member(keys, key), kMostLayers).value_or(if_missing);
  };
  const std::uint64_t n_layers = number("num_hidden_layers", 0);
  const std::uint64_t every = number("sliding_window_pattern", 4);
  const std::uint64_t first_every = number("prefix_dense_sliding_window_pattern", 1);
  const std::uint64_t n_first = std::min(number("first_k_dense_replace", 0), n_layers);
  if (!is_of(keys, "cohere2_moe") || !json_member(keys, kLayerTypes).is_null() || every == 0 ||
      first_every == 0)
    return std::nullopt;
  Json types = types_by_step(n_first, first_every);
  for (const Json& type : types_by_step(n_layers - n_first, every)) types.push_back(type);
  return Translation{{{kLayerTypes, std::move(types)}}, {}, /*is_rule=*/true};
}

// Gemma, Cohere, Trinity: every so many layers the last has full attention.
Translated windows_by_pattern(const Json& keys) {
  if (is_of(keys, "cohere2_moe")) return std::nullopt;
  constexpr std::array kPatterns = {"sliding_window_pattern", "_sliding_window_pattern",
                                    "global_attn_every_n_layers"};
  const char* key = *std::ranges::find_if(kPatterns.begin(), kPatterns.end() - 1,
                                          [&](const char* one) { return keys.contains(one); });
  const auto every = whole_number(json_member(keys, key), kMostLayers);
  const auto n_layers =
      whole_number(json_member(keys, spelling_in(keys, "num_hidden_layers")), kMostLayers);
  if (!every || *every == 0 || !n_layers) return std::nullopt;
  return Translation{{{kLayerTypes, types_by_step(*n_layers, *every)}}, {key}};
}

// K-EXAONE: the list of dense and sparse layers, which its class makes of either of two other keys.
Translated kinds_of_mlp(const Json& keys) {
  const auto n_layers = whole_number(json_member(keys, "num_hidden_layers"), kMostLayers);
  if (!is_of(keys, "exaone_moe") || !n_layers) return std::nullopt;
  const Json& listed = json_member(keys, "is_moe_layer");
  const Json& n_dense = json_member(keys, "first_k_dense_replace");
  const bool is_listed = listed.is_array() && listed.size() == *n_layers;
  if (!is_listed && n_dense.is_null() && keys.contains(kMlpTypes)) return std::nullopt;
  const std::uint64_t first = whole_number(n_dense, kMostLayers).value_or(1);
  Json types = Json::array();
  for (std::uint64_t i = 0; i < *n_layers; ++i)
    types.push_back((is_listed ? listed[i] == true : i >= first) ? "sparse" : "dense");
  const char* word = is_listed ? "is_moe_layer" : "first_k_dense_replace";
  return Translation{{{kMlpTypes, std::move(types)}},
                     {word},
                     /*is_rule=*/false,
                     /*are_apart=*/false,
                     /*stay=*/true};
}

// Jamba, Granite 4: widths of state spaces that follow from others.
Translated automatic_widths(const Json& keys) {
  constexpr const char *kRank = "mamba_dt_rank", *kHead = "mamba_d_head";
  const auto number = [&](const char* key) {
    return whole_number(json_member(keys, key), ConfigKeys::kMaxCount).value_or(0);
  };
  const Json automatic = "auto";
  const std::uint64_t hidden = number("hidden_size"), heads = number("mamba_n_heads");
  Translation said{{}, {}, /*is_rule=*/true};
  if (json_member(keys, kRank) == automatic) said.values.emplace_back(kRank, (hidden + 15) / 16);
  if (json_member(keys, kHead) == automatic && heads != 0)
    said.values.emplace_back(kHead, number("mamba_expand") * hidden / heads);
  return said.values.empty() ? std::nullopt : Translated(std::move(said));
}

// DBRX: keys of attention and experts are in objects of their own.
Translated inner_objects(const Json& keys) {
  struct Inner {
    const char *object, *key, *usual;
  };
  constexpr std::array kInner = {Inner{"attn_config", "kv_n_heads", "num_key_value_heads"},
                                 Inner{"attn_config", "rope_theta", "rope_theta"},
                                 Inner{"ffn_config", "moe_num_experts", "n_routed_experts"},
                                 Inner{"ffn_config", "moe_top_k", "num_experts_per_tok"},
                                 Inner{"ffn_config", "ffn_hidden_size", "moe_intermediate_size"}};
  Translation said{{}, {}, /*is_rule=*/false, /*are_apart=*/true, /*stay=*/true};
  for (const auto& [object, key, usual] : kInner) {
    const Json& value = json_member(json_member(keys, object), key);
    if (value.is_null()) continue;
    const bool is_in_rope = usual == std::string_view("rope_theta") &&
                            !json_member(json_member(keys, kRope), usual).is_null();
    said.values.emplace_back(
        is_in_rope ? fmt::format("{}.{}", kRope, usual) : spelling_in(keys, usual), value);
    if (std::ranges::find(said.words, std::string_view(object)) == said.words.end())
      said.words.push_back(object);
  }
  return said.values.empty() ? std::nullopt : Translated(std::move(said));
}

// Flint: kinds of attention, and dense layers, where no list says which.
Translated layers_of_flint(const Json& keys) {
  constexpr const char* kDense = "mlp_only_layers";
  const auto n_layers = whole_number(json_member(keys, "num_hidden_layers"), kMostLayers);
  if (!is_of(keys, "flint") || !n_layers) return std::nullopt;
  Json types = Json::array(), dense = Json::array();
  for (std::uint64_t i = 0; i < *n_layers; ++i) {
    types.push_back(i < 2 || i % 4 == 1 || i + 1 == *n_layers ? kFull : kSliding);
    if (i < 2) dense.push_back(i);
  }
  Translation said{{}, {}};
  if (json_member(keys, kLayerTypes).is_null())
    said.values.emplace_back(kLayerTypes, std::move(types));
  if (json_member(keys, kDense).is_null()) said.values.emplace_back(kDense, std::move(dense));
  return said.values.empty() ? std::nullopt : Translated(std::move(said));
}

// LFM2, GigaChat 3.5: numbers of the layers with attention. Without them all have it, or none.
Translated attention_by_number(const Json& keys) {
  struct Way {
    const char *model_type, *numbers;
    std::string_view other;
    bool is_full_without;
  };
  constexpr std::array kWays = {Way{"lfm2", "full_attn_idxs", "conv", true},
                                Way{"gigachat3_5", "full_attention_layers", kLinearType, false}};
  const auto way =
      std::ranges::find_if(kWays, [&](const Way& each) { return is_of(keys, each.model_type); });
  const auto n_layers = whole_number(json_member(keys, "num_hidden_layers"), kMostLayers);
  if (way == kWays.end() || !n_layers || !json_member(keys, kLayerTypes).is_null())
    return std::nullopt;
  const Json& numbers = json_member(keys, way->numbers);
  Json types = Json::array();
  for (std::uint64_t i = 0; i < *n_layers; ++i) {
    const bool is_full = numbers.is_array() ? std::ranges::find(numbers, Json(i)) != numbers.end()
                                            : way->is_full_without;
    types.push_back(is_full ? kFull : way->other);
  }
  return Translation{{{kLayerTypes, std::move(types)}}, {way->numbers}};
}

// LFM2: the width of MLPs is two thirds of what the config says, times a factor and up to a
// multiple.
Translated adjusted_width(const Json& keys) {
  constexpr const char *kIs = "block_auto_adjust_ff_dim", *kWidth = "intermediate_size",
                       *kOwn = "block_ff_dim", *kFactor = "block_ffn_dim_multiplier",
                       *kStep = "block_multiple_of";
  if (!is_of(keys, "lfm2")) return std::nullopt;
  const Json& own = json_member(keys, kOwn);
  const auto said =
      whole_number(own.is_null() ? json_member(keys, kWidth) : own, ConfigKeys::kMaxWidth);
  if (!said || (own.is_null() && json_member(keys, kIs) != true)) return std::nullopt;
  if (json_member(keys, kIs) != true)
    return Translation{{{kWidth, *said}}, {kOwn}, /*is_rule=*/true};
  std::uint64_t width = 2 * *said / 3;
  const Json factor = keys.contains(kFactor) ? keys.at(kFactor) : Json(1.0);
  const auto step = whole_number(json_member(keys, kStep), ConfigKeys::kMaxWidth).value_or(256);
  if (factor.is_number() && factor >= 0 && factor <= 1e6 && step > 0) {
    width = static_cast<std::uint64_t>(factor.get<double>() * static_cast<double>(width));
    width = (width + step - 1) / step * step;
  }
  return Translation{{{kWidth, width}, {kIs, false}}, {kOwn}, /*is_rule=*/true};
}

// Qwen2, Qwen3, SmolLM3: windows that a switch gives to later layers, or to those without
// positions; in Qwen2 MoE to every other one of the first.
Translated switched_windows(const Json& keys) {
  // The first layer with a window where the config does not say which.
  constexpr std::array kLater = {std::pair("qwen2", 28U), std::pair("qwen3", 28U),
                                 std::pair("qwen2_vl", 80U), std::pair("qwen2_5_vl", 80U)};
  const auto number = [&](const char* key, std::uint64_t if_missing) {
    return whole_number(json_member(keys, key), kMostLayers).value_or(if_missing);
  };
  const auto later =
      std::ranges::find_if(kLater, [&](const auto& row) { return is_of(keys, row.first); });
  const bool is_later = later != kLater.end();
  const std::uint64_t n_layers = number("num_hidden_layers", 0);
  const bool is_turned = is_of(keys, "qwen2_moe");
  if ((!is_later && !is_turned && !is_of(keys, "smollm3")) ||
      json_member(keys, "use_sliding_window") != true ||
      json_member(keys, "sliding_window").is_null() || !json_member(keys, kLayerTypes).is_null())
    return std::nullopt;
  const Json& rope = json_member(keys, "no_rope_layers");
  const std::uint64_t every = std::max<std::uint64_t>(number("no_rope_layer_interval", 4), 1);
  Json types = Json::array();
  for (std::uint64_t i = 0; i < n_layers; ++i) {
    const bool has_rope = rope.is_array() && i < rope.size() ? rope[i] != 0 : (i + 1) % every != 0;
    const bool is_near = is_turned  ? i % 2 == 0 && i < number("max_window_layers", 28)
                         : is_later ? i >= number("max_window_layers", later->second)
                                    : !has_rope;
    types.push_back(is_near ? kSliding : kFull);
  }
  return Translation{{{kLayerTypes, std::move(types)}}, {}, /*is_rule=*/true};
}

// OLMo Hybrid: layers have no positions where the base of rope is null.
Translated null_theta(const Json& keys) {
  const Json& rope = json_member(keys, kRope);
  const auto theta = rope.is_object() ? rope.find("rope_theta") : rope.end();
  if (!is_of(keys, "olmo_hybrid") || theta == rope.end() || !theta->is_null()) return std::nullopt;
  return Translation{{{"has_rope", false}}, {}, /*is_rule=*/true};
}

constexpr std::array kTranslations = {compress_ratios,     hash_layers,
                                      two_ropes,           sparse_blocks,
                                      older_gates,         layer_letters<false>,
                                      layer_letters<true>, sliding_heads,
                                      full_heads,          full_last_layer,
                                      rope_by_layer,       mimo_windows,
                                      mimo_mixtures,       mimo_ropes,
                                      mimo_window,         listed_layers,
                                      linear_words,        linear_head_of_ling,
                                      next_types,          dots_layers,
                                      types_of_class,      windows_by_two_patterns,
                                      windows_by_pattern,  kinds_of_mlp,
                                      automatic_widths,    inner_objects,
                                      layers_of_flint,     attention_by_number,
                                      adjusted_width,      null_theta,
                                      switched_windows};

const Json& value_at(const Json& keys, std::string_view path) {
  const std::size_t dot = path.find('.');
  const Json& value = json_member(keys, path.substr(0, dot));
  return dot == std::string_view::npos ? value : value_at(value, path.substr(dot + 1));
}

/// False where a key on the way is no object.
bool set_at(Json& keys, std::string_view path, const Json& value) {
  const std::size_t dot = path.find('.');
  if (!keys.is_object() && !keys.is_null()) return false;
  Json& inner = keys[std::string(path.substr(0, dot))];
  if (dot != std::string_view::npos) return set_at(inner, path.substr(dot + 1), value);
  inner = value;
  return true;
}

/// A list of layers may go on over those of prediction.
bool agree(const Json& one, const Json& other) {
  if (one == other) return true;
  if (!one.is_array() || !other.is_array() || one.empty() || other.empty()) return false;
  const auto n = static_cast<Json::difference_type>(std::min(one.size(), other.size()));
  return std::equal(one.begin(), one.begin() + n, other.begin());
}

}  // namespace

bool use_released_words(Json& keys, std::vector<TwoSpellings>* contradictions) {
  if (!keys.is_object()) return false;
  bool is_changed = false;
  for (const auto translate : kTranslations) {
    Translated said = translate(keys);
    if (!said) continue;
    std::size_t n_known = 0;
    std::erase_if(said->values, [&](const auto& one) {
      const Json& known = value_at(keys, one.first);
      if (known.is_null() || said->is_rule || agree(known, one.second)) return false;
      ++n_known;
      if (contradictions != nullptr)
        contradictions->push_back(
            {one.first, known, fmt::to_string(fmt::join(said->words, ", ")), one.second});
      return true;
    });
    if (n_known > 0 && !said->are_apart) continue;
    for (const auto& [path, value] : said->values) {
      if (said->is_rule || value_at(keys, path).is_null()) is_changed |= set_at(keys, path, value);
    }
    if (n_known > 0 || said->stay) continue;
    for (const char* word : said->words) is_changed |= keys.erase(word) > 0;
  }
  return is_changed;
}

}  // namespace ingot::formats
