#include <algorithm>
#include <atomic>
#include <cmath>
#include <numeric>

#include "formats/base/error.h"
#include "formats/base/parallel.h"
#include "formats/container/float8.h"
#include "inference/kernels/matmul.h"
#include "inference/kernels/quantized/quantized_matmul.h"
#include "inference/model/attention/attention.h"
#include "inference/model/attention/pooled_window.h"
#include "inference/model/step/norm.h"
#include "inference/model/step/recent_rows.h"
#include "inference/model/step/step.h"

namespace ingot::inference {

using formats::FineRole;
using formats::Role;

namespace {

constexpr float kKeyNormEps = 1e-6F;

// Replaces a head by the values of its FP8 codes, as the cache does with keys.
void through_fp8(std::span<float> head, bool power_of_two) {
  const QuantizedRows rows = quantize_activations(
      {head.data(), 1, head.size(), head.size()},
      {.code = formats::CodeKind::kE4m3, .group = head.size(), .power_of_two = power_of_two});
  for (std::size_t i = 0; i < head.size(); ++i) {
    head[i] = formats::float_from_e4m3(rows.codes[i]) * rows.scales[0];
  }
}

// Tokens of the chosen pools, and those from the first that no row may leave out.
std::vector<std::uint32_t> tokens_of(std::span<const std::uint32_t> chosen, std::size_t pool,
                                     std::size_t from, std::size_t n_tokens) {
  std::vector<std::uint32_t> tokens;
  for (const std::uint32_t number : chosen) {
    for (std::size_t i = 0; i < pool; ++i)
      tokens.push_back(static_cast<std::uint32_t>(number * pool + i));
  }
  for (std::size_t t = from; t < n_tokens; ++t)
    tokens.push_back(static_cast<std::uint32_t>(t));
  return tokens;
}

}  // namespace

std::vector<float> index_scores(formats::MatrixView<const float> heads,
                                std::span<const float> weights, const Matrix& keys, std::size_t n) {
  Matrix products(heads.rows, n);
  matmul(heads, f32_matrix(keys.values().data(), n, keys.cols(), keys.cols()),
         WeightRounding::kExact, products.view(), 1);
  std::vector<float> scores(n, 0.0F);
  for (std::size_t h = 0; h < heads.rows; ++h) {
    const auto row = products.row(h);
    for (std::size_t t = 0; t < n; ++t) {
      const float positive = row[t] > 0 ? row[t] : 0.0F;
      scores[t] += weights[h] * positive;
    }
  }
  return scores;
}

std::vector<std::uint32_t> best_positions(std::span<const float> scores, std::size_t topk) {
  std::vector<std::uint32_t> order(scores.size());
  std::iota(order.begin(), order.end(), 0U);
  const auto cut = order.begin() + static_cast<std::ptrdiff_t>(topk);
  std::nth_element(order.begin(), cut - 1, order.end(), [&](std::uint32_t a, std::uint32_t b) {
    return scores[a] > scores[b] || (scores[a] == scores[b] && a < b);
  });
  order.erase(cut, order.end());
  std::sort(order.begin(), order.end());
  return order;
}

Indexer::Indexer(const BlockWeights& weights, const StepContext& context, const LatentSpec& latent)
    : spec_(*latent.indexer) {
  const IndexerSpec& spec = spec_;
  const std::size_t hidden = context.spec.hidden;
  if (latent.rope_dim > 0) rope_ = with_learned_frequencies(weights.store(), spec.rope);
  queries_ = weights.linear(Role::kIndexerQ, spec.heads * spec.head_dim,
                            spec.from_input ? hidden : latent.q_lora);
  if (spec.from_input) {
    input_norm_ = weights.vector(FineRole::kIndexerInputNorm, {hidden});
    input_bias_ = weights.vector(FineRole::kIndexerInputNormBias, {hidden});
    growth_ = HeadGrowth(weights, FineRole::kIndexerQueryGrowth, FineRole::kIndexerQueryGrowthBias,
                         spec.heads, {0, spec.heads});
  }
  keys_ = weights.linear(Role::kIndexerK, spec.head_dim, hidden);
  weights_ = weights.linear(Role::kIndexerWeights, spec.heads, hidden);
  key_norm_ = weights.vector(Role::kIndexerKNorm, {spec.head_dim});
  key_bias_ = weights.vector(FineRole::kIndexerKNormBias, {spec.head_dim});
  if (spec.pool == 1) return;
  pool_logits_ = weights.linear(FineRole::kIndexerPoolGate, spec.head_dim, hidden);
  place_logits_ = weights.vector(FineRole::kIndexerPoolPlaces, {spec.pool, spec.head_dim});
}

Indexer::Indexer(const BlockWeights& weights, const StepContext& context, const IndexerSpec& spec)
    : spec_(spec), rope_(spec.rope) {
  const std::size_t n = spec.heads * spec.head_dim, width = spec.head_dim;
  const std::size_t hidden = context.spec.hidden;
  if (spec.by_group) {
    queries_ = weights.linear(Role::kIndexerQ, n, hidden);
    keys_ = weights.linear(Role::kIndexerK, width, hidden);
    weights_ = weights.linear(Role::kIndexerWeights, spec.heads, hidden);
    pool_logits_ = weights.linear(FineRole::kIndexerPoolGate, width, hidden);
    place_logits_.assign(spec.pool * width, 0.0F);
    query_norm_ = norm_weights(weights, context.spec, FineRole::kIndexerQNorm, width);
    key_norm_ = weights.vector(Role::kIndexerKNorm, {width});
    key_bias_ = weights.vector(FineRole::kIndexerKNormBias, {width});
    return;
  }
  std::vector<Linear> both =
      weights.linears(FineRole::kIndexerQk, {{n, {0, n}}, {width, {0, width}}}, hidden);
  queries_ = std::move(both[0]);
  keys_ = std::move(both[1]);
  query_norm_ = norm_weights(weights, context.spec, FineRole::kIndexerQNorm, width);
  key_norm_ = norm_weights(weights, context.spec, Role::kIndexerKNorm, width);
}

void Indexer::norm_heads(const StepContext& context, std::span<const float> norm,
                         Matrix& heads) const {
  for (std::size_t first = 0; first < heads.cols(); first += norm.size()) {
    const auto head = heads.columns(first, norm.size());
    rms_norm(context.profile, head, norm, context.spec.norm.eps, head);
  }
}

// The mean of the keys of every pool that the rows complete.
void Indexer::average_keys(const LayerStep& step, const Matrix& keys) const {
  const std::size_t pool = spec_.pool, width = keys.cols();
  for (const SequenceRun& run : step.rows.runs) {
    RecentRows recent(step.state(run), width);
    const auto mine = keys.block(run.first_row, run.count, 0, width);
    const Matrix tokens = recent.followed_by(run.first_position, run.first_position % pool, mine);
    recent.keep(run.first_position, mine);
    Matrix key(1, width);
    for (std::size_t i = 0; (i + 1) * pool <= tokens.rows(); ++i) {
      std::ranges::fill(key.values(), 0.0F);
      for (std::size_t t = i * pool; t < (i + 1) * pool; ++t) {
        for (std::size_t c = 0; c < width; ++c) key.values()[c] += tokens.row(t)[c];
      }
      for (float& value : key.values()) value /= static_cast<float>(pool);
      round_between(step.context.profile, key.values());
      norm_heads(step.context, key_norm_, key);
      const std::size_t number = run.first_position / pool + i;
      const auto first = static_cast<std::uint32_t>(number * pool);
      prepare(step.context, {&first, 1}, key);
      step.cache.write(run.sequence, step.cache_layer, kIndexKeyStream, number, key.row(0));
    }
  }
}

// One key for the tokens of every pool that the rows complete.
void Indexer::pool_keys(const LayerStep& step, const Matrix& x, const Matrix& keys) const {
  const std::size_t pool = spec_.pool, width = keys.cols();
  Matrix both(x.rows(), 2 * width);
  pool_logits_.apply(x.view(), both.columns(width, width), step.context.threads);
  round_between(step.context.profile, both.values());
  for (std::size_t r = 0; r < x.rows(); ++r) {
    std::ranges::copy(keys.row(r), both.row(r).begin());
    const float* place = place_logits_.data() + step.rows.positions[r] % pool * width;
    for (std::size_t c = 0; c < width; ++c) both.row(r)[width + c] += place[c];
  }
  for (const SequenceRun& run : step.rows.runs) {
    RecentRows recent(step.state(run), 2 * width);
    const auto mine = both.block(run.first_row, run.count, 0, 2 * width);
    const std::size_t before = run.first_position % pool;
    const Matrix tokens = recent.followed_by(run.first_position, before, mine);
    recent.keep(run.first_position, mine);
    Matrix key(1, width);
    for (std::size_t i = 0; (i + 1) * pool <= tokens.rows(); ++i) {
      const WindowPart part[] = {
          {tokens.block(i * pool, pool, 0, width), tokens.block(i * pool, pool, width, width)}};
      pool_window(part, key.row(0));
      round_between(step.context.profile, key.values());
      step.cache.write(run.sequence, step.cache_layer, kIndexKeyStream,
                       run.first_position / pool + i, key.row(0));
    }
  }
}

// Rotates the first, or the last, values of every head; then what the reference code does before
// FP8.
void Indexer::prepare(const StepContext& context, std::span<const std::uint32_t> positions,
                      Matrix& heads) const {
  const IndexerSpec& spec = spec_;
  const RopeAngles angles(context.profile, rope_, positions);
  const bool transformed = context.profile == Profile::kNative && spec.hadamard_fp8;
  for (std::size_t r = 0; r < heads.rows(); ++r) {
    for (std::size_t first = 0; first < heads.cols(); first += spec.head_dim) {
      const auto head = heads.row(r).subspan(first, spec.head_dim);
      angles.rotate(r, spec.rotates_last ? head.last(rope_.dim) : head.first(rope_.dim));
      if (!transformed) continue;
      hadamard(head);
      round_between(context.profile, head);
    }
  }
}

Matrix Indexer::project_queries(const StepContext& context, const StepRows& rows, const Matrix& x,
                                const Matrix& latent_queries) const {
  Matrix queries;
  if (spec_.averages || spec_.by_group) {
    queries = rounded_product(context, queries_, x);
    norm_heads(context, query_norm_, queries);
  } else if (spec_.from_input) {
    Matrix normed(x.rows(), x.cols());
    layer_norm(context.profile, x.view(), input_norm_, input_bias_, kKeyNormEps, normed.view());
    queries = rounded_product(context, queries_, normed);
  } else {
    queries = rounded_product(context, queries_, latent_queries);
  }
  growth_.apply(context.profile, rows.positions, queries);
  prepare(context, rows.positions, queries);
  return queries;
}

void Indexer::select(const LayerStep& step, const Matrix& x, const Matrix& latent_queries) const {
  const StepContext& context = step.context;
  const StepRows& rows = step.rows;
  Selection& selection = step.selection;
  const IndexerSpec& spec = spec_;
  const bool fp8 = context.profile == Profile::kNative && spec.hadamard_fp8;
  Matrix keys = rounded_product(context, keys_, x);
  const bool are_averaged = spec.averages && spec.pool > 1;
  if (spec.averages) {
    if (spec.pool == 1) norm_heads(context, key_norm_, keys);
  } else {
    layer_norm(context.profile, keys.view(), key_norm_, key_bias_, spec.norm_eps, keys.view());
  }
  if (!are_averaged) prepare(context, rows.positions, keys);
  require_finite(keys, step.layer, "the index key");
  if (are_averaged) {
    average_keys(step, keys);
  } else if (spec.pool > 1) {
    pool_keys(step, x, keys);
  } else {
    step.write(kIndexKeyStream, keys.view());
  }
  selection.assign(x.rows() * spec.groups, {});
  // Keys that a row may choose from, and how many it may.
  const auto keys_of = [&](std::size_t n_tokens) {
    return (n_tokens - (spec.by_group ? 1 : 0)) / spec.pool;
  };
  const std::size_t most = spec.topk / spec.pool;
  if (std::all_of(rows.runs.begin(), rows.runs.end(),
                  [&](const SequenceRun& run) { return keys_of(run.total()) <= most; })) {
    return;
  }
  Matrix queries = project_queries(context, rows, x, latent_queries);
  Matrix weights(x.rows(), spec.heads);
  if (spec.averages) {
    std::ranges::fill(weights.values(), 1.0F);
  } else {
    weights_.apply_unquantized(x.view(), weights.view(), context.threads);
  }
  const float factor = 1.0F / std::sqrt(static_cast<float>(spec.heads)) /
                       std::sqrt(static_cast<float>(spec.head_dim));
  for (float& weight : weights.values()) weight *= factor;
  require_finite(queries, step.layer, "the indexer's query");
  require_finite(weights, step.layer, "the indexer's head weights");

  for (const SequenceRun& run : rows.runs) {
    if (keys_of(run.total()) <= most) continue;
    // Cached codes are scored without being widened.
    const Matrix seen_keys = step.cached(Profile::kF32, run.sequence, kIndexKeyStream,
                                         first_positions(keys_of(run.total())));
    parallel_for(run.count, context.threads, [&](std::size_t i) {
      const std::size_t r = run.first_row + i, n_tokens = run.first_position + i + 1;
      const std::size_t seen = keys_of(n_tokens);
      if (seen <= most) return;
      const auto heads = queries.row(r);
      for (std::size_t h = 0; fp8 && h < spec.heads; ++h) {
        through_fp8(heads.subspan(h * spec.head_dim, spec.head_dim), spec.power_of_two_keys);
      }
      bool is_near = false;
      const std::size_t n = spec.heads / spec.groups;
      for (std::size_t g = 0; g < spec.groups; ++g) {
        const float* first = heads.data() + g * n * spec.head_dim;
        const std::vector<float> scores = index_scores(
            {first, n, spec.head_dim, spec.head_dim}, weights.row(r).subspan(g * n, n), seen_keys,
            seen);
        const std::vector<std::uint32_t> chosen = best_positions(scores, most);
        is_near = is_near || is_near_tie(scores, chosen);
        selection[r * spec.groups + g] =
            tokens_of(chosen, spec.pool, seen * spec.pool, n_tokens);
      }
      if (is_near && step.taps.near_ties != nullptr)
        ++std::atomic_ref(step.taps.near_ties->indexer);
    });
  }
}

void hadamard(std::span<float> x) {
  INGOT_CHECK(std::has_single_bit(x.size()));
  for (std::size_t stride = 1; stride < x.size(); stride *= 2) {
    for (std::size_t base = 0; base < x.size(); base += 2 * stride) {
      for (std::size_t i = base; i < base + stride; ++i) {
        const float a = x[i], b = x[i + stride];
        x[i] = a + b;
        x[i + stride] = a - b;
      }
    }
  }
  const float factor = 1.0F / std::sqrt(static_cast<float>(x.size()));
  for (float& value : x) value *= factor;
}

void add_index_streams(const IndexerSpec& indexer, const CacheForm& form,
                       std::vector<CacheStream>& streams) {
  const bool fp8 = form.profile == Profile::kNative && indexer.hadamard_fp8;
  streams.push_back({.width = indexer.head_dim,
                     .format = fp8 ? KvFormat::kFp8 : unquantized(form.format),
                     .group = indexer.head_dim,
                     .power_of_two = fp8 && indexer.power_of_two_keys,
                     .every = indexer.pool});
  // Keys of an unfinished pool, and their logits.
  const std::size_t n_values = (indexer.averages ? 1 : 2) * indexer.head_dim;
  if (indexer.pool > 1) streams.push_back(state_stream((indexer.pool - 1) * n_values));
}

}  // namespace ingot::inference
