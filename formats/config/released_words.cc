#include "formats/config/released_words.h"

#include <algorithm>
#include <array>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "formats/config/keys.h"
#include "formats/json/json.h"
#include "formats/json/json_fields.h"

namespace ingot::formats {
namespace {

constexpr const char* kLayerTypes = "layer_types";
constexpr const char* kRope = "rope_parameters";
constexpr std::uint64_t kMostLayers = std::uint64_t{1} << 16;  // that get a list
constexpr const char *kSliding = "sliding_attention", *kFull = "full_attention";

/// Sliding layers, and every so many layers one with full attention.
Json types_by_step(std::uint64_t n_layers, std::uint64_t every) {
  Json types = Json::array();
  for (std::uint64_t i = 1; i <= n_layers; ++i) types.push_back(i % every == 0 ? kFull : kSliding);
  return types;
}

void erase(Json& keys, std::initializer_list<const char*> names) {
  for (const char* name : names) keys.erase(name);
}

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

// DeepSeek-V4: how many tokens an entry of each kind of layer represents.
bool compress_ratios(Json& keys) {
  constexpr const char *kRates = "compress_rates", *kRatios = "compress_ratios";
  constexpr const char *kShort = "compressed_sparse_attention",
                       *kLong = "heavily_compressed_attention";
  const Json& rates = json_member(keys, kRates);
  if (!rates.is_object() || keys.contains(kRatios)) return false;
  const std::array<std::pair<std::string_view, Json>, 3> words = {
      {{kSliding, 0}, {kShort, json_member(rates, kShort)}, {kLong, json_member(rates, kLong)}}};
  std::optional<Json> ratios = translated(json_member(keys, kLayerTypes), words);
  if (!ratios) return false;
  erase(keys, {kRates, kLayerTypes});
  keys[kRatios] = *std::move(ratios);
  return true;
}

// DeepSeek-V4: the first layers have a table in place of a router.
bool hash_layers(Json& keys) {
  constexpr const char *kTypes = "mlp_layer_types", *kCount = "num_hash_layers";
  constexpr std::string_view kHash = "hash_moe";
  const std::array<std::pair<std::string_view, Json>, 2> words = {{{kHash, 1}, {"moe", 0}}};
  const std::optional<Json> has_table = translated(json_member(keys, kTypes), words);
  if (!has_table || keys.contains(kCount) || !keys.contains("compress_ratios")) return false;
  if (!std::ranges::is_sorted(*has_table, std::ranges::greater())) return false;
  erase(keys, {kTypes});
  keys[kCount] = std::ranges::count(*has_table, Json(1));
  return true;
}

// Parameters of one kind of layers, without the keys that releases do not have there.
Json scaling_of(Json rope) {
  erase(rope, {"rope_theta", "partial_rotary_factor", "attention_factor"});
  return rope;
}

bool is_plain_value(const Json& rope) {
  const Json& type = json_member(rope, "rope_type");
  return type.is_null() || type == "default";
}

// DeepSeek-V4: plain for windows, stretched for compressed entries without an effect on magnitudes.
bool two_ropes(Json& keys) {
  constexpr const char* kPart = "partial_rotary_factor";
  const Json main = json_member(json_member(keys, kRope), "main");
  const Json compress = json_member(json_member(keys, kRope), "compress");
  if (!main.is_object() || !compress.is_object() || !is_plain_value(main)) return false;
  const Json& strength = json_member(compress, "attention_factor");
  if (!strength.is_null() && strength != 1) return false;
  const Json& whole = json_member(keys, "head_dim");
  const Json& part = json_member(keys, "qk_rope_head_dim");
  // It says again how much of a head is rotated.
  if (whole.is_number() && part.is_number() &&
      json_member(keys, kPart) == part.get<double>() / whole.get<double>())
    erase(keys, {kPart});
  erase(keys, {kRope});
  keys["rope_theta"] = json_member(main, "rope_theta");
  keys["compress_rope_theta"] = json_member(compress, "rope_theta");
  if (!is_plain_value(compress)) keys["rope_scaling"] = scaling_of(compress);
  return true;
}

// MiniMax-M3: layers that choose blocks. Its gate has always been the clamped one.
bool sparse_blocks(Json& keys) {
  constexpr const char* kSparse = "sparse_attention_config";
  constexpr const char *kTopk = "index_topk_blocks", *kSize = "index_block_size",
                       *kLocal = "index_local_blocks", *kHeads = "index_n_heads",
                       *kWidth = "index_head_dim";
  const std::array<std::pair<std::string_view, Json>, 2> words = {
      {{"full_attention", 0}, {"minimax_m3_sparse", 1}}};
  std::optional<Json> frequency = translated(json_member(keys, kLayerTypes), words);
  if (!frequency || json_member(keys, kTopk).is_null() || keys.contains(kSparse)) return false;
  const Json no_values(frequency->size(), 1);
  keys[kSparse] = {{"use_sparse_attention", true},
                   {"sparse_num_index_heads", json_member(keys, kHeads)},
                   {"sparse_index_dim", json_member(keys, kWidth)},
                   {"sparse_block_size", json_member(keys, kSize)},
                   {"sparse_topk_blocks", json_member(keys, kTopk)},
                   {"sparse_local_block", json_member(keys, kLocal)},
                   {"sparse_init_block", 0},
                   {"sparse_score_type", "max"},
                   {"sparse_attention_freq", *std::move(frequency)},
                   {"sparse_disable_index_value", no_values}};
  erase(keys, {kLayerTypes, kTopk, kSize, kLocal, kHeads, kWidth});
  keys["hidden_act"] = "swigluoai";
  return true;
}

// Nemotron-H: a letter for each layer.
bool layer_letters(Json& keys) {
  const std::array<std::pair<std::string_view, Json>, 7> words = {{{"mamba", "M"},
                                                                   {"linear_attention", "M"},
                                                                   {"attention", "*"},
                                                                   {"full_attention", "*"},
                                                                   {"moe", "E"},
                                                                   {"mlp", "-"},
                                                                   {"dense", "-"}}};
  bool is_changed = false;
  for (const char* step : {"", "mtp_"}) {
    const std::string listed = std::string(step) + "layers_block_type";
    const std::string pattern = std::string(step) + "hybrid_override_pattern";
    const std::optional<Json> letters = translated(json_member(keys, listed), words);
    if (!letters || !json_member(keys, pattern).is_null()) continue;
    std::string text;
    for (const Json& letter : *letters) text += letter.get_ref<const std::string&>();
    keys.erase(listed);
    keys[pattern] = std::move(text);
    if (*step == '\0' && json_member(keys, "num_hidden_layers").is_null())
      keys["num_hidden_layers"] = letters->size();
    is_changed = true;
  }
  return is_changed;
}

// Step: layers with a window have heads of their own.
bool sliding_heads(Json& keys) {
  constexpr const char *kOther = "attention_other_setting", *kByLayer = "per_layer_config",
                       *kHeads = "num_sliding_attention_heads";
  const Json heads = json_member(keys, kHeads);
  const Json& types = json_member(keys, kLayerTypes);
  if (heads.is_null() || !types.is_array() || keys.contains(kOther)) return false;
  // Layers in which they are other heads again have no words there.
  for (const auto& [layer, own] : json_member(keys, kByLayer).items()) {
    if (own != Json{{"num_attention_heads", heads}}) return false;
  }
  keys[kOther] = {{"attention_type", kSliding},
                  {"num_attention_heads", heads},
                  {"num_attention_groups", json_member(keys, "num_key_value_heads")},
                  {"head_dim", json_member(keys, "head_dim")}};
  erase(keys, {kByLayer, kHeads});
  return true;
}

// Gemma 4: layers with full attention have heads of their own.
bool full_heads(Json& keys) {
  constexpr const char* kByLayer = "per_layer_config";
  constexpr std::array kWords = {std::pair("head_dim", "global_head_dim"),
                                 std::pair("num_key_value_heads", "num_global_key_value_heads")};
  const Json by_layer = json_member(keys, kByLayer);
  const Json& types = json_member(keys, kLayerTypes);
  if (!by_layer.is_object() || by_layer.empty() || !types.is_array()) return false;
  const Json& own = by_layer.front();
  std::size_t n_full = 0, n_words = 0;
  // Full layers that differ from each other have no words there.
  for (std::size_t i = 0; i < types.size(); ++i) {
    const bool is_full = types[i] == kFull;
    if (json_member(by_layer, std::to_string(i).c_str()) != (is_full ? own : Json())) return false;
    n_full += is_full;
  }
  for (const auto& [key, released] : kWords)
    n_words += own.is_object() && own.contains(key) && !keys.contains(released);
  if (n_full != by_layer.size() || n_words != own.size() || n_words == 0) return false;
  for (const auto& [key, released] : kWords) {
    if (own.contains(key)) keys[released] = own.at(key);
  }
  erase(keys, {kByLayer});
  return true;
}

// Gemma 4: its class gives every sixth layer full attention where no list says otherwise, and the
// last one whatever the list says.
bool full_last_layer(Json& keys) {
  constexpr std::uint64_t kEvery = 6;
  const Json& type = json_member(keys, "model_type");
  if (type != "gemma4" && type != "gemma4_text") return false;
  const auto n_layers = whole_number(json_member(keys, "num_hidden_layers"), kMostLayers);
  const bool is_said = !json_member(keys, kLayerTypes).is_null();
  if (!is_said && n_layers) keys[kLayerTypes] = types_by_step(*n_layers, kEvery);
  const Json& types = json_member(keys, kLayerTypes);
  if (!types.is_array() || types.empty()) return false;
  if (types.back() != kSliding) return !is_said;
  keys[kLayerTypes].back() = kFull;
  return true;
}

// Step: rope of each layer.
bool rope_by_layer(Json& keys) {
  const Json rope = json_member(keys, kRope);
  const Json &full = json_member(rope, kFull), &sliding = json_member(rope, kSliding);
  if (json_member(keys, "attention_other_setting").is_null() || !full.is_object() ||
      !sliding.is_object() || !is_plain_value(sliding))
    return false;
  for (const auto& [own, released] :
       {std::pair("rope_theta", "rope_theta"),
        std::pair("partial_rotary_factor", "partial_rotary_factors")}) {
    const std::array<std::pair<std::string_view, Json>, 2> words = {
        {{kFull, json_member(full, own)}, {kSliding, json_member(sliding, own)}}};
    std::optional<Json> list = translated(json_member(keys, kLayerTypes), words);
    if (!list) return false;
    keys[released] = *std::move(list);
  }
  erase(keys, {kRope});
  if (!is_plain_value(full)) keys["rope_scaling"] = scaling_of(full);
  return true;
}

// Gemma, Cohere, Trinity: every so many layers the last has full attention.
bool windows_by_pattern(Json& keys) {
  constexpr std::array kPatterns = {"sliding_window_pattern", "_sliding_window_pattern",
                                    "global_attn_every_n_layers"};
  const char* key = *std::ranges::find_if(kPatterns.begin(), kPatterns.end() - 1,
                                          [&](const char* one) { return keys.contains(one); });
  const auto every = whole_number(json_member(keys, key), kMostLayers);
  const auto n_layers = whole_number(json_member(keys, "num_hidden_layers"), kMostLayers);
  if (!json_member(keys, kLayerTypes).is_null() || !every || *every == 0 || !n_layers) return false;
  erase(keys, {key});
  keys[kLayerTypes] = types_by_step(*n_layers, *every);
  return true;
}

// K-EXAONE: the list of dense and sparse layers, which its class makes of either of two other keys.
bool kinds_of_mlp(Json& keys) {
  constexpr const char* kTypes = "mlp_layer_types";
  const auto n_layers = whole_number(json_member(keys, "num_hidden_layers"), kMostLayers);
  if (json_member(keys, "model_type") != "exaone_moe" || !n_layers || keys.contains(kTypes))
    return false;
  const Json& listed = json_member(keys, "is_moe_layer");
  const Json& n_dense = json_member(keys, "first_k_dense_replace");
  const std::uint64_t first = whole_number(n_dense, kMostLayers).value_or(1);
  const bool is_listed = listed.is_array() && listed.size() == *n_layers;
  Json types = Json::array();
  for (std::uint64_t i = 0; i < *n_layers; ++i)
    types.push_back((is_listed ? listed[i] == true : i >= first) ? "sparse" : "dense");
  keys[kTypes] = std::move(types);
  return true;
}

// Jamba, Granite 4: widths of state spaces that follow from others.
bool automatic_widths(Json& keys) {
  constexpr const char *kRank = "mamba_dt_rank", *kHead = "mamba_d_head";
  const auto number = [&](const char* key) {
    return whole_number(json_member(keys, key), ConfigKeys::kMaxCount).value_or(0);
  };
  const Json automatic = "auto";
  const std::uint64_t hidden = number("hidden_size"), heads = number("mamba_n_heads");
  const bool has_rank = json_member(keys, kRank) == automatic;
  const bool has_head = json_member(keys, kHead) == automatic && heads != 0;
  if (has_rank) keys[kRank] = (hidden + 15) / 16;
  if (has_head) keys[kHead] = number("mamba_expand") * hidden / heads;
  return has_rank || has_head;
}

// DBRX: keys of attention and experts are in objects of their own.
bool inner_objects(Json& keys) {
  struct Inner {
    const char *object, *key, *usual;
  };
  constexpr std::array kInner = {Inner{"attn_config", "kv_n_heads", "num_key_value_heads"},
                                 Inner{"attn_config", "rope_theta", "rope_theta"},
                                 Inner{"ffn_config", "moe_num_experts", "n_routed_experts"},
                                 Inner{"ffn_config", "moe_top_k", "num_experts_per_tok"},
                                 Inner{"ffn_config", "ffn_hidden_size", "moe_intermediate_size"}};
  bool is_changed = false;
  for (const auto& [object, key, usual] : kInner) {
    const Json& value = json_member(json_member(keys, object), key);
    const bool is_rope = usual == std::string_view("rope_theta");
    const bool is_said =
        (is_rope && !json_member(json_member(keys, kRope), usual).is_null()) ||
        std::ranges::any_of(find_key(usual)->spellings, [&](const std::string& one) {
          return !json_member(keys, one.c_str()).is_null();
        });
    if (value.is_null() || is_said) continue;
    keys[usual] = Json(value);
    is_changed = true;
  }
  return is_changed;
}

}  // namespace

bool use_released_words(Json& keys) {
  if (!keys.is_object()) return false;
  bool is_changed = false;
  for (const auto translate :
       {compress_ratios, hash_layers, two_ropes, sparse_blocks, layer_letters, sliding_heads,
        full_last_layer, full_heads, rope_by_layer, windows_by_pattern, kinds_of_mlp,
        automatic_widths, inner_objects})
    is_changed |= translate(keys);
  return is_changed;
}

}  // namespace ingot::formats
