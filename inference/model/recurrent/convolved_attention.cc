#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "formats/base/error.h"
#include "formats/base/parallel.h"
#include "formats/config/derived_keys.h"
#include "formats/json/json.h"
#include "inference/family/parameters.h"
#include "inference/family/spec_parts.h"
#include "inference/kernels/vector_math.h"
#include "inference/model/attention/attention.h"
#include "inference/model/recurrent/whole_layer.h"
#include "inference/model/spec/mixer_kinds.h"
#include "inference/model/step/norm.h"
#include "inference/model/step/recent_rows.h"
#include "inference/model/step/short_convolution.h"
#include "inference/model/step/step.h"

namespace ingot::inference {

using formats::FineRole;
using formats::Role;

namespace {

// Grouped-query attention whose queries and keys go through two convolutions over the last tokens.
struct ConvolvedSpec {
  std::size_t heads = 0, kv_heads = 0, head_dim = 0;
  /// Tokens of the convolution of each value by itself, and of that of each head.
  std::size_t value_kernel = 0, head_kernel = 0;
  std::size_t window = 0;  ///< tokens that a row sees, its own too; 0: all
  RopeSpec rope;           ///< rotation of the first values of a head
  bool operator==(const ConvolvedSpec&) const = default;

  [[nodiscard]] std::size_t queries() const { return heads * head_dim; }
  [[nodiscard]] std::size_t keys() const { return kv_heads * head_dim; }
  [[nodiscard]] std::size_t both() const { return queries() + keys(); }
  /// Earlier tokens that the convolutions read.
  [[nodiscard]] std::size_t before() const { return value_kernel - 1 + head_kernel - 1; }
};

constexpr std::array kConvolvedRows = {
    ParameterRow<ConvolvedSpec>{"value_kernel", &ConvolvedSpec::value_kernel, kKernel},
    ParameterRow<ConvolvedSpec>{"head_kernel", &ConvolvedSpec::head_kernel, kKernel},
    ParameterRow<ConvolvedSpec>{"window", &ConvolvedSpec::window, kWindow}};

// Convolutional attention (transformers 5.24, zaya). With q0 and k0 the projections of a token:
//   c  = head convolution(value convolution([q0 | k0]))
//   q  = c's queries + m, where m of a head is half the sum of its q0 and of its key head's k0
//   k  = c's keys + the mean of m over the heads of the key head
// Both are normed to the root of their width, keys also times a factor of their head, and rotated.
// Values are two halves side by side: one of the token, one of the token before. A sequence keeps
// the last [q0 | k0] and the last delayed half, in FP32.
class ConvolvedAttention final : public Mixer {
 public:
  using Spec = ConvolvedSpec;
  ConvolvedAttention(const BlockWeights& weights, const StepContext& context, const Spec& spec);

  [[nodiscard]] Matrix partial(const LayerStep& step, const Matrix& x) const override;
  [[nodiscard]] bool is_whole() const override { return true; }
  static Spec read(const DecoderSpec& model, Parameters& parameters, std::uint32_t layer);
  static std::vector<CacheStream> streams(const Spec& spec, const CacheForm& form);
  static MixerMemory memory(const Spec& spec, std::size_t threads, std::uint64_t longest);

 private:
  /// Queries and keys of a run, convolved, with their means added: [rows, queries and keys].
  [[nodiscard]] Matrix mixed(const SequenceRun& run, MatrixView<const float> projected,
                             std::span<float> state) const;
  /// Norms and rotates the heads in some columns.
  void finish(const RopeAngles& angles, std::size_t first, std::span<const float> factors,
              Matrix& both) const;
  void attend_run(const LayerStep& step, const SequenceRun& run, const Matrix& queries,
                  Matrix& attended) const;

