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
  const auto* latent = layers[layer].find<LatentSpec>();
  return latent != nullptr ? latent->keys_of.value_or(layer) : layer;
}

std::size_t ModelSpec::last_reader(std::size_t layer) const {
  std::size_t last = layer;
  for (std::size_t l = layer + 1; l < n_main; ++l) {
    if (keys_of(l) == layer) last = l;
  }
  return last;
}

bool ModelSpec::keeps_states() const {
  return std::ranges::any_of(layers, [](const LayerSpec& layer) {
    const auto* latent = layer.find<LatentSpec>();
    const auto* grouped = layer.find<GroupedSpec>();
    return layer.short_convolution > 0 || layer.ngrams ||
           std::ranges::any_of(layer.blocks,
                               [](const BlockSpec& block) {
                                 return std::visit(
                                     [](const auto& body) {
                                       return requires {
                                         state_of(body);
                                       };
                                     },
                                     block.body);
                               }) ||
           (latent != nullptr && latent->indexer && latent->indexer->pool > 1) ||
           (grouped != nullptr && grouped->indexer && grouped->indexer->pool > 1);
  });
}

}  // namespace ingot::inference
