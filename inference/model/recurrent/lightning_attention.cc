#include <algorithm>
#include <cmath>
#include <functional>
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
#include "inference/model/step/recent_rows.h"
#include "inference/model/step/step.h"
#include "inference/weights/block_weights.h"
#include "inference/weights/linear.h"

namespace ingot::inference {

using formats::FineRole;

namespace {

// Linear attention of heads whose states decay at rates of their own (lightning attention).
struct LightningSpec {
  std::size_t heads = 0, head_dim = 0;
  std::size_t block = 0;  ///< tokens for which a checkpoint may have constants; 0: it has none
  bool operator==(const LightningSpec&) const = default;
};

constexpr std::array kLightningRows = {
    ParameterRow<LightningSpec>{"heads", &LightningSpec::heads},
    ParameterRow<LightningSpec>{"head_dim", &LightningSpec::head_dim},
    ParameterRow<LightningSpec>{"block", &LightningSpec::block, {0, 1 << 12}}};

constexpr float kNormEps = 1e-6F;

std::vector<float> usual_slopes(std::size_t n_heads, std::size_t layer, std::size_t n_layers) {
  const double place =
      1.0 - static_cast<double>(layer) / (static_cast<double>(n_layers) - 1.0 + 1e-5) + 1e-5;
  std::vector<float> slopes;
  for (std::size_t h = 1; h <= n_heads; ++h) {
    const double exponent = -8.0 * static_cast<double>(h) / static_cast<double>(n_heads);
    slopes.push_back(static_cast<float>(std::exp2(exponent) * place));
  }
  return slopes;
}

RecurrentState state_of(const LightningSpec& spec) {
  return {.heads = spec.heads * spec.head_dim * spec.head_dim,
          .inputs = spec.block * 3 * spec.heads * spec.head_dim};
}

// Lightning attention (arXiv 2501.08313; transformers 5.24, minimax). One product gives query, key
// and value of each head, head by head; silu of all:
//   S_h <- e^-slope_h S_h + k_h v_h^T     o_h = S_h^T q_h
//   y   = out [norm over all heads of o x sigmoid(gate x)]
// Slopes are in the checkpoint, or those of head and layer:
//   slope_h = 2^(-8 (h + 1) / heads) (1 - layer / (layers - 1 + 1e-5) + 1e-5)
// A checkpoint that transformers saved may have these decays rounded, for the places i of a block
// of tokens: with S that of the block's start, and as its end makes it,
//   o_h = query_decay_i S_h^T q_h + sum over j <= i of diagonal_decay_ij (q_h . k_hj) v_hj
//   S_h <- e^(-slope_h block) S_h + sum over j of key_decay_j k_hj v_hj^T
// The norm has an epsilon of its own, 1e-6. The state of a sequence is each head's matrix, in
// FP32. Unless the profile is kF32, products, silu, heads' outputs, norm and gate are each rounded
// to BF16; the recurrence is in FP32.
class LightningAttention final : public Mixer {
 public:
  using Spec = LightningSpec;
  /// Throws kUnsupported on more than one rank of a tensor group.
  LightningAttention(const BlockWeights& weights, const StepContext& context, const Spec& spec);

  [[nodiscard]] Matrix partial(const LayerStep& step, const Matrix& x) const override;
  static Spec read(const DecoderSpec& model, Parameters& parameters, std::uint32_t layer);
  static std::vector<CacheStream> streams(const Spec& spec, const CacheForm&) {
    return {state_stream(state_of(spec).values())};
  }
  static MixerMemory memory(const Spec& spec, std::size_t, std::uint64_t) {
    return {.per_row = 6 * spec.heads * spec.head_dim};
  }

 private:
  void read_constants(const BlockWeights& weights);
  /// The rows of a run in the form with constants; `mixed` has those of all runs.
  void attend_in_blocks(const LayerStep& step, const SequenceRun& run, const Matrix& mixed,
                        Matrix& out) const;

