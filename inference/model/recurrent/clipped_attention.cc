#include <algorithm>
#include <cmath>
#include <vector>

#include "formats/base/parallel.h"
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

// Grouped-query attention without rope, whose queries and keys have a greatest length.
struct ClippedSpec {
  std::size_t heads = 0, kv_heads = 0, head_dim = 0;
  std::size_t window = 0;  ///< tokens that a row sees, its own too; 0: all
  std::size_t kernel = 0;  ///< tokens of the convolutions of keys and values
  /// Taps of the convolutions are also made of each token, and queries, keys and values are of
  /// inputs of their own, each with a norm.
  bool is_dynamic = false;
  float clip = 0, distance_clip = 0;  ///< greatest length of queries and keys, and by distance
  DistanceSpec distances;
  std::optional<GrowthSpec> growth;
  bool operator==(const ClippedSpec&) const = default;

  [[nodiscard]] std::size_t queries() const { return heads * head_dim; }
  [[nodiscard]] std::size_t keys() const { return kv_heads * head_dim; }
};

constexpr Limits kLength = {1e-6, 1e9};
constexpr std::array kClippedRows = {
    ParameterRow<ClippedSpec>{"heads", &ClippedSpec::heads},
    ParameterRow<ClippedSpec>{"kv_heads", &ClippedSpec::kv_heads},
    ParameterRow<ClippedSpec>{"head_dim", &ClippedSpec::head_dim},
    ParameterRow<ClippedSpec>{"window", &ClippedSpec::window, kWindow},
    ParameterRow<ClippedSpec>{"kernel", &ClippedSpec::kernel, kKernel},
    ParameterRow<ClippedSpec>{"dynamic", &ClippedSpec::is_dynamic},
    ParameterRow<ClippedSpec>{"length_clip", &ClippedSpec::clip, kLength},
    ParameterRow<ClippedSpec>{"distance_clip", &ClippedSpec::distance_clip, kLength}};

// Attention of transformers 5.24, inkling2. Heads of queries, and of what makes logits by distance,
// have a factor per value and a greatest length; keys and values go through a convolution,
//   y = (convolution x + x) / root(taps + 1),
// keys then have that length, and value heads a norm without weights. Each token makes a sink for
// each head, and gates of what attention gives. A sequence keeps the last keys and values before
// their convolutions, in FP32.
class ClippedAttention final : public Mixer {
 public:
  using Spec = ClippedSpec;
  ClippedAttention(const BlockWeights& weights, const StepContext& context, const Spec& spec);

  [[nodiscard]] Matrix partial(const LayerStep& step, const Matrix& x) const override;
  [[nodiscard]] bool is_whole() const override { return true; }
  static Spec read(const DecoderSpec& model, Parameters& parameters, std::uint32_t layer);
  static std::vector<CacheStream> streams(const Spec& spec, const CacheForm& form);
  static MixerMemory memory(const Spec& spec, std::size_t threads, std::uint64_t longest);

 private:
  struct Convolution {
    std::vector<float> taps;  ///< [channels, kernel], the token's own last
    Linear of_token;          ///< makes more taps per head, the token's own first; empty: none
  };
  [[nodiscard]] Convolution convolution(const BlockWeights& weights, std::size_t hidden,
                                        FineRole taps, FineRole of_token) const;
  void convolve(const LayerStep& step, const Convolution& with, const Matrix& x, std::size_t place,
                Matrix& rows) const;
  void attend_run(const LayerStep& step, const SequenceRun& run, const Matrix& queries,
                  const Matrix& distances, const Matrix& sinks, Matrix& attended) const;

  Spec spec_;
  Linear q_, k_, v_, o_, gate_, sinks_, distances_;
  std::vector<float> query_factors_, distance_factors_, distance_table_;
  std::vector<float> q_norm_, k_norm_, v_norm_;  ///< norms of the inputs; empty without them
  Convolution of_keys_, of_values_;
};

ClippedSpec ClippedAttention::read(const DecoderSpec& model, Parameters& parameters,
                                   std::uint32_t) {
  const formats::ModelConfig& config = model.config;
  ClippedSpec spec{.heads = static_cast<std::size_t>(config.num_attention_heads),
                   .kv_heads = static_cast<std::size_t>(config.num_key_value_heads),
                   .head_dim = static_cast<std::size_t>(config.head_dim)};
  parameters.set(spec, kClippedRows);
  if (spec.heads % spec.kv_heads != 0) {
    refuse(fmt::format("{} heads of {} over {} key heads make no attention", spec.heads,
                       spec.head_dim, spec.kv_heads));
  }
  spec.distances = {.values = parameters.count("distance_values", 0),
                    .extent = parameters.count("distance_extent", 0, {1, kMaxCount})};
  spec.growth = growth_of(config, parameters);
  return spec;
}

