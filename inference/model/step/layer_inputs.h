#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "inference/base/matrix.h"
#include "inference/model/step/norm.h"
#include "inference/model/step/step.h"
#include "inference/weights/block_weights.h"
#include "inference/weights/linear.h"

namespace ingot::inference {

/// Inputs of `width` values that a token has in each layer, next to the stream. Source:
/// transformers 5.24, gemma3n and gemma4.
///
///   p[layer] = (norm((projection embedding) / root of hidden)[layer] + root of width table[token,
///   layer]) / root 2 x'       = x + norm(up(gelu(gate x) * p[layer]))
///
/// Rows of the table are read when they are looked up.
class LayerInputs {
 public:
  LayerInputs(const BlockWeights& weights, const StepContext& context);

  /// The inputs of all layers, [tokens, layers x width].
  [[nodiscard]] Matrix make(const StepContext& context, std::span<const std::size_t> tokens,
                            const Matrix& embedded) const;

 private:
  [[nodiscard]] Matrix looked_up(const StepContext& context,
                                 std::span<const std::size_t> tokens) const;

  const WeightStore* store_;
  LayerInputSpec spec_;
  std::string table_;
  std::size_t first_row_ = 0, n_rows_ = 0;  ///< rows of the table in this checkpoint
  Linear projection_;
  HiddenNorm norm_;
};

/// The part of a layer that takes its input.
class LayerInputGate {
 public:
  LayerInputGate(const BlockWeights& weights, const StepContext& context);

  /// Returns the sum's other term for the stream `x`; `inputs` are those of all layers.
  [[nodiscard]] Matrix added(const StepContext& context, const Matrix& x,
                             const Matrix& inputs) const;

 private:
  std::size_t first_ = 0, width_ = 0;  ///< columns of the layer's input
  Linear gate_, up_;
  HiddenNorm norm_;
};

}  // namespace ingot::inference
