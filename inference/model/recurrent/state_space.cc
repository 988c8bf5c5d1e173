#include "inference/model/recurrent/state_space.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <span>
#include <utility>
#include <vector>

#include "formats/base/parallel.h"
#include "inference/base/matrix.h"
#include "inference/family/parameters.h"
#include "inference/family/spec_parts.h"
#include "inference/kernels/vector_math.h"
#include "inference/model/recurrent/recurrence.h"
#include "inference/model/recurrent/whole_layer.h"
#include "inference/model/spec/mixer_kinds.h"
#include "inference/model/step/short_convolution.h"
#include "inference/model/step/step.h"
#include "inference/weights/block_weights.h"
#include "inference/weights/linear.h"

namespace ingot::inference {

using formats::FineRole;

namespace {

constexpr std::array kStateSpaceRows = {
    ParameterRow<StateSpaceSpec>{"heads", &StateSpaceSpec::heads},
    ParameterRow<StateSpaceSpec>{"head_dim", &StateSpaceSpec::head_dim},
    ParameterRow<StateSpaceSpec>{"groups", &StateSpaceSpec::groups},
    ParameterRow<StateSpaceSpec>{"state", &StateSpaceSpec::state},
    ParameterRow<StateSpaceSpec>{"kernel", &StateSpaceSpec::kernel, kKernel},
    ParameterRow<StateSpaceSpec>{"norm_groups", &StateSpaceSpec::norm_groups, {0, kMaxCount}},
    ParameterRow<StateSpaceSpec>{"least_step", &StateSpaceSpec::least_step, {0, 1e6}},
    ParameterRow<StateSpaceSpec>{"has_norm", &StateSpaceSpec::has_norm},
    ParameterRow<StateSpaceSpec>{"norms_before_gate", &StateSpaceSpec::norms_before_gate},
    ParameterRow<StateSpaceSpec>{"z_factor", &StateSpaceSpec::z_factor, kAnyReal},
    ParameterRow<StateSpaceSpec>{"x_factor", &StateSpaceSpec::x_factor, kAnyReal},
    ParameterRow<StateSpaceSpec>{"b_factor", &StateSpaceSpec::b_factor, kAnyReal},
    ParameterRow<StateSpaceSpec>{"c_factor", &StateSpaceSpec::c_factor, kAnyReal},
    ParameterRow<StateSpaceSpec>{"dt_factor", &StateSpaceSpec::dt_factor, kAnyReal},
    ParameterRow<StateSpaceSpec>{"convolution_bias", &StateSpaceSpec::convolution_bias},
    ParameterRow<StateSpaceSpec>{"projection_bias", &StateSpaceSpec::projection_bias}};

std::size_t inner(const StateSpaceSpec& spec) {
  return spec.heads * spec.head_dim;
}

std::size_t channels(const StateSpaceSpec& spec) {
  return inner(spec) + 2 * spec.groups * spec.state;
}

std::size_t head_state(const StateSpaceSpec& spec) {
  return spec.head_dim * spec.state;
}

RecurrentState state_of(const StateSpaceSpec& spec) {
  return {.heads = spec.heads * head_state(spec), .inputs = (spec.kernel - 1) * channels(spec)};
}

// Mamba-2 (arXiv 2405.21060; transformers 5.23, nemotron_h). One product gives a gate z, what is
// convolved (values, B and C of the groups), and a logit per head:
//   v, B, C = silu(convolve(.))     step_h = max(softplus(logit_h + dt_bias_h), least_step)
//   o_h     = state space of head h (recurrence.h) with decay e^(-e^A_log_h step_h), skip D_h
//   y       = out [norm over each group of (o x silu(z)) x weight]
// Falcon-H1 has a factor for each part of the product; its gate acts behind the norm, or without.
// The state of a sequence is each head's matrix and the last inputs of the convolution, in FP32.
// Unless the profile is kF32, the product, the convolution, its silu and the gated output are each
// rounded to BF16; the recurrence is in FP32.
class StateSpace final : public Mixer {
 public:
  using Spec = StateSpaceSpec;
  /// Throws kUnsupported on more than one rank of a tensor group.
  StateSpace(const BlockWeights& weights, const StepContext& context, const Spec& spec);

  [[nodiscard]] Matrix partial(const LayerStep& step, const Matrix& x) const override;
  static Spec read(const DecoderSpec& model, Parameters& parameters, std::uint32_t layer);
  static std::vector<CacheStream> streams(const Spec& spec, const CacheForm&) {
    return {state_stream(state_of(spec).values())};
  }
  static MixerMemory memory(const Spec& spec, std::size_t, std::uint64_t) {
    return {.per_row = 6 * (spec.heads * (spec.head_dim + 1) + spec.groups * spec.state)};
  }

