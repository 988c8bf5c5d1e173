#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "inference/base/matrix.h"
#include "inference/model/step/step.h"
#include "inference/parallel/comm.h"

namespace ingot::inference {

/// What the first rank of a LayerStream asks of the others, which do it with it.
struct StreamTask {
  enum class Kind : std::uint32_t { kEnd, kEmbed, kLayer, kHead, kMtp };

  Kind kind = Kind::kEnd;
  std::size_t layer = 0;
  std::vector<Row> rows;
  Matrix states;  ///< hidden states of the rows, or normed ones
};

/// Tells it to the other ranks; nothing where there are none, or on one of them.
void tell_task(Comm& comm, StreamTask::Kind kind, std::size_t layer = 0,
               std::span<const Row> rows = {}, const Matrix* states = nullptr);
/// The next task that the first rank tells.
StreamTask next_task(Comm& comm);

}  // namespace ingot::inference
