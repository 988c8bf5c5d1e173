// Latent attention with keys and values expanded from the latent (model reference, 4.2): few heads
// at a time, so that memory grows with the length and not with its square.

#include <algorithm>

#include "formats/base/parallel.h"
#include "inference/model/attention/attend.h"
#include "inference/model/attention/cached_keys.h"
#include "inference/model/attention/mla_attention.h"

namespace ingot::inference {
namespace {

using formats::MatrixView;

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

}  // namespace ingot::inference
