#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

#include "inference/base/matrix.h"

namespace ingot::inference {

/// What an onlooker is shown while a step runs. Layers are numbered as in the checkpoint, MTP
/// layers after the main ones.
struct Taps {
  /// The residual stream, one row per row of the step: 0 is the embedding, l + 1 the output of
  /// layer l. Of MTP layers the output alone.
  std::function<void(std::size_t index, const Matrix& hidden)> hidden;
  /// Chosen experts [rows x k] of a MoE layer, ascending per row, and their weights.
  std::function<void(std::size_t layer, std::span<const std::uint32_t> experts,
                     std::span<const float> weights)>
      router;
  /// Positions that a row attends to, ascending; only where the indexer had to choose.
  std::function<void(std::size_t layer, std::size_t row, std::span<const std::uint32_t> positions)>
      indexer;
};

}  // namespace ingot::inference
