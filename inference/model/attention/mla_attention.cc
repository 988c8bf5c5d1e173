#include "inference/model/attention/mla_attention.h"

#include "formats/base/error.h"
#include "inference/model/step/norm.h"
#include "inference/model/step/step.h"
#include "inference/parallel/split.h"

namespace ingot::inference {

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

}  // namespace ingot::inference
