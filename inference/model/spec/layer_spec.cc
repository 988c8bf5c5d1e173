#include "inference/model/spec/layer_spec.h"

#include <algorithm>

namespace ingot::inference {

const IndexerSpec* ModelSpec::indexer() const {
  for (const LayerSpec& layer : layers) {
    const auto* latent = layer.find<LatentSpec>();
    if (latent != nullptr && latent->indexer) return &*latent->indexer;
    const auto* grouped = layer.find<GroupedSpec>();
    if (grouped != nullptr && grouped->indexer) return &*grouped->indexer;
  }
  return nullptr;
}

std::size_t ModelSpec::keys_of(std::size_t layer) const {
  if (const auto* latent = layers[layer].find<LatentSpec>()) return latent->keys_of.value_or(layer);
  const auto* grouped = layers[layer].find<GroupedSpec>();
  return grouped != nullptr ? grouped->keys_of.value_or(layer) : layer;
}

std::size_t ModelSpec::last_reader(std::size_t layer) const {
  std::size_t last = layer;
  for (std::size_t l = layer + 1; l < n_main; ++l) {
    if (keys_of(l) == layer) last = l;
  }
  return last;
}

bool ModelSpec::keeps_states() const {
  const RankView whole;
  return std::ranges::any_of(layers, [&](const LayerSpec& layer) {
    return layer.short_convolution > 0 || layer.ngrams ||
           std::ranges::any_of(layer.blocks, [&](const BlockSpec& block) {
             const auto* mixer = std::get_if<MixerSpec>(&block.body);
             return mixer != nullptr &&
                    std::ranges::any_of(mixer->streams({.rank = whole}), &CacheStream::is_state);
           });
  });
}

}  // namespace ingot::inference