std::vector<CacheStream> ClippedAttention::streams(const Spec& spec, const CacheForm& form) {
  const CacheStream heads{.width = spec.keys(), .format = form.format, .group = spec.head_dim};
  return {heads, heads, state_stream(2 * (spec.kernel - 1) * spec.keys())};
}

MixerMemory ClippedAttention::memory(const Spec& spec, std::size_t threads, std::uint64_t) {
  return {.per_row = 3 * spec.queries() + 6 * spec.keys() + spec.heads * spec.distances.values +
                     std::min(threads, spec.heads) * spec.distances.extent,
          .per_token = 2 * spec.keys() + 1};
}

ClippedAttention::ClippedAttention(const BlockWeights& weights, const StepContext& context,
                                   const Spec& spec)
    : spec_(spec) {
  const std::size_t hidden = context.spec.hidden;
  const auto [values, extent] = spec_.distances;
  q_ = weights.linear(Role::kQProj, spec_.queries(), hidden);
  k_ = weights.linear(Role::kKProj, spec_.keys(), hidden);
  v_ = weights.linear(Role::kVProj, spec_.keys(), hidden);
  o_ = weights.linear(Role::kOProj, hidden, spec_.queries());
  gate_ = weights.linear(Role::kAttentionGate, spec_.queries(), hidden);
  sinks_ = weights.linear(FineRole::kTokenSinks, spec_.heads, hidden);
  distances_ = weights.linear(FineRole::kDistanceProj, spec_.heads * values, hidden);
  distance_table_ = weights.vector(FineRole::kDistanceTable, {values, extent});
  query_factors_ = weights.vector(FineRole::kQClip, {spec_.heads, spec_.head_dim});
  distance_factors_ = weights.vector(FineRole::kDistanceClip, {spec_.heads, values});
  of_keys_ = convolution(weights, hidden, FineRole::kKConvolution, FineRole::kKConvolutionTaps);
  of_values_ = convolution(weights, hidden, FineRole::kVConvolution, FineRole::kVConvolutionTaps);
  if (!spec_.is_dynamic) return;
  q_norm_ = norm_weights(weights, context.spec, Role::kInputNorm, hidden);
  k_norm_ = norm_weights(weights, context.spec, FineRole::kKInputNorm, hidden);
  v_norm_ = norm_weights(weights, context.spec, FineRole::kVInputNorm, hidden);
}

ClippedAttention::Convolution ClippedAttention::convolution(const BlockWeights& weights,
                                                            std::size_t hidden, FineRole taps,
                                                            FineRole of_token) const {
  const std::size_t n = spec_.kernel, width = spec_.keys();
  if (!spec_.is_dynamic) return {.taps = weights.vector(taps, {width, 1, n}), .of_token = {}};
  // Stored by distance: the token's own are the first row.
  const std::vector<float> stored = weights.vector(taps, {n, width});
  Convolution with{.taps = std::vector<float>(stored.size()),
                   .of_token = weights.linear(of_token, spec_.kv_heads * n, hidden)};
  for (std::size_t t = 0; t < n; ++t) {
    for (std::size_t c = 0; c < width; ++c) with.taps[c * n + n - 1 - t] = stored[t * width + c];
  }
  return with;
}

// Shortens heads of `width` values that are longer than `most`, times factors (empty: 1) first.
void clip_heads(Profile profile, std::span<const float> factors, std::size_t width, float most,
                Matrix& heads) {
  constexpr float kEps = 1e-6F;
  for (std::size_t r = 0; r < heads.rows(); ++r) {
    const auto row = heads.row(r);
    for (std::size_t c = 0; c < factors.size(); ++c) row[c] *= factors[c];
    for (std::size_t first = 0; first < row.size(); first += width) {
      const auto head = row.subspan(first, width);
      const float factor = std::min(most / (std::sqrt(sum_of_squares(head)) + kEps), 1.0F);
      for (float& value : head) value *= factor;
    }
  }
  round_between(profile, heads.values());
}

void ClippedAttention::convolve(const LayerStep& step, const Convolution& with, const Matrix& x,
                                std::size_t place, Matrix& rows) const {
  const std::size_t width = spec_.keys(), n = spec_.kernel, before = n - 1;
  const Matrix of_token =
      with.of_token.empty() ? Matrix() : rounded_product(step.context, with.of_token, x);
  const float scale = 1.0F / std::sqrt(static_cast<float>((with.of_token.empty() ? n : 2 * n) + 1));
  for (const SequenceRun& run : step.rows.runs) {
    const auto own = rows.block(run.first_row, run.count, 0, width);
    Matrix inputs;
    if (before > 0) {
      RecentRows recent(step.state(run).subspan(place * before * width, before * width), width);
      inputs = recent.followed_by(run.first_position, before, own);
      recent.keep(run.first_position, own);
    } else {
      inputs = rows;
    }
    for (std::size_t t = 0; t < run.count; ++t) {
      float* to = own.row(t);
      for (std::size_t c = 0; c < width; ++c) {
        float sum = 0;
        for (std::size_t k = 0; k < n; ++k) {
          float tap = with.taps[c * n + k];
          if (!with.of_token.empty())
            tap += of_token.row(run.first_row + t)[c / spec_.head_dim * n + before - k];
          sum += tap * inputs.row(t + k)[c];
        }
        to[c] = (sum + to[c]) * scale;
      }
    }
  }
  round_between(step.context.profile, rows.values());
}