  Spec spec_;
  Linear qkv_, gate_, out_;
  std::vector<float> decay_, norm_;
  /// [heads, block], [heads, block] and [heads, block, block]; empty: none are stored.
  std::vector<float> query_decay_, key_decay_, diagonal_decay_;
  std::vector<float> block_decay_;  ///< e^(-slope block)
};

LightningSpec LightningAttention::read(const DecoderSpec& model, Parameters& parameters,
                                       std::uint32_t) {
  LightningSpec spec{.heads = static_cast<std::size_t>(model.config.num_attention_heads),
                     .head_dim = static_cast<std::size_t>(model.config.head_dim)};
  parameters.set(spec, kLightningRows);
  return spec;
}

LightningAttention::LightningAttention(const BlockWeights& weights, const StepContext& context,
                                       const Spec& spec)
    : spec_(spec) {
  require_one_tensor_rank(context.rank, weights.layer());
  const std::size_t hidden = context.spec.hidden, width = spec.heads * spec.head_dim;
  qkv_ = weights.linear(FineRole::kLinearQkv, 3 * width, hidden);
  gate_ = weights.linear(FineRole::kLinearZ, width, hidden);
  norm_ = weights.vector(FineRole::kLinearNorm, {width});
  out_ = weights.linear(formats::Role::kLinearAttentionOut, hidden, width);
  decay_ = weights.has(FineRole::kLinearRate)
               ? any_shape(weights, FineRole::kLinearRate, spec.heads)
               : usual_slopes(spec.heads, weights.layer(), context.spec.n_main);
  if (spec.block > 0 && weights.has(FineRole::kLinearDiagonalDecay)) read_constants(weights);
  for (float& value : decay_) value = exp_f32(-value);
}

void LightningAttention::read_constants(const BlockWeights& weights) {
  const std::size_t n = spec_.heads, block = spec_.block;
  query_decay_ = weights.vector(FineRole::kLinearQueryDecay, {n, block, 1});
  key_decay_ = weights.vector(FineRole::kLinearKeyDecay, {n, block, 1});
  diagonal_decay_ = weights.vector(FineRole::kLinearDiagonalDecay, {1, n, block, block});
  for (const float slope : decay_)
    block_decay_.push_back(exp_f32(-slope * static_cast<float>(block)));
}

void LightningAttention::attend_in_blocks(const LayerStep& step, const SequenceRun& run,
                                          const Matrix& mixed, Matrix& out) const {
  const std::size_t width = spec_.head_dim, block = spec_.block, heads = spec_.heads;
  const std::span<float> state = step.state(run);
  RecentRows recent(state.subspan(state_of(spec_).heads), 3 * heads * width);
  const auto own = mixed.block(run.first_row, run.count, 0, mixed.cols());
  const std::size_t before = run.first_position % block;
  const Matrix rows = recent.followed_by(run.first_position, before, own);
  recent.keep(run.first_position, own);
  parallel_for(heads, step.context.threads, [&](std::size_t h) {
    const std::span<float> matrix = state.subspan(h * width * width, width * width);
    const auto part = [&](std::size_t row, std::size_t which) {
      return rows.row(row).subspan((3 * h + which) * width, width);
    };
    for (std::size_t r = before; r < rows.rows(); ++r) {
      const std::size_t i = r % block, first = r - i;
      const auto query = part(r, 0);
      const auto to = out.row(run.first_row + r - before).subspan(h * width, width);
      std::ranges::fill(to, 0.0F);
      for (std::size_t k = 0; k < width; ++k) {
        const float of_state = query_decay_[h * block + i] * query[k];
        for (std::size_t v = 0; v < width; ++v) to[v] += of_state * matrix[k * width + v];
      }
      for (std::size_t j = 0; j <= i; ++j) {
        const float weight =
            diagonal_decay_[(h * block + i) * block + j] * dot(query, part(first + j, 1));
        for (std::size_t v = 0; v < width; ++v) to[v] += weight * part(first + j, 2)[v];
      }
      if (i + 1 < block) continue;
      for (float& value : matrix) value *= block_decay_[h];
      for (std::size_t j = 0; j < block; ++j) {
        for (std::size_t k = 0; k < width; ++k) {
          const float key = key_decay_[h * block + j] * part(first + j, 1)[k];
          for (std::size_t v = 0; v < width; ++v)
            matrix[k * width + v] += key * part(first + j, 2)[v];
        }
      }
    }
  });
}

Matrix LightningAttention::partial(const LayerStep& step, const Matrix& x) const {
  const StepContext& context = step.context;
  const std::size_t width = spec_.head_dim;
  Matrix mixed = rounded_product(context, qkv_, x);
  for (float& value : mixed.values()) value = silu_f32(value);
  round_between(context.profile, mixed.values());
  require_finite(mixed, step.layer, "lightning attention's projection");
  Matrix out(x.rows(), spec_.heads * width);
  for (const SequenceRun& run : step.rows.runs) {
    if (!diagonal_decay_.empty()) {
      attend_in_blocks(step, run, mixed, out);
      continue;
    }
    const std::span<float> state = step.state(run);
    parallel_for(spec_.heads, context.threads, [&](std::size_t h) {
      for (std::size_t r = run.first_row; r < run.first_row + run.count; ++r) {
        const auto head = std::as_const(mixed).row(r).subspan(3 * h * width, 3 * width);
        decaying_token(head.first(width), head.subspan(width, width), head.last(width), decay_[h],
                       state.subspan(h * width * width, width * width),
                       out.row(r).subspan(h * width, width));
      }
    });
  }
  require_finite(out, step.layer, "lightning attention");
  round_between(context.profile, out.values());
  rms_norm(context.profile, out.view(), norm_, kNormEps, out.view());
  Matrix gates = rounded_product(context, gate_, x);
  for (float& value : gates.values()) value = sigmoid_f32(value);
  round_between(context.profile, gates.values());
  std::ranges::transform(out.values(), gates.values(), out.values().begin(), std::multiplies());
  round_between(context.profile, out.values());
  return product(context, out_, out);
}

}  // namespace

constinit const MixerKind kLightningAttention = mixer_kind<LightningAttention>("lightning");

}  // namespace ingot::inference
