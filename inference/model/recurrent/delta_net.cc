#include <algorithm>
#include <cmath>
#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include "formats/base/error.h"
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

// How much of its state a delta net keeps per token, from the logit g + dt_bias.
enum class Decay : std::uint8_t {
  kSoftplus,  ///< e^(-e^A_log softplus(logit))
  kSigmoid,   ///< e^(floor sigmoid(e^A_log logit)), floor below 0
};

// A delta net: linear attention whose state takes back what a key had before it is written.
// Queries and keys are normalized after a convolution over the last tokens; each key head is read
// by value_heads / key_heads value heads.
struct DeltaNetSpec {
  std::size_t key_heads = 0, value_heads = 0, key_dim = 0, value_dim = 0;
  std::size_t kernel = 0;  ///< tokens of the convolution, the row's own too
  Decay decay = Decay::kSoftplus;
  float decay_floor = 0;
  bool decay_per_key = false;     ///< true: a decay per key (Kimi); false: one per head
  bool silu_gate = false;         ///< SiLU for the gate of the normalized output; else sigmoid
  bool twofold_beta = false;      ///< beta is up to 2, so that a state may change its sign
  float norm_adds = 0, norm_factor = 1.0F;  ///< weights of the output's norm: (w + adds) factor
  std::optional<float> norm_eps;  ///< epsilon of the output's norm; nullopt: the model's
  bool operator==(const DeltaNetSpec&) const = default;
};

constexpr std::array kDeltaNetRows = {
    ParameterRow<DeltaNetSpec>{"key_heads", &DeltaNetSpec::key_heads},
    ParameterRow<DeltaNetSpec>{"value_heads", &DeltaNetSpec::value_heads},
    ParameterRow<DeltaNetSpec>{"key_dim", &DeltaNetSpec::key_dim},
    ParameterRow<DeltaNetSpec>{"value_dim", &DeltaNetSpec::value_dim},
    ParameterRow<DeltaNetSpec>{"kernel", &DeltaNetSpec::kernel, kKernel},
    ParameterRow<DeltaNetSpec>{"decay_per_key", &DeltaNetSpec::decay_per_key},
    ParameterRow<DeltaNetSpec>{"silu_gate", &DeltaNetSpec::silu_gate},
    ParameterRow<DeltaNetSpec>{"norm_adds", &DeltaNetSpec::norm_adds, kAnyReal},
    ParameterRow<DeltaNetSpec>{"norm_factor", &DeltaNetSpec::norm_factor, kAnyReal},
    ParameterRow<DeltaNetSpec>{"twofold_beta", &DeltaNetSpec::twofold_beta}};

constexpr float kNormalizeEps = 1e-6F;

std::size_t key_values(const DeltaNetSpec& spec) {
  return spec.key_heads * spec.key_dim;
}

std::size_t value_values(const DeltaNetSpec& spec) {
  return spec.value_heads * spec.value_dim;
}

std::size_t channels(const DeltaNetSpec& spec) {
  return 2 * key_values(spec) + value_values(spec);
}

std::size_t decays(const DeltaNetSpec& spec) {
  return spec.value_heads * (spec.decay_per_key ? spec.key_dim : 1);
}

std::size_t head_state(const DeltaNetSpec& spec) {
  return spec.key_dim * spec.value_dim;
}

RecurrentState state_of(const DeltaNetSpec& spec) {
  return {.heads = spec.value_heads * spec.key_dim * spec.value_dim,
          .inputs = (spec.kernel - 1) * channels(spec)};
}

// The delta nets of Qwen3-Next and Qwen3.5 (gated delta net) and of Kimi Linear, Ling 3 and
// GLM-5.3 (Kimi Delta Attention), and of OLMo Hybrid; transformers has them under those names.
//
//   q, k, v = silu(convolve(projections of x)), q and k normalized, q over sqrt(key_dim)
//
//   o_h = delta rule of head h (recurrence.h), its decay as Decay says, beta = sigmoid(b x)
//
//   y = out [norm(o_h) weight x gate_h]_h, gate = silu or sigmoid of a projection of x
//
// The state of a sequence is each head's matrix and the last inputs of the convolution, in FP32.
// Unless the profile is kF32, projections, the convolution, its silu, beta and the gated output
// are each rounded to BF16; the recurrence is in FP32.
class DeltaNet final : public Mixer {
 public:
  using Spec = DeltaNetSpec;
  /// Reads the weights; the rows of the layer tell which projections are fused. Throws kUnsupported
  /// on more than one rank of a tensor group.
  DeltaNet(const BlockWeights& weights, const StepContext& context, const Spec& spec);

