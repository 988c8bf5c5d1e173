#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "inference/base/matrix.h"
#include "inference/model/step/step.h"
#include "inference/parallel/comm.h"

namespace ingot::inference {

/// Work that the first rank of a LayerStream tells the others, which do it together with it.
struct StreamTask {
  enum class Kind : std::uint32_t { kEnd, kEmbed, kLayer, kNorm, kHead, kMtp };

  Kind kind = Kind::kEnd;
  std::size_t layer = 0;
  std::vector<Row> rows;
  Matrix states;  ///< hidden states of the rows, or normed ones
};

/// Tells a task to the other ranks; returns at once without others, or on one of them.
void tell_task(Comm& comm, StreamTask::Kind kind, std::size_t layer = 0,
               std::span<const Row> rows = {}, const Matrix* states = nullptr);
/// The next task that the first rank tells.
StreamTask next_task(Comm& comm);

/// Result of the stage of a layer: the layer's output, and the choices of its rows.
struct LayerResult {
  Matrix states;
  Selection selection;  ///< a list of positions per row; none without an indexer
  /// Experts as Taps::router is shown them; empty for a dense layer.
  std::vector<std::uint32_t> experts;
  std::vector<float> weights;  ///< weights of these experts
};

/// The result that the ranks of stage `from` have, on all ranks. `computed` is null on the others.
LayerResult share_result(Comm& comm, std::size_t layer, std::size_t from,
                         const LayerResult* computed);

}  // namespace ingot::inference
