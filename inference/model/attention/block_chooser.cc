#include "inference/model/attention/block_chooser.h"

#include <algorithm>
#include <atomic>
#include <span>

#include "formats/base/parallel.h"
#include "inference/kernels/matmul.h"
#include "inference/kernels/vector_math.h"
#include "inference/model/attention/attention.h"
#include "inference/model/step/norm.h"

namespace ingot::inference {

using formats::FineRole;
using formats::Role;

BlockChooser::BlockChooser(const BlockWeights& weights, const StepContext& context,
                           const BlockIndexSpec& spec, const RopeSpec& rope)
    : spec_(spec),
      rope_(rope),
      queries_(weights.linear(Role::kIndexerQ, spec.heads * spec.head_dim, context.spec.hidden)),
      keys_(weights.linear(Role::kIndexerK, spec.head_dim, context.spec.hidden)),
      query_norm_(norm_weights(weights, context.spec, FineRole::kIndexerQNorm, spec.head_dim)),
      key_norm_(norm_weights(weights, context.spec, Role::kIndexerKNorm, spec.head_dim)) {}

void BlockChooser::finish(const StepContext& context, const std::vector<float>& norm,
                          const RopeAngles& angles, Matrix& heads) const {
  for (std::size_t first = 0; first < heads.cols(); first += spec_.head_dim) {
    const auto head = heads.columns(first, spec_.head_dim);
    rms_norm(context.profile, head, norm, context.spec.norm.eps, head);
    for (std::size_t r = 0; r < heads.rows(); ++r) {
      angles.rotate(r, heads.row(r).subspan(first, rope_.dim));
    }
  }
}

std::vector<std::uint32_t> BlockChooser::choose_for(std::span<const float> query,
                                                    const Matrix& keys, std::size_t n_tokens,
                                                    bool& is_near) const {
  // The last blocks are there anyway.
  const std::size_t n_blocks = (n_tokens + spec_.size - 1) / spec_.size;
  const std::size_t n_free = n_blocks - spec_.local, n_chosen = spec_.topk - spec_.local;
  std::vector<float> best(n_free);
  for (std::size_t block = 0; block < n_free; ++block) {
    const std::size_t first = block * spec_.size;
    best[block] = dot(query, keys.row(first));
    for (std::size_t t = first + 1; t < first + spec_.size; ++t) {
      best[block] = std::max(best[block], dot(query, keys.row(t)));
    }
  }
  std::vector<std::uint32_t> blocks;
  if (n_chosen > 0) {
    blocks = best_positions(best, n_chosen);
    is_near = is_near || is_near_tie(best, blocks);
  }
  for (std::size_t block = n_free; block < n_blocks; ++block)
    blocks.push_back(static_cast<std::uint32_t>(block));
  std::vector<std::uint32_t> positions;
  for (const std::uint32_t block : blocks) {
    const std::size_t end = std::min<std::size_t>((block + std::size_t{1}) * spec_.size, n_tokens);
    for (std::size_t t = block * spec_.size; t < end; ++t)
      positions.push_back(static_cast<std::uint32_t>(t));
  }
  return positions;
}

BlockChooser::Chosen BlockChooser::choose(const LayerStep& step, const Matrix& x) const {
  const StepContext& context = step.context;
  const RopeAngles angles(context.profile, rope_, step.rows.positions);
  Matrix keys = rounded_product(context, keys_, x);
  finish(context, key_norm_, angles, keys);
  require_finite(keys, step.layer, "the index key");
  step.write(kIndexKeyStream, keys.view());
  Chosen chosen(x.rows() * spec_.heads);
  const std::size_t all = spec_.topk * spec_.size;  // tokens that are surely read
  const auto& runs = step.rows.runs;
  if (std::ranges::all_of(runs, [&](const SequenceRun& run) { return run.total() <= all; })) {
    return chosen;
  }
  Matrix queries = rounded_product(context, queries_, x);
  finish(context, query_norm_, angles, queries);
  require_finite(queries, step.layer, "the indexer's query");
  for (const SequenceRun& run : runs) {
    if (run.total() <= all) continue;
    const Matrix seen =
        step.cached(context.profile, run.sequence, kIndexKeyStream, first_positions(run.total()));
    parallel_for(run.count, context.threads, [&](std::size_t i) {
      const std::size_t r = run.first_row + i, n_tokens = run.first_position + i + 1;
      if (n_tokens <= all) return;
      bool is_near = false;
      for (std::size_t h = 0; h < spec_.heads; ++h) {
        chosen[r * spec_.heads + h] = choose_for(
            queries.row(r).subspan(h * spec_.head_dim, spec_.head_dim), seen, n_tokens, is_near);
      }
      if (is_near && step.taps.near_ties != nullptr)
        ++std::atomic_ref(step.taps.near_ties->indexer);
    });
  }
  return chosen;
}

}  // namespace ingot::inference
