#pragma once

#include <span>
#include <vector>

#include "inference/base/matrix.h"
#include "inference/model/spec/mixer_specs.h"
#include "inference/model/step/step.h"
#include "inference/weights/block_weights.h"
#include "inference/weights/linear.h"

namespace ingot::inference {

/// Mamba-2 (arXiv 2405.21060; transformers 5.23, nemotron_h). One product gives a gate z, what is
/// convolved (values, B and C of the groups), and a logit per head:
///   v, B, C = silu(convolve(.))     step_h = max(softplus(logit_h + dt_bias_h), least_step)
///   o_h     = state space of head h (recurrence.h) with decay e^(-e^A_log_h step_h), skip D_h
///   y       = out [norm over each group of (o x silu(z)) x weight]
/// The state of a sequence is each head's matrix and the last inputs of the convolution, in FP32.
/// Unless the profile is kF32, the product, the convolution, its silu and the gated output are each
/// rounded to BF16; the recurrence is in FP32.
class StateSpace {
 public:
  /// kUnsupported on more than one rank of a tensor group.
  StateSpace(const BlockWeights& weights, const StepContext& context, const StateSpaceSpec& spec);

  Matrix partial(const LayerStep& step, const Matrix& x) const;

 private:
  Matrix convolved(const LayerStep& step, const SequenceRun& run, const Matrix& projected,
                   std::span<float> state) const;
  /// Gates and normalizes the heads' outputs, in place.
  void finish(const StepContext& context, const Matrix& projected, Matrix& out) const;

  StateSpaceSpec spec_;
  Linear in_, out_;
  std::vector<float> in_bias_, out_bias_;              ///< may be empty
  std::vector<float> convolution_, convolution_bias_;  ///< [channels, kernel]; may be empty
  std::vector<float> rate_, skip_, step_bias_, norm_;
};

}  // namespace ingot::inference
