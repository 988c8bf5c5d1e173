#include "inference/model/attention/mla_attention.h"

#include <algorithm>

#include "formats/base/error.h"
#include "formats/base/parallel.h"
#include "inference/model/attention/attend.h"
#include "inference/model/step/norm.h"
#include "inference/model/step/step.h"
#include "inference/parallel/comm.h"

namespace ingot::inference {

using formats::MatrixView;

struct MlaAttention::Queries {
  Matrix latent;  ///< normalized; empty without low rank
  Matrix heads;   ///< [rows, heads x (nope + rope)], rotated
};

MlaAttention::MlaAttention(const WeightStore& weights, const StepContext& context,
                           const std::string& prefix, bool own_indexer) {
  const MlaSpec& mla = *context.spec.mla;
  const std::size_t hidden = context.spec.hidden;
  const std::size_t per_query = mla.nope + mla.rope_dim, per_latent = mla.nope + mla.v;
  const Range heads = tensor_part(context.rank, mla.heads, "attention heads");
  heads_ = heads.count;
  const auto rows_of = [&](std::size_t per_head) {
    return Range{heads.first * per_head, heads.count * per_head};
  };
  const auto whole = [&](const char* name, std::size_t rows, std::size_t cols) {
    return weights.linear(prefix + name, rows, cols, {0, rows}, {0, cols});
  };
  if (mla.q_lora > 0) {
    q_a_ = whole("q_a_proj.weight", mla.q_lora, hidden);
    q_norm_ = weights.vector(prefix + "q_a_layernorm.weight", {mla.q_lora});
    q_b_ = weights.linear(prefix + "q_b_proj.weight", mla.heads * per_query, mla.q_lora,
                          rows_of(per_query), {0, mla.q_lora});
  } else {
    q_ = weights.linear(prefix + "q_proj.weight", mla.heads * per_query, hidden, rows_of(per_query),
                        {0, hidden});
  }
  kv_a_ = whole("kv_a_proj_with_mqa.weight", mla.kv_lora + mla.rope_dim, hidden);
  kv_norm_ = weights.vector(prefix + "kv_a_layernorm.weight", {mla.kv_lora});
  kv_b_ = weights.linear(prefix + "kv_b_proj.weight", mla.heads * per_latent, mla.kv_lora,
                         rows_of(per_latent), {0, mla.kv_lora});
  o_ = weights.linear(prefix + "o_proj.weight", hidden, mla.heads * mla.v, {0, hidden},
                      rows_of(mla.v));
  if (own_indexer) indexer_.emplace(weights, context, prefix + "indexer.");
}

MlaAttention::Queries MlaAttention::project_queries(const StepContext& context, const Matrix& x,
                                                    const RopeAngles& angles) const {
  const MlaSpec& mla = *context.spec.mla;
  const std::size_t width = mla.nope + mla.rope_dim;
  Queries queries{.latent = {}, .heads = Matrix(x.rows(), heads_ * width)};
  if (mla.q_lora > 0) {
    queries.latent = Matrix(x.rows(), mla.q_lora);
    q_a_.apply(x.view(), queries.latent.view(), context.threads);
    round_between(context.profile, queries.latent.values());
    rms_norm(context.profile, queries.latent.view(), q_norm_, mla.latent_norm_eps,
             queries.latent.view());
    q_b_.apply(queries.latent.view(), queries.heads.view(), context.threads);
  } else {
    q_.apply(x.view(), queries.heads.view(), context.threads);
  }
  round_between(context.profile, queries.heads.values());
  for (std::size_t r = 0; r < x.rows(); ++r) {
    for (std::size_t h = 0; h < heads_; ++h) {
      angles.rotate(r, queries.heads.row(r).subspan(h * width + mla.nope, mla.rope_dim));
    }
  }
  return queries;
}

void MlaAttention::cache_rows(const StepContext& context, const Matrix& x, const RopeAngles& angles,
                              const StepRows& rows, std::size_t layer, std::size_t cache_layer,
                              KvCache& cache) const {
  const MlaSpec& mla = *context.spec.mla;
  Matrix latents(x.rows(), mla.kv_lora + mla.rope_dim);
  kv_a_.apply(x.view(), latents.view(), context.threads);
  round_between(context.profile, latents.values());
  rms_norm(context.profile, latents.columns(0, mla.kv_lora), kv_norm_, mla.latent_norm_eps,
           latents.columns(0, mla.kv_lora));
  for (std::size_t r = 0; r < x.rows(); ++r) {
    angles.rotate(r, latents.row(r).subspan(mla.kv_lora));
  }
  require_finite(latents, layer, "the latent");
  for (const SequenceRun& run : rows.runs) {
    for (std::size_t i = 0; i < run.count; ++i) {
      const auto row = latents.row(run.first_row + i);
      const std::size_t position = run.first_position + i;
      cache.write(run.sequence, cache_layer, kLatentStream, position, row.first(mla.kv_lora));
      cache.write(run.sequence, cache_layer, kRopeKeyStream, position, row.subspan(mla.kv_lora));
    }
  }
}

Matrix MlaAttention::partial(const StepContext& context, const Matrix& x, const StepRows& rows,
                             std::size_t layer, std::size_t cache_layer, KvCache& cache,
                             Selection& selection, const Taps& taps) const {
  const MlaSpec& mla = *context.spec.mla;
  const RopeAngles angles(context.profile, context.spec.rope, rows.positions);
  const Queries queries = project_queries(context, x, angles);
  cache_rows(context, x, angles, rows, layer, cache_layer, cache);
  if (indexer_) {
    indexer_->select(context, x, queries.latent, rows, layer, cache_layer, cache, selection);
  } else if (!context.spec.indexer) {
    selection.assign(x.rows(), {});
  }
  INGOT_CHECK(selection.size() == x.rows());
  for (std::size_t r = 0; taps.indexer && r < x.rows(); ++r) {
    if (!selection[r].empty()) taps.indexer(layer, r, selection[r]);
  }

  Matrix attended(x.rows(), heads_ * mla.v);
  for (const SequenceRun& run : rows.runs) {
    const bool is_absorbed = context.form == AttentionForm::kAbsorbed ||
                             (context.form == AttentionForm::kAuto && run.count == 1);
    if (is_absorbed) {
      absorbed(context, queries.heads, run, selection, cache_layer, cache, attended);
    } else {
      naive(context, queries.heads, run, selection, cache_layer, cache, attended);
    }
  }
  require_finite(attended, layer, "attention");
  Matrix out(x.rows(), o_.rows());
  o_.apply(attended.view(), out.view(), context.threads);
  return out;
}

// Latent attention with keys and values expanded from the latent (model reference, 4.2): few heads
// at a time, so that memory grows with the length and not with its square.

namespace {

// Expanded keys and values of some heads take about this many values.
constexpr std::size_t kExpandedValues = std::size_t{16} << 20U;

// Keys and values of one head in an expansion of several.
struct HeadViews {
  MatrixView<const float> keys, values;
};

HeadViews head_of(const Matrix& expanded, std::size_t head, std::size_t nope, std::size_t v) {
  const float* first = expanded.values().data() + head * (nope + v);
  return {.keys = {first, expanded.rows(), nope, expanded.cols()},
          .values = {first + nope, expanded.rows(), v, expanded.cols()}};
}

void gather_rows(MatrixView<const float> from, std::span<const std::uint32_t> which, Matrix& to) {
  for (std::size_t i = 0; i < which.size(); ++i) {
    std::copy_n(from.row(which[i]), from.cols, to.row(i).data());
  }
}

}  // namespace

void MlaAttention::naive(const StepContext& context, const Matrix& queries, const SequenceRun& run,
                         const Selection& selection, std::size_t cache_layer, const KvCache& cache,
                         Matrix& out) const {
  const MlaSpec& mla = *context.spec.mla;
  const std::size_t per_query = mla.nope + mla.rope_dim, per_latent = mla.nope + mla.v;
  const std::vector<std::uint32_t> everything = first_positions(run.total());
  const Matrix latents =
      cached(context.profile, cache, run.sequence, cache_layer, kLatentStream, everything);
  const Matrix rope_keys =
      cached(context.profile, cache, run.sequence, cache_layer, kRopeKeyStream, everything);
  // What a row sees grows with its position, so those that see everything come first.
  std::size_t n_dense = 0;
  while (n_dense < run.count && selection[run.first_row + n_dense].empty()) ++n_dense;

  const std::size_t at_once =
      std::clamp<std::size_t>(kExpandedValues / (run.total() * per_latent), 1, heads_);
  for (std::size_t first = 0; first < heads_; first += at_once) {
    const std::size_t n = std::min(at_once, heads_ - first);
    Matrix expanded(run.total(), n * per_latent);
    kv_b_.row_range(first * per_latent, n * per_latent)
        .apply(latents.view(), expanded.view(), context.threads);
    round_between(context.profile, expanded.values());
    parallel_for(n, context.threads, [&](std::size_t i) {
      const std::size_t head = first + i;
      const HeadViews views = head_of(expanded, i, mla.nope, mla.v);
      const AttentionNumbers numbers{context.profile, context.spec.softmax_scale, 1};
      const auto query = [&](std::size_t row, std::size_t rows, std::size_t offset,
                             std::size_t width) {
        const float* at = queries.row(run.first_row + row).data() + head * per_query + offset;
        return MatrixView<const float>{at, rows, width, queries.cols()};
      };
      const auto result = [&](std::size_t row, std::size_t rows) {
        float* at = out.row(run.first_row + row).data() + head * mla.v;
        return MatrixView<float>{at, rows, mla.v, out.cols()};
      };
      if (n_dense > 0) {
        const ScorePart parts[] = {{query(0, n_dense, 0, mla.nope), views.keys},
                                   {query(0, n_dense, mla.nope, mla.rope_dim), rope_keys.view()}};
        attend(
            numbers, parts, views.values,
            [&](std::size_t row) { return run.first_position + row + 1; }, result(0, n_dense));
      }
      for (std::size_t row = n_dense; row < run.count; ++row) {
        const auto& chosen = selection[run.first_row + row];
        Matrix keys(chosen.size(), mla.nope), rotated(chosen.size(), mla.rope_dim),
            values(chosen.size(), mla.v);
        gather_rows(views.keys, chosen, keys);
        gather_rows(rope_keys.view(), chosen, rotated);
        gather_rows(views.values, chosen, values);
        const ScorePart parts[] = {{query(row, 1, 0, mla.nope), keys.view()},
                                   {query(row, 1, mla.nope, mla.rope_dim), rotated.view()}};
        attend(
            numbers, parts, values.view(), [&](std::size_t) { return chosen.size(); },
            result(row, 1));
      }
    });
  }
}

// Latent attention with queries taken into the latent space (model reference, 4.3): nothing is
// expanded, every head reads the same latents.

void MlaAttention::absorbed(const StepContext& context, const Matrix& queries,
                            const SequenceRun& run, const Selection& selection,
                            std::size_t cache_layer, const KvCache& cache, Matrix& out) const {
  const MlaSpec& mla = *context.spec.mla;
  const std::size_t per_query = mla.nope + mla.rope_dim, per_latent = mla.nope + mla.v;
  const AttentionNumbers numbers{context.profile, context.spec.softmax_scale, context.threads};

  // [rows, heads x latent]: every head's query, times the transposed key rows of kv_b_proj.
  Matrix absorbed_queries(run.count, heads_ * mla.kv_lora);
  parallel_for(heads_, context.threads, [&](std::size_t head) {
    const WeightMatrix key_rows = kv_b_.weight().row_range(head * per_latent, mla.nope);
    matmul_transposed(
        {queries.row(run.first_row).data() + head * per_query, run.count, mla.nope, queries.cols()},
        key_rows, kv_b_.rounding(), absorbed_queries.columns(head * mla.kv_lora, mla.kv_lora), 1);
  });
  round_between(context.profile, absorbed_queries.values());

  Matrix latents, rope_keys;
  const auto fetch = [&](std::span<const std::uint32_t> positions) {
    latents = cached(context.profile, cache, run.sequence, cache_layer, kLatentStream, positions);
    rope_keys =
        cached(context.profile, cache, run.sequence, cache_layer, kRopeKeyStream, positions);
  };
  Matrix in_latent(run.count, heads_ * mla.kv_lora);
  for (std::size_t i = 0; i < run.count; ++i) {
    const auto& chosen = selection[run.first_row + i];
    // Rows that see everything come first and read one copy.
    if (!chosen.empty()) {
      fetch(chosen);
    } else if (i == 0) {
      fetch(first_positions(run.total()));
    }
    const std::size_t seen = chosen.empty() ? run.first_position + i + 1 : chosen.size();
    const float* rotated = queries.row(run.first_row + i).data() + mla.nope;
    const ScorePart parts[] = {
        {{absorbed_queries.row(i).data(), heads_, mla.kv_lora, mla.kv_lora}, latents.view()},
        {{rotated, heads_, mla.rope_dim, per_query}, rope_keys.view()}};
    attend(numbers, parts, latents.view(), [&](std::size_t) { return seen; },
           {in_latent.row(i).data(), heads_, mla.kv_lora, mla.kv_lora});
  }

  parallel_for(heads_, context.threads, [&](std::size_t head) {
    const WeightMatrix value_rows = kv_b_.weight().row_range(head * per_latent + mla.nope, mla.v);
    float* at = out.row(run.first_row).data() + head * mla.v;
    matmul(in_latent.columns(head * mla.kv_lora, mla.kv_lora), value_rows, kv_b_.rounding(),
           {at, run.count, mla.v, out.cols()}, 1);
    for (std::size_t i = 0; i < run.count; ++i) {
      round_between(context.profile, std::span(at + i * out.cols(), mla.v));
    }
  });
}

}  // namespace ingot::inference
