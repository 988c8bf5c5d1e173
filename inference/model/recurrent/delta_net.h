#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "inference/base/matrix.h"
#include "inference/model/spec/mixer_specs.h"
#include "inference/model/step/step.h"
#include "inference/weights/block_weights.h"
#include "inference/weights/linear.h"

namespace ingot::inference {

/// The delta nets of Qwen3-Next and Qwen3.5 (gated delta net) and of Kimi Linear, Ling 3 and
/// GLM-5.3 (Kimi Delta Attention); transformers 5.23 has them under those names.
///
///   q, k, v = silu(convolve(projections of x)), q and k normalized, q over sqrt(key_dim)
///
///   o_h = delta rule of head h (recurrence.h), its decay as Decay says, beta = sigmoid(b x)
///
///   y = out [norm(o_h) weight x gate_h]_h, gate = silu or sigmoid of a projection of x
///
/// The state of a sequence is each head's matrix and the last inputs of the convolution, in FP32.
/// Unless the profile is kF32, projections, the convolution, its silu, beta and the gated output
/// are each rounded to BF16; the recurrence is in FP32.
class DeltaNet {
 public:
  /// Which projections are fused, the rows of the layer tell. kUnsupported on more than one rank of
  /// a tensor group.
  DeltaNet(const BlockWeights& weights, const StepContext& context, const DeltaNetSpec& spec);

  Matrix partial(const LayerStep& step, const Matrix& x) const;

 private:
  /// Of every row, heads side by side.
  struct Projected {
    Matrix mixed;  ///< queries, keys, values
    Matrix gate, beta, decay;
  };
  /// A product through one matrix, or through two.
  struct Projection {
    Linear first, second;
    [[nodiscard]] Matrix apply(const StepContext& context, const Matrix& x) const;
  };

  void load_fused(const BlockWeights& weights, std::size_t hidden);
  void load_single(const BlockWeights& weights, std::size_t hidden);
  void load_convolution(const BlockWeights& weights);
  Projected project(const StepContext& context, const Matrix& x) const;
  /// Logits of decays to the factors that are kept, in place.
  void to_decays(Matrix& logits) const;
  /// Queries, keys and values of a run after convolution and normalization.
  Matrix convolved(const LayerStep& step, const SequenceRun& run, const Matrix& mixed,
                   std::span<float> state) const;

  DeltaNetSpec spec_;
  Linear fused_, fused_small_;  ///< queries, keys, values and gates; beta and decay
  std::vector<Linear> mixed_;   ///< in order, where they are not fused with the gates
  Projection gate_, beta_, decay_;
  std::vector<float> convolution_;  ///< [channels, kernel]
  std::vector<float> rate_, decay_bias_, norm_;
  Linear out_;
};

}  // namespace ingot::inference
