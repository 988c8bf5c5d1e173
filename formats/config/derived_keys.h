#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "formats/config/keys.h"

// Facts that config.json says in several ways, or through other keys: computed here for all
// readers. Layers are counted from 0; wrong values are refused as ConfigKeys does.

namespace ingot::formats {

/// The number of MTP layers: several where a step of prediction has several, or where a list by
/// layer goes on over more than the config says (kLimit beyond 2^20).
std::uint64_t mtp_layer_count(const ConfigKeys& keys, std::uint64_t main_layers);

/// The width of a head that the config does not say: 0 without heads.
std::uint64_t usual_head_dim(std::uint64_t hidden_size, std::uint64_t n_heads);

/// Tells for each layer if it is a mixture of experts, by the first key about mixtures that the
/// config has. Without such a key all layers are mixtures; without experts only `mlp_layer_types`
/// counts.
std::vector<bool> mixture_layers(const ConfigKeys& keys, LayerCounts layers, bool has_experts);

/// The mixtures of experts by one key.
struct MixturesByKey {
  const char* key;
  bool is_meaning = false;  ///< true: no family has a meaning of its own for the key
  std::vector<bool> layers = {};
  std::string refusal = {};  ///< refusal by readers of the key; then `layers` is empty
};
/// Returns the mixtures by every key that the config has.
std::vector<MixturesByKey> mixtures_by_key(const ConfigKeys& keys);

/// Tells for each main layer if its attention is linear; empty where no key says that some are.
std::vector<bool> linear_layers(const ConfigKeys& keys, LayerCounts layers);

/// The layers with linear attention by a step or a period, whatever a list says.
struct LayersByStep {
  const char* key;
  std::vector<bool> layers;
};
/// The layers by a step or a period; nullopt where the config has none, or one that readers refuse.
std::optional<LayersByStep> linear_layers_by_step(const ConfigKeys& keys);

/// The source of a main layer's choice: a lightning indexer of its own, or an earlier layer's.
struct OwnIndexer {
  /// The key that says so: `indexer_types`, else `index_topk_pattern`, else `index_topk_freq`.
  std::string_view key = {};
  std::optional<bool> is_own = true;  ///< nullopt: the key has no word or number for the layer
};
/// `knows_types`: whether the reader knows `indexer_types`, as vLLM does not.
OwnIndexer own_indexer(const Json& keys, std::uint64_t layer, bool knows_types = true);

/// An entry of a list, or a letter of a text, as families write it; empty behind the last.
std::string entry_of(const Json& list, std::uint64_t index);

}  // namespace ingot::formats
