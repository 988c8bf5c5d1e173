#include "inference/model/recurrent/selective_scan.h"

#include <algorithm>

#include "formats/base/parallel.h"
#include "inference/kernels/vector_math.h"
#include "inference/model/recurrent/recurrence.h"
#include "inference/model/recurrent/whole_layer.h"
#include "inference/model/step/norm.h"
#include "inference/model/step/short_convolution.h"

namespace ingot::inference {

using formats::FineRole;

SelectiveScan::SelectiveScan(const BlockWeights& weights, const StepContext& context,
                             const SelectiveScanSpec& spec)
    : spec_(spec) {
  require_one_tensor_rank(context.rank, weights.layer());
  const std::size_t hidden = context.spec.hidden, width = spec.channels;
  in_ = weights.linear(FineRole::kLinearIn, 2 * width, hidden);
  in_bias_ = bias_of(weights, spec.projection_bias, FineRole::kLinearInBias, 2 * width);
  convolution_ = weights.vector(FineRole::kLinearConvolution, {width, 1, spec.kernel});
  convolution_bias_ =
      bias_of(weights, spec.convolution_bias, FineRole::kLinearConvolutionBias, width);
  choose_ = weights.linear(FineRole::kLinearChoice, spec.step_rank + 2 * spec.state, width);
  step_ = weights.linear(FineRole::kLinearStep, width, spec.step_rank);
  step_bias_ = weights.vector(FineRole::kLinearStepBias, {width});
  if (spec.inner_norms) {
    step_norm_ = norm_weights(weights, context.spec, FineRole::kLinearStepNorm, spec.step_rank);
    b_norm_ = norm_weights(weights, context.spec, FineRole::kLinearBNorm, spec.state);
    c_norm_ = norm_weights(weights, context.spec, FineRole::kLinearCNorm, spec.state);
  }
  rate_ = weights.vector(FineRole::kLinearRate, {width, spec.state});
  for (float& rate : rate_) rate = exp_f32(rate);
  skip_ = weights.vector(FineRole::kLinearSkip, {width});
  out_ = weights.linear(formats::Role::kLinearAttentionOut, hidden, width);
  out_bias_ = bias_of(weights, spec.projection_bias, FineRole::kLinearOutBias, hidden);
}

SelectiveScan::Choices SelectiveScan::choose(const StepContext& context,
                                             const Matrix& mixed) const {
  const Matrix all = rounded_product(context, choose_, mixed);
  const auto take = [&](std::size_t first, std::size_t n, const std::vector<float>& norm) {
    Matrix part(all.rows(), n);
    for (std::size_t r = 0; r < all.rows(); ++r)
      std::ranges::copy(all.row(r).subspan(first, n), part.row(r).begin());
    if (!norm.empty())
      rms_norm(context.profile, part.view(), norm, context.spec.norm.eps, part.view());
    return part;
  };
  const std::size_t rank = spec_.step_rank, n = spec_.state;
  Choices chosen{.steps = rounded_product(context, step_, take(0, rank, step_norm_), step_bias_),
                 .b = take(rank, n, b_norm_),
                 .c = take(rank + n, n, c_norm_)};
  for (float& value : chosen.steps.values()) value = softplus_f32(value);
  round_between(context.profile, chosen.steps.values());
  return chosen;
}

Matrix SelectiveScan::partial(const LayerStep& step, const Matrix& x) const {
  const StepContext& context = step.context;
  const std::size_t width = spec_.channels, n = spec_.state;
  const Matrix projected = rounded_product(context, in_, x, in_bias_);
  require_finite(projected, step.layer, "the selective scan's projection");
  const MatrixView<const float> weights{convolution_.data(), width, spec_.kernel, spec_.kernel};
  Matrix out(x.rows(), width);
  for (const SequenceRun& run : step.rows.runs) {
    const std::span<float> state = step.state(run);
    Matrix mixed = convolved(context.profile, run, weights, convolution_bias_,
                             projected.block(run.first_row, run.count, 0, width),
                             state.subspan(state_of(spec_).heads));
    for (float& value : mixed.values()) value = silu_f32(value);
    round_between(context.profile, mixed.values());
    const Choices chosen = choose(context, mixed);
    parallel_for(width, context.threads, [&](std::size_t c) {
      for (std::size_t i = 0; i < run.count; ++i) {
        out.row(run.first_row + i)[c] = scan_token(
            mixed.row(i)[c], chosen.b.row(i), chosen.c.row(i), std::span(rate_).subspan(c * n, n),
            chosen.steps.row(i)[c], skip_[c], state.subspan(c * n, n));
      }
    });
  }
  require_finite(out, step.layer, "the selective scan");
  for (std::size_t r = 0; r < out.rows(); ++r) {
    const auto gate = projected.row(r).subspan(width, width);
    for (std::size_t c = 0; c < width; ++c) out.row(r)[c] *= silu_f32(gate[c]);
  }
  round_between(context.profile, out.values());
  Matrix y = product(context, out_, out);
  add_bias(out_bias_, y);
  return y;
}

}  // namespace ingot::inference
