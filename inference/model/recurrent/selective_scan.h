#pragma once

#include <vector>

#include "inference/base/matrix.h"
#include "inference/model/spec/mixer_specs.h"
#include "inference/model/step/step.h"
#include "inference/weights/block_weights.h"
#include "inference/weights/linear.h"

namespace ingot::inference {

/// Mamba-1 (arXiv 2312.00752; transformers 5.24, jamba). One product gives what is convolved, a
/// value per channel, and a gate z; another one of the result gives values for steps, B and C,
/// each normed where the spec says so:
///   v       = silu(convolve(.))     step = softplus(step_proj [.] + step_bias)
///   s[c, n] <- e^(-e^A_log[c, n] step_c) s[c, n] + step_c B[n] v_c
///   o_c     = s[c] . C + D_c v_c
///   y       = out [o x silu(z)]
/// The state of a sequence is that of all channels and the last inputs of the convolution, in FP32.
/// Unless the profile is kF32, products, the convolution, its silu, steps and the gated output are
/// each rounded to BF16; the recurrence is in FP32.
class SelectiveScan {
 public:
  /// kUnsupported on more than one rank of a tensor group.
  SelectiveScan(const BlockWeights& weights, const StepContext& context,
                const SelectiveScanSpec& spec);

  Matrix partial(const LayerStep& step, const Matrix& x) const;

 private:
  /// The convolved channels' choices for each row: its steps, and B and C.
  struct Choices {
    Matrix steps, b, c;
  };
  Choices choose(const StepContext& context, const Matrix& mixed) const;

  SelectiveScanSpec spec_;
  Linear in_, choose_, step_, out_;
  std::vector<float> in_bias_, out_bias_, convolution_bias_;  ///< may be empty
  std::vector<float> convolution_;                            ///< [channels, kernel]
  std::vector<float> rate_;                                   ///< [channels, state]
  std::vector<float> skip_, step_bias_;
  std::vector<float> step_norm_, b_norm_, c_norm_;  ///< empty: none
};

}  // namespace ingot::inference
