#include "formats/config/derived_keys.h"

#include <algorithm>
#include <array>
#include <string_view>

#include <fmt/format.h>

#include "formats/base/error.h"
#include "formats/json/json.h"

namespace ingot::formats {
namespace {

using Flags = std::vector<bool>;

template <typename Holds>
Flags layers_where(std::uint64_t n, const Holds& holds) {
  Flags flags;
  for (std::uint64_t layer = 0; layer < n; ++layer) flags.push_back(holds(layer));
  return flags;
}

void require_entries(const ConfigKeys& keys, const char* key, const Json& list, LayerCounts n) {
  if (is_per_layer(list, n)) return;
  keys.refuse(key, fmt::format("holds {} entries, num_hidden_layers is {}", list.size(), n.main));
}

/// transformers 5: "dense" or "sparse" per layer.
Flags mixtures_by_word(const ConfigKeys& keys, LayerCounts n) {
  constexpr const char* kKey = "mlp_layer_types";
  constexpr std::string_view kSparse = "sparse", kDense = "dense";
  const Json& types = *keys.list(kKey);
  require_entries(keys, kKey, types, n);
  return layers_where(n.main, [&](std::uint64_t layer) {
    if (types[layer] != kSparse && types[layer] != kDense) {
      keys.refuse(kKey,
                  fmt::format("has an entry for layer {} that is neither dense nor sparse", layer));
    }
    return types[layer] == kSparse;
  });
}

/// Llama 4 as transformers saves it: a list of the numbers of mixtures, from 0, whatever a step
/// says.
Flags mixtures_by_list(const ConfigKeys& keys, LayerCounts n) {
  constexpr const char* kKey = "moe_layers";
  Flags flags(static_cast<std::size_t>(n.main), false);
  for (const Json& entry : *keys.list(kKey)) {
    const auto layer =
        static_cast<std::size_t>(keys.fields().as_number(kKey, entry, ConfigKeys::kMaxCount));
    if (layer < flags.size()) flags[layer] = true;
  }
  return flags;
}

constexpr const char* kLlamaStep = "interleave_moe_layer_step";

/// Qwen3 and Llama 4: every step-th layer, counted from 1, except those listed.
Flags mixtures_by_step(const ConfigKeys& keys, LayerCounts n) {
  constexpr const char* kDense = "mlp_only_layers";
  const std::uint64_t step =
      keys.step(keys.find(kLlamaStep) != nullptr ? kLlamaStep : "decoder_sparse_step");
  Flags flags = layers_where(n.main, [&](std::uint64_t i) { return (i + 1) % step == 0; });
  const Json* dense = keys.list(kDense);
  for (const Json& entry : dense == nullptr ? Json::array() : *dense) {
    const std::uint64_t layer = keys.fields().as_number(kDense, entry, ConfigKeys::kMaxCount);
    if (layer >= n.main)
      keys.refuse(kDense, fmt::format("names layer {}, there are {}", layer, n.main));
    flags[static_cast<std::size_t>(layer)] = false;
  }
  return flags;
}

/// Nemotron-H: a letter per layer, E for experts.
Flags mixtures_by_letter(const ConfigKeys& keys, LayerCounts n) {
  constexpr const char* kKey = "hybrid_override_pattern";
  const std::string letters = keys.word(kKey);
  if (letters.size() < n.main) {
    keys.refuse(kKey,
                fmt::format("has {} letters, num_hidden_layers is {}", letters.size(), n.main));
  }
  return layers_where(n.main, [&](std::uint64_t layer) { return letters[layer] == 'E'; });
}

/// Step: the numbers of mixtures, in one text. MTP layers are dense unless the text has their
/// numbers.
Flags mixtures_by_number(const ConfigKeys& keys, LayerCounts n) {
  constexpr const char* kKey = "moe_layers_enum";
  Flags flags(static_cast<std::size_t>(n.main + n.mtp), false);
  const Json listed =
      Json::parse(fmt::format("[{}]", keys.word(kKey)), nullptr, /*allow_exceptions=*/false);
  if (!listed.is_array() || !std::ranges::all_of(listed, &Json::is_number_unsigned))
    keys.refuse(kKey, "is no list of layers");
  for (const Json& layer : listed) {
    if (const auto i = layer.get<std::size_t>(); i < flags.size()) flags[i] = true;
  }
  return flags;
}

/// ERNIE: every n-th layer, counted from 1, between two layer numbers.
Flags mixtures_by_range(const ConfigKeys& keys, LayerCounts n) {
  constexpr const char* kLast = "moe_layer_end_index";
  const std::uint64_t begin = keys.one("moe_layer_start_index");
  const Json* last = keys.find(kLast);
  const bool is_open = last == nullptr || *last == -1;
  const std::uint64_t end = is_open ? n.main : keys.one(kLast) + 1;
  const std::uint64_t every = keys.step("moe_layer_interval");
  return layers_where(n.main, [&](std::uint64_t layer) {
    return layer >= begin && layer < end && (layer + 1) % every == 0;
  });
}

/// DeepSeek, Kimi, GLM: dense at first, then every n-th layer; or, as a list, a 1 per mixture.
Flags mixtures_behind_dense(const ConfigKeys& keys, LayerCounts n) {
  constexpr const char* kFrequency = "moe_layer_freq";
  const std::uint64_t n_dense = keys.one("first_k_dense_replace");
  const Json* frequency = keys.find(kFrequency);
  if (frequency == nullptr || !frequency->is_array()) {
    const std::uint64_t every = keys.step(kFrequency);
    return layers_where(
        n.main, [&](std::uint64_t layer) { return layer >= n_dense && layer % every == 0; });
  }
  require_entries(keys, kFrequency, *frequency, n);
  return layers_where(n.main, [&](std::uint64_t layer) {
    return layer >= n_dense && keys.fields().as_number(kFrequency, (*frequency)[layer], 1) == 1;
  });
}

/// Jamba: one mixture in each period, unless there is only one expert.
Flags mixtures_by_period(const ConfigKeys& keys, LayerCounts n) {
  const std::uint64_t every = keys.step("expert_layer_period"),
                      place = keys.one("expert_layer_offset");
  const bool are_there = keys.one("n_routed_experts") > 1;
  return layers_where(n.main,
                      [&](std::uint64_t layer) { return are_there && layer % every == place; });
}

/// A way in which configs say which layers are mixtures.
struct MixtureWay {
  std::array<const char*, 3> keys;  ///< keys that each say it; some are null
  Flags (*read)(const ConfigKeys& keys, LayerCounts layers);
};
constexpr std::array kMixtureWays = {
    MixtureWay{{"mlp_layer_types"}, mixtures_by_word},
    MixtureWay{{"moe_layers"}, mixtures_by_list},
    MixtureWay{{"decoder_sparse_step", "mlp_only_layers", kLlamaStep}, mixtures_by_step},
    MixtureWay{{"hybrid_override_pattern"}, mixtures_by_letter},
    MixtureWay{{"moe_layers_enum"}, mixtures_by_number},
    MixtureWay{{"moe_layer_start_index"}, mixtures_by_range},
    MixtureWay{{"expert_layer_period", "expert_layer_offset"}, mixtures_by_period},
    MixtureWay{{"first_k_dense_replace", "moe_layer_freq"}, mixtures_behind_dense},
};

/// The first key of a way that the config has; null where it has none.
const char* key_in(const ConfigKeys& keys, const MixtureWay& way) {
  const auto key = std::ranges::find_if(
      way.keys, [&](const char* name) { return name != nullptr && keys.find(name) != nullptr; });
  return key == way.keys.end() ? nullptr : *key;
}

constexpr const char *kPeriod = "attn_layer_period", *kGroup = "layer_group_size",
                     *kInterval = "full_attention_interval";

/// Jamba's layers with attention: one of each period.
Flags linear_by_period(const ConfigKeys& keys, std::uint64_t n) {
  const std::uint64_t period = keys.step(kPeriod), place = keys.one("attn_layer_offset");
  return layers_where(n, [&](std::uint64_t i) { return i % period != place; });
}

/// All but every n-th layer: Qwen3-Next, Qwen3.5, Ling.
Flags linear_by_group(const ConfigKeys& keys, const char* key, std::uint64_t n) {
  const std::uint64_t every = keys.step(key, 4);
  // Ling's layers behind its last whole group have full attention.
  const std::uint64_t end = key == kGroup ? n / every * every : n;
  return layers_where(n, [&](std::uint64_t i) { return i < end && (i + 1) % every != 0; });
}

}  // namespace

std::uint64_t mtp_layer_count(const ConfigKeys& keys, std::uint64_t main_layers) {
  constexpr const char* kKey = "num_nextn_predict_layers";
  constexpr const char* kLetters = "mtp_hybrid_override_pattern";
  // Nemotron-H: a step of prediction is several layers, a letter each.
  const std::uint64_t of_step = std::max<std::uint64_t>(keys.word(kLetters).size(), 1);
  if (of_step > ConfigKeys::kMaxCount) keys.refuse(kLetters, "is beyond any model");
  const std::uint64_t n_layers = keys.one(kKey) * of_step;
  if (n_layers > ConfigKeys::kMaxCount) keys.refuse(kKey, "is beyond any model");
  // DeepSeek V4 with DSpark says 1 and has more, over which its list of layers goes on.
  const Json* ratios = keys.list("compress_ratios");
  if (ratios == nullptr || ratios->size() <= main_layers) return n_layers;
  const std::uint64_t n_drafts = ratios->size() - main_layers;
  if (n_drafts > ConfigKeys::kMaxCount) {
    throw Error(ErrorCode::kLimit, "'compress_ratios' has {} entries more than there are layers",
                n_drafts)
        .in_file("config.json");
  }
  return std::max(n_layers, n_drafts);
}

std::uint64_t usual_head_dim(std::uint64_t hidden_size, std::uint64_t n_heads) {
  return n_heads == 0 ? 0 : hidden_size / n_heads;
}

std::vector<bool> mixture_layers(const ConfigKeys& keys, LayerCounts layers, bool has_experts) {
  const auto way = std::ranges::find_if(
      kMixtureWays, [&](const MixtureWay& one) { return key_in(keys, one) != nullptr; });
  const bool is_listed = way == kMixtureWays.begin();
  if (!is_listed && (!has_experts || way == kMixtureWays.end()))
    return Flags(static_cast<std::size_t>(layers.main), has_experts);
  return way->read(keys, layers);
}

std::vector<MixturesByKey> mixtures_by_key(const ConfigKeys& keys) {
  std::vector<MixturesByKey> said;
  for (const MixtureWay& way : kMixtureWays) {
    const char* key = key_in(keys, way);
    if (key == nullptr) continue;
    // Saved by transformers 5, it has lost the dense layers before it, which are listed.
    if (key == std::string_view("moe_layer_freq") && keys.find("mlp_layer_types") != nullptr)
      continue;
    // Derived meanings take the usual spellings of their keys.
    const bool is_meaning =
        find_key(key)->sense == KeySense::kDerived && keys.spelling(key) == std::string_view(key);
    said.push_back({.key = keys.spelling(key), .is_meaning = is_meaning});
    try {
      const std::uint64_t n = keys.layers().main;
      said.back().layers = way.read(keys, {.main = n, .mtp = mtp_layer_count(keys, n)});
      said.back().layers.resize(static_cast<std::size_t>(n));
    } catch (const Error& error) {
      said.back().refusal = error.message();
    }
  }
  return said;
}

std::vector<bool> linear_layers(const ConfigKeys& keys, LayerCounts layers) {
  constexpr const char* kTypes = "layer_types";
  const Json linear = "linear_attention";
  const Json* types = keys.find(kTypes);
  const char* every_key = keys.find(kGroup) != nullptr ? kGroup : kInterval;
  const auto given = keys.fields().optional_number(every_key, ConfigKeys::kMaxCount);
  if (types != nullptr && types->is_array() && std::ranges::find(*types, linear) != types->end()) {
    require_entries(keys, kTypes, *types, layers);
    return layers_where(layers.main, [&](std::uint64_t i) { return (*types)[i] == linear; });
  }
  if (types == nullptr && keys.find(kPeriod) != nullptr) return linear_by_period(keys, layers.main);
  if (!given && keys.one("linear_num_value_heads") == 0) return {};
  if (types != nullptr) return Flags(static_cast<std::size_t>(layers.main), false);
  return linear_by_group(keys, every_key, layers.main);
}

std::optional<LayersByStep> linear_layers_by_step(const ConfigKeys& keys) {
  for (const char* key : {kPeriod, kGroup, kInterval}) {
    if (keys.find(key) == nullptr) continue;
    const std::uint64_t n = keys.layers().main;
    try {
      return LayersByStep{
          .key = key,
          .layers = key == kPeriod ? linear_by_period(keys, n) : linear_by_group(keys, key, n)};
    } catch (const Error&) {
      return std::nullopt;  // an invalid config has been refused earlier
    }
  }
  return std::nullopt;
}

OwnIndexer own_indexer(const Json& keys, std::uint64_t layer, bool knows_types) {
  const auto by_entry = [&](const char* key, std::string_view own, std::string_view shared) {
    const std::string entry = entry_of(json_member(keys, key), layer);
    const bool is_known = entry == own || entry == shared;
    return OwnIndexer{key, is_known ? std::optional(entry == own) : std::nullopt};
  };
  if (knows_types && !json_member(keys, "indexer_types").is_null())
    return by_entry("indexer_types", "full", "shared");
  const Json& pattern = json_member(keys, "index_topk_pattern");
  if (!pattern.is_null() && pattern != std::string_view())
    return by_entry("index_topk_pattern", "F", "S");
  std::array<std::uint64_t, 2> numbers = {1, 2};
  constexpr std::array kNumbers = {"index_topk_freq", "index_skip_topk_offset"};
  for (std::size_t i = 0; i < kNumbers.size(); ++i) {
    const Json& number = json_member(keys, kNumbers[i]);
    if (number.is_null()) continue;
    if (!number.is_number_unsigned()) return {kNumbers[i], std::nullopt};
    numbers[i] = number.get<std::uint64_t>();
  }
  const auto [every, offset] = numbers;
  return {kNumbers[0], every <= 1 || layer < offset || (layer + 1 - offset) % every == 0};
}

std::string entry_of(const Json& list, std::uint64_t index) {
  if (list.is_string()) {
    const auto& letters = list.get_ref<const std::string&>();
    return index < letters.size() ? std::string(1, letters[index]) : std::string();
  }
  if (!list.is_array() || index >= list.size()) return {};
  return list[index].is_string() ? list[index].get<std::string>() : list[index].dump();
}

}  // namespace ingot::formats
