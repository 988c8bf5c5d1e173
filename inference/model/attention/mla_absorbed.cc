// Latent attention with queries taken into the latent space (model reference, 4.3): nothing is
// expanded, every head reads the same latents.

#include "formats/base/parallel.h"
#include "inference/model/attention/attend.h"
#include "inference/model/attention/cached_keys.h"
#include "inference/model/attention/mla_attention.h"

namespace ingot::inference {

using formats::MatrixView;

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