  [[nodiscard]] Matrix partial(const LayerStep& step, const Matrix& x) const override;
  static Spec read(const DecoderSpec& model, Parameters& parameters, std::uint32_t layer);
  static std::vector<CacheStream> streams(const Spec& spec, const CacheForm&) {
    return {state_stream(state_of(spec).values())};
  }
  static MixerMemory memory(const Spec& spec, std::size_t, std::uint64_t) {
    return {.per_row =
                6 * (2 * spec.key_heads * spec.key_dim + 2 * spec.value_heads * spec.value_dim) +
                spec.value_heads * spec.key_dim};
  }

 private:
  /// Projections of every row, heads side by side.
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

  Spec spec_;
  Linear fused_, fused_small_;  ///< queries, keys, values and gates; beta and decay
  /// Matrices of queries, keys and values, where they are not fused with the gates.
  std::vector<Linear> mixed_;
  Projection gate_, beta_, decay_;
  std::vector<float> convolution_;  ///< [channels, kernel]
  std::vector<float> rate_, decay_bias_, norm_;
  Linear out_;
};

DeltaNetSpec DeltaNet::read(const DecoderSpec&, Parameters& parameters, std::uint32_t) {
  DeltaNetSpec net;
  parameters.set(net, kDeltaNetRows);
  if (const auto eps = parameters.real("norm_eps", {1e-12, 1}))
    net.norm_eps = static_cast<float>(*eps);
  const std::optional<double> floor = parameters.real("decay_floor", {-1e6, 0});
  if (floor && parameters.flag("has_decay_floor", true)) {
    net.decay = Decay::kSigmoid;
    net.decay_floor = static_cast<float>(*floor);
  }
  if (net.value_heads % net.key_heads != 0) {
    refuse(fmt::format("{} value heads over {} key heads make no linear attention", net.value_heads,
                       net.key_heads));
  }
  return net;
}

Matrix DeltaNet::Projection::apply(const StepContext& context, const Matrix& x) const {
  Matrix y = rounded_product(context, first, x);
  return second.empty() ? y : rounded_product(context, second, y);
}

DeltaNet::DeltaNet(const BlockWeights& weights, const StepContext& context, const Spec& spec)
    : spec_(spec) {
  require_one_tensor_rank(context.rank, weights.layer());
  const std::size_t hidden = context.spec.hidden;
  if (weights.expects(FineRole::kLinearQkvz)) {
    load_fused(weights, hidden);
  } else {
    load_single(weights, hidden);
  }
  load_convolution(weights);
  rate_ = any_shape(weights, FineRole::kLinearRate, spec.value_heads);
  for (float& rate : rate_) rate = exp_f32(rate);
  decay_bias_ = weights.vector(FineRole::kLinearStepBias, {decays(spec)});
  norm_ = weights.vector(FineRole::kLinearNorm, {spec.value_dim});
  for (float& weight : norm_) weight = (weight + spec.norm_adds) * spec.norm_factor;
  out_ = weights.linear(formats::Role::kLinearAttentionOut, hidden, value_values(spec));
}

void DeltaNet::load_fused(const BlockWeights& weights, std::size_t hidden) {
  if (spec_.decay_per_key) {
    throw Error(ErrorCode::kUnsupported, "fused projections with a decay per key")
        .in_tensor(weights.name(FineRole::kLinearQkvz));
  }
  fused_ = weights.linear(FineRole::kLinearQkvz, channels(spec_) + value_values(spec_), hidden);
  fused_small_ = weights.linear(FineRole::kLinearBetaDecay, 2 * spec_.value_heads, hidden);
}

