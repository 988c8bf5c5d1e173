#pragma once

#include <array>
#include <cstddef>
#include <functional>
#include <vector>

#include "inference/base/matrix.h"
#include "inference/model/step/source_mix.h"
#include "inference/model/step/step.h"
#include "inference/weights/block_weights.h"
#include "inference/weights/linear.h"

namespace ingot::inference {

/// A further visit of a layer: what the pass before left, [rows, sources x hidden], and the layer
/// of the cache that the visit has for itself.
struct LoopVisit {
  const Matrix& sources;
  std::size_t cache_layer = 0;
  bool is_last = false;
};

/// Messages of the pass before, which the inputs of a layer's blocks take through gates: input x
/// and message m become
///   (1 - tanh(forget c)) x + tanh(gain c) m, where c = down [n(x) | n(m)]
/// and n is an RMS norm without weights. A message is mixed of the sources by a query (SourceMix).
/// Source: transformers 5.24, inkling2_loop.
class LoopMessages {
 public:
  /// Reads those of a layer of the loop.
  LoopMessages(const BlockWeights& weights, const StepContext& context);

  /// Inputs of queries, keys and values side by side, of one input or of three.
  [[nodiscard]] Matrix mixer_inputs(const StepContext& context, const LoopVisit& visit,
                                    const Matrix& inputs) const;
  [[nodiscard]] Matrix feed_forward_input(const StepContext& context, const LoopVisit& visit,
                                          const Matrix& input) const;

 private:
  struct Gate {
    SourceMix query;
    Linear down, gain, forget;
  };
  [[nodiscard]] Matrix gated(const StepContext& context, const LoopVisit& visit, const Gate& gate,
                             MatrixView<const float> input) const;

  std::array<Gate, 4> gates_;  ///< gates of queries, keys, values and the feed-forward part
};

/// Visits the layers of the loop again, once per further pass, each pass from the states that the
/// first began with. `states` [rows, stream_width()] are those behind the first pass. `visit` takes
/// a layer, its place in the cache behind the `n_layers` of the first visits, and what it may take
/// messages of, and replaces the states.
void visit_again(const ModelSpec& spec, std::size_t n_layers, Matrix& states,
                 const std::function<void(std::size_t layer, const LoopVisit& visit)>& visit);

}  // namespace ingot::inference
