#include "inference/model/recurrent/gated_convolution.h"

#include "inference/model/recurrent/whole_layer.h"
#include "inference/model/step/short_convolution.h"

namespace ingot::inference {

using formats::FineRole;

GatedConvolution::GatedConvolution(const BlockWeights& weights, const StepContext& context,
                                   const GatedConvolutionSpec& spec)
    : spec_(spec) {
  require_one_tensor_rank(context.rank, weights.layer());
  const std::size_t hidden = context.spec.hidden, width = spec.channels;
  in_ = weights.linear(FineRole::kLinearIn, 3 * width, hidden);
  in_bias_ = bias_of(weights, spec.biases, FineRole::kLinearInBias, 3 * width);
  convolution_ = weights.vector(FineRole::kLinearConvolution, {width, 1, spec.kernel});
  convolution_bias_ = bias_of(weights, spec.biases, FineRole::kLinearConvolutionBias, width);
  out_ = weights.linear(formats::Role::kLinearAttentionOut, hidden, width);
  out_bias_ = bias_of(weights, spec.biases, FineRole::kLinearOutBias, hidden);
}

Matrix GatedConvolution::partial(const LayerStep& step, const Matrix& x) const {
  const StepContext& context = step.context;
  const std::size_t width = spec_.channels;
  const Matrix projected = rounded_product(context, in_, x, in_bias_);
  require_finite(projected, step.layer, "the convolution's projection");
  Matrix values(x.rows(), width);
  for (std::size_t r = 0; r < x.rows(); ++r) {
    const auto row = projected.row(r);
    for (std::size_t c = 0; c < width; ++c) values.row(r)[c] = row[c] * row[2 * width + c];
  }
  round_between(context.profile, values.values());
  const MatrixView<const float> weights{convolution_.data(), width, spec_.kernel, spec_.kernel};
  for (const SequenceRun& run : step.rows.runs) {
    const auto mine = values.block(run.first_row, run.count, 0, width);
    const Matrix mixed =
        convolved(context.profile, run, weights, convolution_bias_, mine, step.state(run));
    for (std::size_t i = 0; i < run.count; ++i) {
      const auto gate = projected.row(run.first_row + i).subspan(width, width);
      for (std::size_t c = 0; c < width; ++c) mine.row(i)[c] = gate[c] * mixed.row(i)[c];
    }
  }
  round_between(context.profile, values.values());
  Matrix y = product(context, out_, values);
  add_bias(out_bias_, y);
  return y;
}

}  // namespace ingot::inference