void DeltaNet::load_single(const BlockWeights& weights, std::size_t hidden) {
  // Through a narrow product where there are two matrices.
  const auto through = [&](FineRole whole, FineRole first, FineRole second, std::size_t rows) {
    if (!weights.expects(first)) return Projection{weights.linear(whole, rows, hidden), {}};
    const std::size_t width = spec_.value_dim;
    return Projection{weights.linear(first, width, hidden), weights.linear(second, rows, width)};
  };
  beta_ = {weights.linear(FineRole::kLinearBeta, spec_.value_heads, hidden), {}};
  decay_ = through(FineRole::kLinearDecay, FineRole::kLinearDecayA, FineRole::kLinearDecayB,
                   decays(spec_));
  if (weights.expects(FineRole::kLinearQkv)) {
    mixed_ = {weights.linear(FineRole::kLinearQkv, channels(spec_), hidden)};
    gate_ = {weights.linear(FineRole::kLinearZ, value_values(spec_), hidden), {}};
    return;
  }
  mixed_ = {weights.linear(FineRole::kLinearQ, key_values(spec_), hidden),
            weights.linear(FineRole::kLinearK, key_values(spec_), hidden),
            weights.linear(FineRole::kLinearV, value_values(spec_), hidden)};
  const bool is_z = weights.expects(FineRole::kLinearZ);
  gate_ = through(is_z ? FineRole::kLinearZ : FineRole::kLinearGate, FineRole::kLinearGateA,
                  FineRole::kLinearGateB, value_values(spec_));
}

void DeltaNet::load_convolution(const BlockWeights& weights) {
  const auto add = [&](FineRole role, std::size_t rows) {
    const auto part = weights.vector(role, {rows, 1, spec_.kernel});
    convolution_.insert(convolution_.end(), part.begin(), part.end());
  };
  if (weights.expects(FineRole::kLinearConvolution)) {
    add(FineRole::kLinearConvolution, channels(spec_));
    return;
  }
  add(FineRole::kLinearQConvolution, key_values(spec_));
  add(FineRole::kLinearKConvolution, key_values(spec_));
  add(FineRole::kLinearVConvolution, value_values(spec_));
}

DeltaNet::Projected DeltaNet::project(const StepContext& context, const Matrix& x) const {
  const std::size_t keys = key_values(spec_), values = value_values(spec_);
  Projected to{.mixed = Matrix(x.rows(), channels(spec_)), .gate = {}, .beta = {}, .decay = {}};
  if (fused_.empty()) {
    std::size_t column = 0;
    for (const Linear& linear : mixed_) {
      linear.apply(x.view(), to.mixed.columns(column, linear.rows()), context.threads);
      column += linear.rows();
    }
    round_between(context.profile, to.mixed.values());
    to.gate = gate_.apply(context, x);
    to.beta = beta_.apply(context, x);
    to.decay = decay_.apply(context, x);
    return to;
  }
  // Key head by key head: its query and key, and the values and gates of those that read it.
  const Matrix all = rounded_product(context, fused_, x);
  const Matrix small = rounded_product(context, fused_small_, x);
  to.gate = Matrix(x.rows(), values);
  to.beta = Matrix(x.rows(), spec_.value_heads);
  to.decay = Matrix(x.rows(), spec_.value_heads);
  const std::size_t group = spec_.value_heads / spec_.key_heads, wide = group * spec_.value_dim;
  for (std::size_t r = 0; r < x.rows(); ++r) {
    const float* from = all.row(r).data();
    const float* from_small = small.row(r).data();
    const auto take = [](const float*& source, std::span<float> row, std::size_t head,
                         std::size_t n) {
      std::copy_n(source, n, row.subspan(head * n, n).begin());
      source += n;
    };
    for (std::size_t h = 0; h < spec_.key_heads; ++h) {
      take(from, to.mixed.row(r).first(keys), h, spec_.key_dim);
      take(from, to.mixed.row(r).subspan(keys, keys), h, spec_.key_dim);
      take(from, to.mixed.row(r).subspan(2 * keys), h, wide);
      take(from, to.gate.row(r), h, wide);
      take(from_small, to.beta.row(r), h, group);
      take(from_small, to.decay.row(r), h, group);
    }
  }
  return to;
}

