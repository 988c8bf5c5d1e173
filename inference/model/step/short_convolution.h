#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "formats/container/tensor.h"
#include "inference/base/matrix.h"
#include "inference/model/step/step.h"
#include "inference/weights/block_weights.h"

namespace ingot::inference {

/// Values that a layer's short convolutions work on, in the order of convolved_columns().
enum class Convolved : std::uint8_t { kKeys, kValues, kAttention, kFeedForward };

/// Convolves each channel over its last K values, the token's own the last: out[t, c] = bias[c] +
/// sum over k of weights[c, k] x inputs[t + k apart, c], k ascending. `weights` is [channels, K];
/// `inputs` the (K - 1) apart rows before those of `out`, and then theirs; `bias` may be empty.
void convolve(formats::MatrixView<const float> weights, std::span<const float> bias,
              formats::MatrixView<const float> inputs, formats::MatrixView<float> out,
              std::size_t apart = 1);

/// Convolves a run's rows, whose sequence keeps the rows before them in `recent`, [(K - 1) apart,
/// channels]; the rows of `inputs` are kept for the next run. Rounded unless the profile is kF32.
Matrix convolved(Profile profile, const SequenceRun& run, formats::MatrixView<const float> weights,
                 std::span<const float> bias, formats::MatrixView<const float> inputs,
                 std::span<float> recent, std::size_t apart = 1);

/// y[t, c] = x[t, c] + sum over k of w[c, k] x[t - K + 1 + k, c], k ascending, with zeros before
/// the first token; divided by root(K + 1) where LayerSpec::scales_convolution says so. In FP32,
/// rounded once unless the profile is kF32. The last K - 1 rows of a sequence are kept in its state
/// (LayerStep::recent). Source: transformers 5.23, InklingShortConvolution.
class ShortConvolution {
 public:
  /// Leaves everything as it is.
  ShortConvolution() = default;
  /// Weights are [channels, 1, K], of which a rank's directory may hold its own.
  ShortConvolution(const BlockWeights& weights, const StepContext& context, Convolved what);

  /// Replaces `rows` by their y. Keys and values are this rank's; outputs are whole, on every rank
  /// of the tensor group, which convolves its own columns and gets the others from the rest of it.
  void apply(const LayerStep& step, Matrix& rows) const;

 private:
  std::size_t kernel_ = 0;  // 0: nothing is convolved
  std::size_t first_ = 0;   // first value in LayerStep::recent
  Range columns_;           // columns that are convolved
  bool is_shared_out_ = false;
  float scale_ = 1.0F;
  std::vector<float> weights_;  // [columns, K]
};

}  // namespace ingot::inference
