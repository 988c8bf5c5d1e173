#include <algorithm>
#include <vector>

#include "formats/base/parallel.h"
#include "inference/base/matrix.h"
#include "inference/family/parameters.h"
#include "inference/family/spec_parts.h"
#include "inference/kernels/vector_math.h"
#include "inference/model/recurrent/recurrence.h"
#include "inference/model/recurrent/whole_layer.h"
#include "inference/model/spec/mixer_kinds.h"
#include "inference/model/step/norm.h"
#include "inference/model/step/short_convolution.h"
#include "inference/model/step/step.h"
#include "inference/weights/block_weights.h"
#include "inference/weights/linear.h"

namespace ingot::inference {

using formats::FineRole;

namespace {

// A selective state space with a step and decays for each channel (Mamba-1). B, C and steps are
// made of the convolved channels, steps through `step_rank` values.
struct SelectiveScanSpec {
  std::size_t channels = 0, state = 0, step_rank = 0;
  std::size_t kernel = 0;    ///< tokens of the convolution
  bool inner_norms = false;  ///< norms of B, C and the values that steps are made of
  bool convolution_bias = false, projection_bias = false;
  bool operator==(const SelectiveScanSpec&) const = default;
};

constexpr std::array kSelectiveScanRows = {
    ParameterRow<SelectiveScanSpec>{"channels", &SelectiveScanSpec::channels, kChannels},
    ParameterRow<SelectiveScanSpec>{"state", &SelectiveScanSpec::state},
    ParameterRow<SelectiveScanSpec>{"step_rank", &SelectiveScanSpec::step_rank},
    ParameterRow<SelectiveScanSpec>{"kernel", &SelectiveScanSpec::kernel, kKernel},
    ParameterRow<SelectiveScanSpec>{"inner_norms", &SelectiveScanSpec::inner_norms},
    ParameterRow<SelectiveScanSpec>{"convolution_bias", &SelectiveScanSpec::convolution_bias},
    ParameterRow<SelectiveScanSpec>{"projection_bias", &SelectiveScanSpec::projection_bias}};

RecurrentState state_of(const SelectiveScanSpec& spec) {
  return {.heads = spec.channels * spec.state, .inputs = (spec.kernel - 1) * spec.channels};
}

// Mamba-1 (arXiv 2312.00752; transformers 5.24, jamba). One product gives what is convolved, a
// value per channel, and a gate z; another one of the result gives values for steps, B and C,
// each normed where the spec says so:
//   v       = silu(convolve(.))     step = softplus(step_proj [.] + step_bias)
//   s[c, n] <- e^(-e^A_log[c, n] step_c) s[c, n] + step_c B[n] v_c
//   o_c     = s[c] . C + D_c v_c
//   y       = out [o x silu(z)]
// The state of a sequence is that of all channels and the last inputs of the convolution, in FP32.
// Unless the profile is kF32, products, the convolution, its silu, steps and the gated output are
// each rounded to BF16; the recurrence is in FP32.
class SelectiveScan final : public Mixer {
 public:
  using Spec = SelectiveScanSpec;
  /// Throws kUnsupported on more than one rank of a tensor group.
  SelectiveScan(const BlockWeights& weights, const StepContext& context, const Spec& spec);

  [[nodiscard]] Matrix partial(const LayerStep& step, const Matrix& x) const override;
  static Spec read(const DecoderSpec& model, Parameters& parameters, std::uint32_t layer);
  static std::vector<CacheStream> streams(const Spec& spec, const CacheForm&) {
    return {state_stream(state_of(spec).values())};
  }
  static MixerMemory memory(const Spec& spec, std::size_t, std::uint64_t) {
    return {.per_row = 6 * (spec.channels + spec.step_rank + spec.state)};
  }

 private:
  /// The convolved channels' choices for each row: its steps, and B and C.
  struct Choices {
    Matrix steps, b, c;
  };
  Choices choose(const StepContext& context, const Matrix& mixed) const;

  Spec spec_;
  Linear in_, choose_, step_, out_;
  std::vector<float> in_bias_, out_bias_, convolution_bias_;  ///< biases; may be empty
  std::vector<float> convolution_;                            ///< [channels, kernel]
  std::vector<float> rate_;                                   ///< [channels, state]
  std::vector<float> skip_, step_bias_;
  std::vector<float> step_norm_, b_norm_, c_norm_;  ///< empty: none
};

SelectiveScanSpec SelectiveScan::read(const DecoderSpec&, Parameters& parameters, std::uint32_t) {
  SelectiveScanSpec scan;
  parameters.set(scan, kSelectiveScanRows);
  return scan;
}

SelectiveScan::SelectiveScan(const BlockWeights& weights, const StepContext& context,
                             const Spec& spec)
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

}  // namespace

constinit const MixerKind kSelectiveScan = mixer_kind<SelectiveScan>("selective-scan");

}  // namespace ingot::inference