void ClippedAttention::attend_run(const LayerStep& step, const SequenceRun& run,
                                  const Matrix& queries, const Matrix& distances,
                                  const Matrix& sinks, Matrix& attended) const {
  const StepContext& context = step.context;
  const std::size_t width = spec_.head_dim, shared_by = spec_.heads / spec_.kv_heads;
  const std::vector<std::uint32_t> positions = first_positions(run.total());
  const Matrix keys = step.cached(context.profile, run.sequence, kKeyStream, positions);
  const Matrix values = step.cached(context.profile, run.sequence, kValueStream, positions);
  parallel_for(spec_.heads, context.threads, [&](std::size_t head) {
    AttentionNumbers numbers{context.profile, 1.0F / std::sqrt(static_cast<float>(width)), 1};
    numbers.from = [&](std::size_t row) -> std::size_t {
      const std::size_t end = run.first_position + row + 1;
      return spec_.window > 0 && end > spec_.window ? end - spec_.window : 0;
    };
    std::vector<float> own_sinks;
    for (std::size_t i = 0; i < run.count; ++i)
      own_sinks.push_back(sinks.row(run.first_row + i)[head]);
    numbers.sinks = own_sinks;
    const std::size_t n = spec_.distances.values;
    const Matrix by_distance =
        logits_by_distance(context.profile, distance_table_, spec_.distances,
                           distances.block(run.first_row, run.count, head * n, n));
    numbers.by_distance = by_distance.view();
    const std::size_t column = head / shared_by * width;
    const ScorePart parts[] = {{queries.block(run.first_row, run.count, head * width, width),
                                keys.columns(column, width)}};
    attend(
        numbers, parts, values.columns(column, width),
        [&](std::size_t row) { return run.first_position + row + 1; },
        attended.block(run.first_row, run.count, head * width, width));
  });
}

Matrix ClippedAttention::partial(const LayerStep& step, const Matrix& x) const {
  const StepContext& context = step.context;
  const Profile profile = context.profile;
  const std::size_t hidden = context.spec.hidden;
  const auto input = [&](std::size_t place, std::span<const float> norm) {
    if (x.cols() == hidden && norm.empty()) return x;
    Matrix own(x.rows(), hidden);
    const auto from = x.columns(x.cols() == hidden ? 0 : place * hidden, hidden);
    if (norm.empty()) {
      for (std::size_t r = 0; r < x.rows(); ++r)
        std::copy_n(from.row(r), hidden, own.row(r).begin());
    } else {
      rms_norm(profile, from, norm, context.spec.norm.eps, own.view());
    }
    return own;
  };
  const Matrix of_queries = input(0, q_norm_), of_keys = input(1, k_norm_),
               of_values = input(2, v_norm_);
  Matrix queries = rounded_product(context, q_, of_queries);
  clip_heads(profile, query_factors_, spec_.head_dim, spec_.clip, queries);
  grow_queries(profile, spec_.growth, step.rows.positions, queries);
  Matrix distances = rounded_product(context, distances_, of_queries);
  clip_heads(profile, distance_factors_, spec_.distances.values, spec_.distance_clip, distances);
  grow_queries(profile, spec_.growth, step.rows.positions, distances);
  Matrix keys = rounded_product(context, k_, of_keys);
  convolve(step, of_keys_, of_keys, 0, keys);
  clip_heads(profile, {}, spec_.head_dim, spec_.clip, keys);
  Matrix values = rounded_product(context, v_, of_values);
  convolve(step, of_values_, of_values, 1, values);
  const std::vector<float> ones(spec_.head_dim, 1.0F);
  for (std::size_t first = 0; first < values.cols(); first += ones.size()) {
    const auto head = values.columns(first, ones.size());
    rms_norm(profile, head, ones, context.spec.norm.eps, head);
  }
  require_finite(keys, step.layer, "the key");
  require_finite(values, step.layer, "the value");
  step.write(kKeyStream, keys.view());
  step.write(kValueStream, values.view());
  const Matrix sinks = rounded_product(context, sinks_, of_queries);
  Matrix attended(x.rows(), spec_.queries());
  for (const SequenceRun& run : step.rows.runs)
    attend_run(step, run, queries, distances, sinks, attended);
  gate_heads(context, gate_, of_queries, 1, attended);
  require_finite(attended, step.layer, "attention");
  return product(context, o_, attended);
}

}  // namespace

constinit const MixerKind kClippedAttention = mixer_kind<ClippedAttention>("clipped");

}  // namespace ingot::inference