void DeltaNet::to_decays(Matrix& logits) const {
  const std::size_t per_head = logits.cols() / spec_.value_heads;
  for (std::size_t r = 0; r < logits.rows(); ++r) {
    const auto row = logits.row(r);
    for (std::size_t i = 0; i < row.size(); ++i) {
      const float rate = rate_[i / per_head], logit = row[i] + decay_bias_[i];
      row[i] =
          exp_f32(spec_.decay == Decay::kSigmoid ? spec_.decay_floor * sigmoid_f32(rate * logit)
                                                 : -rate * softplus_f32(logit));
    }
  }
}

Matrix DeltaNet::convolved(const LayerStep& step, const SequenceRun& run, const Matrix& mixed,
                           std::span<float> state) const {
  const std::size_t width = channels(spec_);
  const MatrixView<const float> weights{convolution_.data(), width, spec_.kernel, spec_.kernel};
  Matrix out = inference::convolved(step.context.profile, run, weights, {},
                                    mixed.block(run.first_row, run.count, 0, width), state);
  for (float& value : out.values()) value = silu_f32(value);
  round_between(step.context.profile, out.values());
  const float scale = 1.0F / std::sqrt(static_cast<float>(spec_.key_dim));
  for (std::size_t r = 0; r < out.rows(); ++r) {
    for (std::size_t h = 0; h < 2 * spec_.key_heads; ++h) {
      const auto head = out.row(r).subspan(h * spec_.key_dim, spec_.key_dim);
      l2_normalize(head, kNormalizeEps);
      for (float& value : head) value *= h < spec_.key_heads ? scale : 1.0F;
    }
  }
  return out;
}

Matrix DeltaNet::partial(const LayerStep& step, const Matrix& x) const {
  const StepContext& context = step.context;
  Projected in = project(context, x);
  require_finite(in.mixed, step.layer, "linear attention's projection");
  for (float& value : in.beta.values())
    value = sigmoid_f32(value) * (spec_.twofold_beta ? 2.0F : 1.0F);
  round_between(context.profile, in.beta.values());
  to_decays(in.decay);
  const std::size_t keys = key_values(spec_), dk = spec_.key_dim, dv = spec_.value_dim;
  const std::size_t group = spec_.value_heads / spec_.key_heads;
  const std::size_t per_head = in.decay.cols() / spec_.value_heads;
  Matrix out(x.rows(), value_values(spec_));
  for (const SequenceRun& run : step.rows.runs) {
    const std::span<float> state = step.state(run);
    const std::size_t heads_end = state_of(spec_).heads;
    const Matrix mixed = convolved(step, run, in.mixed, state.subspan(heads_end));
    parallel_for(spec_.value_heads, context.threads, [&](std::size_t h) {
      for (std::size_t i = 0; i < run.count; ++i) {
        const std::size_t r = run.first_row + i;
        const auto row = mixed.row(i);
        delta_rule_token(row.subspan(h / group * dk, dk), row.subspan(keys + h / group * dk, dk),
                         row.subspan(2 * keys + h * dv, dv),
                         std::as_const(in.decay).row(r).subspan(h * per_head, per_head),
                         in.beta.row(r)[h], state.subspan(h * head_state(spec_), head_state(spec_)),
                         out.row(r).subspan(h * dv, dv));
      }
    });
  }
  require_finite(out, step.layer, "linear attention");
  const float eps = spec_.norm_eps.value_or(context.spec.norm.eps);
  round_between(context.profile, out.values());
  for (std::size_t r = 0; r < x.rows(); ++r) {
    for (std::size_t h = 0; h < spec_.value_heads; ++h) {
      const auto head = out.row(r).subspan(h * dv, dv);
      const auto gate = std::as_const(in.gate).row(r).subspan(h * dv, dv);
      const float mean = sum_of_squares(head) / static_cast<float>(dv);
      const float factor = 1.0F / std::sqrt(mean + eps);
      for (std::size_t j = 0; j < dv; ++j) {
        head[j] = norm_[j] * (head[j] * factor) *
                  (spec_.silu_gate ? silu_f32(gate[j]) : sigmoid_f32(gate[j]));
      }
    }
  }
  round_between(context.profile, out.values());
  return product(context, out_, out);
}

}  // namespace

constinit const MixerKind kDeltaNet = mixer_kind<DeltaNet>("delta-net");

}  // namespace ingot::inference
