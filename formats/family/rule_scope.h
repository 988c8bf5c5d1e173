#pragma once

#include <cstdint>
#include <optional>

#include "formats/config/derived_keys.h"
#include "formats/family/family.h"

namespace ingot::formats {

/// The promise of one row of the grammar by a config, in one layer.
enum class Promise : std::uint8_t { kForbidden, kAccepted, kRequired };

/// Main layers and MTP layers together.
std::uint64_t layer_count(const ModelConfig& config);

/// Tells if a layer has an indexer of its own, as every MTP layer has.
OwnIndexer own_indexer(const ModelConfig& config, std::uint64_t layer);

/// True if rows of this scope occur in `layer`; `layer` is nullopt outside the layers.
bool scope_holds(Scope scope, const ModelConfig& config, std::optional<std::uint32_t> layer);

/// Tells if a row that is_in_layer() must, may or must not be there. The per-expert and the stacked
/// form of experts are both kAccepted: which of them is required depends on the checkpoint.
Promise promise_of(const TensorRule& rule, const ModelConfig& config,
                   std::optional<std::uint32_t> layer);

}  // namespace ingot::formats
