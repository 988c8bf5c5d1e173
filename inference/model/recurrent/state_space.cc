#include "inference/model/recurrent/state_space.h"

#include <algorithm>
#include <cmath>

#include "formats/base/parallel.h"
#include "inference/kernels/vector_math.h"
#include "inference/model/recurrent/recurrence.h"
#include "inference/model/recurrent/whole_layer.h"
#include "inference/model/step/short_convolution.h"

namespace ingot::inference {

using formats::FineRole;

namespace {

std::size_t inner(const StateSpaceSpec& spec) {
  return spec.heads * spec.head_dim;
}

std::size_t channels(const StateSpaceSpec& spec) {
  return inner(spec) + 2 * spec.groups * spec.state;
}

std::size_t head_state(const StateSpaceSpec& spec) {
  return spec.head_dim * spec.state;
}

}  // namespace

StateSpace::StateSpace(const BlockWeights& weights, const StepContext& context,
                       const StateSpaceSpec& spec)
    : spec_(spec) {
  require_one_tensor_rank(context.rank, weights.layer());
  const std::size_t hidden = context.spec.hidden, width = channels(spec);
  const std::size_t projected = inner(spec) + width + spec.heads;
  in_ = weights.linear(FineRole::kLinearIn, projected, hidden);
  in_bias_ = bias_of(weights, spec.projection_bias, FineRole::kLinearInBias, projected);
  convolution_ = weights.vector(FineRole::kLinearConvolution, {width, 1, spec.kernel});
  convolution_bias_ =
      bias_of(weights, spec.convolution_bias, FineRole::kLinearConvolutionBias, width);
  rate_ = weights.vector(FineRole::kLinearRate, {spec.heads});
  for (float& rate : rate_) rate = exp_f32(rate);
  skip_ = weights.vector(FineRole::kLinearSkip, {spec.heads});
  step_bias_ = weights.vector(FineRole::kLinearStepBias, {spec.heads});
  norm_ = weights.vector(FineRole::kLinearNorm, {inner(spec)});
  out_ = weights.linear(formats::Role::kLinearAttentionOut, hidden, inner(spec));
  out_bias_ = bias_of(weights, spec.projection_bias, FineRole::kLinearOutBias, hidden);
}

Matrix StateSpace::convolved(const LayerStep& step, const SequenceRun& run, const Matrix& projected,
                             std::span<float> state) const {
  const std::size_t width = channels(spec_);
  const MatrixView<const float> weights{convolution_.data(), width, spec_.kernel, spec_.kernel};
  Matrix out =
      inference::convolved(step.context.profile, run, weights, convolution_bias_,
                           projected.block(run.first_row, run.count, inner(spec_), width), state);
  for (float& value : out.values()) value = silu_f32(value);
  round_between(step.context.profile, out.values());
  return out;
}

void StateSpace::finish(const StepContext& context, const Matrix& projected, Matrix& out) const {
  const std::size_t width =
      inner(spec_) / (spec_.norm_groups == 0 ? spec_.groups : spec_.norm_groups);
  for (std::size_t r = 0; r < out.rows(); ++r) {
    const auto row = out.row(r);
    for (std::size_t c = 0; c < row.size(); ++c) row[c] *= silu_f32(projected.row(r)[c]);
    for (std::size_t first = 0; first < row.size(); first += width) {
      const auto group = row.subspan(first, width);
      const float mean = sum_of_squares(group) / static_cast<float>(width);
      const float factor = 1.0F / std::sqrt(mean + context.spec.norm.eps);
      for (std::size_t c = 0; c < width; ++c) group[c] = norm_[first + c] * (group[c] * factor);
    }
  }
  round_between(context.profile, out.values());
}

Matrix StateSpace::partial(const LayerStep& step, const Matrix& x) const {
  const StepContext& context = step.context;
  Matrix projected = product(context, in_, x);
  add_bias(in_bias_, projected);
  round_between(context.profile, projected.values());
  require_finite(projected, step.layer, "the state space's projection");
  const std::size_t values = inner(spec_), shared = spec_.groups * spec_.state;
  const std::size_t steps_at = values + channels(spec_);
  Matrix out(x.rows(), values);
  for (const SequenceRun& run : step.rows.runs) {
    const std::span<float> state = step.state(run);
    const Matrix mixed = convolved(step, run, projected, state.subspan(state_of(spec_).heads));
    parallel_for(spec_.heads, context.threads, [&](std::size_t h) {
      const std::size_t group = h / (spec_.heads / spec_.groups);
      for (std::size_t i = 0; i < run.count; ++i) {
        const std::size_t r = run.first_row + i;
        const auto row = mixed.row(i);
        const float length = std::max(softplus_f32(projected.row(r)[steps_at + h] + step_bias_[h]),
                                      spec_.least_step);
        state_space_token(row.subspan(h * spec_.head_dim, spec_.head_dim),
                          row.subspan(values + group * spec_.state, spec_.state),
                          row.subspan(values + shared + group * spec_.state, spec_.state),
                          exp_f32(-rate_[h] * length), length, skip_[h],
                          state.subspan(h * head_state(spec_), head_state(spec_)),
                          out.row(r).subspan(h * spec_.head_dim, spec_.head_dim));
      }
    });
  }
  require_finite(out, step.layer, "the state space");
  finish(context, projected, out);
  Matrix y = product(context, out_, out);
  add_bias(out_bias_, y);
  return y;
}

}  // namespace ingot::inference