 private:
  Matrix convolved(const LayerStep& step, const SequenceRun& run, const Matrix& projected,
                   std::span<float> state) const;
  /// Multiplies the parts of the projection by their factors.
  void scale_parts(const StepContext& context, Matrix& projected) const;
  /// Gates and normalizes the heads' outputs, in place.
  void finish(const StepContext& context, const Matrix& projected, Matrix& out) const;

  Spec spec_;
  Linear in_, out_;
  std::vector<float> in_bias_, out_bias_;              ///< biases; may be empty
  std::vector<float> convolution_, convolution_bias_;  ///< [channels, kernel]; may be empty
  std::vector<float> rate_, skip_, step_bias_, norm_;
};

StateSpaceSpec StateSpace::read(const DecoderSpec&, Parameters& parameters, std::uint32_t) {
  StateSpaceSpec space;
  parameters.set(space, kStateSpaceRows);
  space.output_bias = parameters.flag("output_bias", space.projection_bias);
  if (const auto most = parameters.real("most_step", {0, 1e9}))
    space.most_step = static_cast<float>(*most);
  if (space.norm_groups != 0 && space.heads * space.head_dim % space.norm_groups != 0)
    refuse(fmt::format("{} values in {} groups make no norm", space.heads * space.head_dim,
                       space.norm_groups));
  if (space.heads % space.groups != 0) {
    refuse(fmt::format("{} heads in {} groups make no state space", space.heads, space.groups));
  }
  return space;
}

StateSpace::StateSpace(const BlockWeights& weights, const StepContext& context, const Spec& spec)
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
  if (spec.has_norm) norm_ = weights.vector(FineRole::kLinearNorm, {inner(spec)});
  out_ = weights.linear(formats::Role::kLinearAttentionOut, hidden, inner(spec));
  out_bias_ = bias_of(weights, spec.output_bias, FineRole::kLinearOutBias, hidden);
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

void StateSpace::scale_parts(const StepContext& context, Matrix& projected) const {
  const std::size_t values = inner(spec_), shared = spec_.groups * spec_.state;
  const std::array parts = {std::pair(values, spec_.z_factor), std::pair(values, spec_.x_factor),
                            std::pair(shared, spec_.b_factor), std::pair(shared, spec_.c_factor),
                            std::pair(spec_.heads, spec_.dt_factor)};
  if (std::ranges::all_of(parts, [](const auto& part) { return part.second == 1.0F; })) return;
  for (std::size_t r = 0; r < projected.rows(); ++r) {
    std::size_t at = 0;
    for (const auto& [width, factor] : parts) {
      for (float& value : projected.row(r).subspan(at, width)) value *= factor;
      at += width;
    }
  }
  round_between(context.profile, projected.values());
}

void StateSpace::finish(const StepContext& context, const Matrix& projected, Matrix& out) const {
  const std::size_t width =
      inner(spec_) / (spec_.norm_groups == 0 ? spec_.groups : spec_.norm_groups);
  for (std::size_t r = 0; r < out.rows(); ++r) {
    const auto row = out.row(r);
    const auto gate = [&] {
      for (std::size_t c = 0; c < row.size(); ++c) row[c] *= silu_f32(projected.row(r)[c]);
    };
    const bool is_first = !spec_.has_norm || !spec_.norms_before_gate;
    if (is_first) gate();
    for (std::size_t first = 0; spec_.has_norm && first < row.size(); first += width) {
      const auto group = row.subspan(first, width);
      const float mean = sum_of_squares(group) / static_cast<float>(width);
      const float factor = 1.0F / std::sqrt(mean + context.spec.norm.eps);
      for (std::size_t c = 0; c < width; ++c) group[c] = norm_[first + c] * (group[c] * factor);
    }
    if (!is_first) gate();
  }
  round_between(context.profile, out.values());
}

Matrix StateSpace::partial(const LayerStep& step, const Matrix& x) const {
  const StepContext& context = step.context;
  Matrix projected = product(context, in_, x);
  add_bias(in_bias_, projected);
  round_between(context.profile, projected.values());
  scale_parts(context, projected);
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
        float length = std::max(softplus_f32(projected.row(r)[steps_at + h] + step_bias_[h]),
                                spec_.least_step);
        if (spec_.most_step) length = std::min(length, *spec_.most_step);
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

}  // namespace

constinit const MixerKind kStateSpace = mixer_kind<StateSpace>("state-space");

}  // namespace ingot::inference