  Spec spec_;
  Linear q_, k_, v_, delayed_, o_;
  std::vector<float> value_taps_, value_bias_;  ///< [queries and keys, kernel]
  std::vector<float> head_taps_, head_bias_;    ///< [queries and keys, head_dim, kernel]
  std::vector<float> key_factors_;
};

ConvolvedSpec ConvolvedAttention::read(const DecoderSpec& model, Parameters& parameters,
                                       std::uint32_t layer) {
  const std::string type = formats::entry_of(value_of(model.config, "layer_types"), layer);
  const formats::ModelConfig config = formats::config_of_layers(model.config, type);
  ConvolvedSpec spec{.heads = of_heads(config.num_attention_heads, "num_attention_heads"),
                     .kv_heads = of_heads(config.num_key_value_heads, "num_key_value_heads"),
                     .head_dim = of_heads(config.head_dim, "head_dim")};
  if (spec.heads % spec.kv_heads != 0 || spec.keys() % 2 != 0) {
    refuse(fmt::format("{} heads of {} over {} key heads make no attention", spec.heads,
                       spec.head_dim, spec.kv_heads));
  }
  parameters.set(spec, kConvolvedRows);
  const auto rope = rope_fields(config);
  const double part = rope ? rope->optional_real("partial_rotary_factor", 0, 1).value_or(1) : 1;
  spec.rope =
      rope_spec(config.rope, static_cast<std::size_t>(part * static_cast<double>(spec.head_dim)),
                /*interleaved=*/false, rope_bands(config));
  return spec;
}

std::vector<CacheStream> ConvolvedAttention::streams(const Spec& spec, const CacheForm& form) {
  const CacheStream heads{.width = spec.keys(), .format = form.format, .group = spec.head_dim};
  return {heads, heads, state_stream(spec.before() * spec.both() + spec.keys() / 2)};
}

MixerMemory ConvolvedAttention::memory(const Spec& spec, std::size_t, std::uint64_t) {
  return {.per_row = 5 * spec.both() + 4 * spec.keys(), .per_token = 2 * spec.keys() + 1};
}

ConvolvedAttention::ConvolvedAttention(const BlockWeights& weights, const StepContext& context,
                                       const Spec& spec)
    : spec_(spec) {
  const std::size_t hidden = context.spec.hidden, both = spec_.both();
  q_ = weights.linear(Role::kQProj, spec_.queries(), hidden);
  k_ = weights.linear(Role::kKProj, spec_.keys(), hidden);
  v_ = weights.linear(Role::kVProj, spec_.keys() / 2, hidden);
  delayed_ = weights.linear(FineRole::kVDelayedProj, spec_.keys() / 2, hidden);
  o_ = weights.linear(Role::kOProj, hidden, spec_.queries());
  value_taps_ = weights.vector(FineRole::kQkConvolution, {both, 1, spec_.value_kernel});
  value_bias_ = weights.vector(FineRole::kQkConvolutionBias, {both});
  head_taps_ =
      weights.vector(FineRole::kQkGroupConvolution, {both, spec_.head_dim, spec_.head_kernel});
  head_bias_ = weights.vector(FineRole::kQkGroupConvolutionBias, {both});
  key_factors_ = weights.vector(FineRole::kKeyFactor, {spec_.kv_heads});
}

Matrix ConvolvedAttention::mixed(const SequenceRun& run, MatrixView<const float> projected,
                                 std::span<float> state) const {
  const std::size_t width = spec_.head_dim, kernel = spec_.head_kernel;
  Matrix inputs;
  if (spec_.before() > 0) {
    RecentRows recent(state, spec_.both());
    inputs = recent.followed_by(run.first_position, spec_.before(), projected);
    recent.keep(run.first_position, projected);
  } else {
    inputs = gathered(projected, first_positions(run.count));
  }
  Matrix values(kernel - 1 + run.count, spec_.both());
  convolve({value_taps_.data(), spec_.both(), spec_.value_kernel, spec_.value_kernel}, value_bias_,
           inputs.view(), values.view());
  Matrix out(run.count, spec_.both());
  for (std::size_t t = 0; t < run.count; ++t) {
    const auto to = out.row(t);
    for (std::size_t c = 0; c < spec_.both(); ++c) {
      const float* taps = head_taps_.data() + c * width * kernel;
      float sum = head_bias_[c];
      for (std::size_t i = 0; i < width; ++i) {
        for (std::size_t k = 0; k < kernel; ++k)
          sum += taps[i * kernel + k] * values.row(t + k)[c / width * width + i];
      }
      to[c] = sum;
    }
    const std::size_t shared_by = spec_.heads / spec_.kv_heads;
    const float* from = projected.row(t);
    for (std::size_t c = 0; c < spec_.queries(); ++c) {
      const std::size_t key = spec_.queries() + c / width / shared_by * width + c % width;
      const float mean = (from[c] + from[key]) / 2;
      to[c] += mean;
      to[key] += mean / static_cast<float>(shared_by);
    }
  }
  return out;
}

void ConvolvedAttention::finish(const RopeAngles& angles, std::size_t first,
                                std::span<const float> factors, Matrix& both) const {
  const std::size_t width = spec_.head_dim;
  const float length = std::sqrt(static_cast<float>(width));
  for (std::size_t r = 0; r < both.rows(); ++r) {
    for (std::size_t h = 0; h < factors.size(); ++h) {
      const auto head = both.row(r).subspan(first + h * width, width);
      const float own =
          std::max(std::sqrt(sum_of_squares(head)), std::numeric_limits<float>::epsilon());
      for (float& value : head) value *= length / own * factors[h];
      angles.rotate(r, head.first(spec_.rope.dim));
    }
  }
}

void ConvolvedAttention::attend_run(const LayerStep& step, const SequenceRun& run,
                                    const Matrix& queries, Matrix& attended) const {
  const StepContext& context = step.context;
  const std::size_t width = spec_.head_dim, shared_by = spec_.heads / spec_.kv_heads;
  const auto first_seen = [&](std::size_t position) -> std::size_t {
    return spec_.window > 0 && position >= spec_.window ? position + 1 - spec_.window : 0;
  };
  const std::vector<std::uint32_t> positions = first_positions(run.total());
  const Matrix keys = step.cached(context.profile, run.sequence, kKeyStream, positions);
  const Matrix values = step.cached(context.profile, run.sequence, kValueStream, positions);
  parallel_for(spec_.heads, context.threads, [&](std::size_t head) {
    AttentionNumbers numbers{context.profile, 1.0F / std::sqrt(static_cast<float>(width)), 1};
    numbers.from = [&](std::size_t row) { return first_seen(run.first_position + row); };
    const std::size_t column = head / shared_by * width;
    const ScorePart parts[] = {{queries.block(run.first_row, run.count, head * width, width),
                                keys.columns(column, width)}};
    attend(
        numbers, parts, values.columns(column, width),
        [&](std::size_t row) { return run.first_position + row + 1; },
        attended.block(run.first_row, run.count, head * width, width));
  });
}

Matrix ConvolvedAttention::partial(const LayerStep& step, const Matrix& x) const {
  const StepContext& context = step.context;
  const std::size_t half = spec_.keys() / 2;
  Matrix both(x.rows(), spec_.both()), values(x.rows(), spec_.keys());
  q_.apply(x.view(), both.columns(0, spec_.queries()), context.threads);
  k_.apply(x.view(), both.columns(spec_.queries(), spec_.keys()), context.threads);
  v_.apply(x.view(), values.columns(0, half), context.threads);
  const Matrix delayed = rounded_product(context, delayed_, x);
  round_between(context.profile, both.values());
  require_finite(both, step.layer, "the query and the key");
  for (const SequenceRun& run : step.rows.runs) {
    const std::span<float> state = step.state(run);
    const auto mine = both.block(run.first_row, run.count, 0, spec_.both());
    const Matrix out = mixed(run, mine, state.first(spec_.before() * spec_.both()));
    RecentRows last(state.last(half), half);
    const auto own = delayed.block(run.first_row, run.count, 0, half);
    const Matrix before = last.followed_by(run.first_position, 1, own);
    last.keep(run.first_position, own);
    for (std::size_t i = 0; i < run.count; ++i) {
      std::ranges::copy(out.row(i), mine.row(i));
      std::ranges::copy(before.row(i), values.row(run.first_row + i).last(half).begin());
    }
  }
  round_between(context.profile, values.values());
  const RopeAngles angles(context.profile, spec_.rope, step.rows.positions);
  finish(angles, 0, std::vector<float>(spec_.heads, 1.0F), both);
  finish(angles, spec_.queries(), key_factors_, both);
  round_between(context.profile, both.values());
  require_finite(values, step.layer, "the value");
  step.write(kKeyStream, both.columns(spec_.queries(), spec_.keys()));
  step.write(kValueStream, values.view());
  Matrix attended(x.rows(), spec_.queries());
  for (const SequenceRun& run : step.rows.runs) attend_run(step, run, both, attended);
  require_finite(attended, step.layer, "attention");
  return product(context, o_, attended);
}

}  // namespace

constinit const MixerKind kConvolvedAttention = mixer_kind<ConvolvedAttention>("convolved");

}  // namespace ingot::inference
