#pragma once

#include <vector>

#include "inference/base/matrix.h"
#include "inference/model/spec/mixer_specs.h"
#include "inference/model/step/step.h"
#include "inference/weights/block_weights.h"
#include "inference/weights/linear.h"

namespace ingot::inference {

/// A short convolution between gates (transformers 5.24, lfm2). One product gives B, C and v:
///   y = out [C x convolve(B x v)]
/// The state of a sequence is the last inputs of the convolution, in FP32. Unless the profile is
/// kF32, the product, B x v, the convolution and the gated output are each rounded to BF16.
class GatedConvolution {
 public:
  /// kUnsupported on more than one rank of a tensor group.
  GatedConvolution(const BlockWeights& weights, const StepContext& context,
                   const GatedConvolutionSpec& spec);

  Matrix partial(const LayerStep& step, const Matrix& x) const;

 private:
  GatedConvolutionSpec spec_;
  Linear in_, out_;
  std::vector<float> in_bias_, out_bias_, convolution_bias_;  ///< may be empty
  std::vector<float> convolution_;                            ///< [channels, kernel]
};

}  // namespace ingot::inference
