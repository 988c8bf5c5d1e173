#include "inference/model/model.h"

#include <algorithm>

#include "formats/base/error.h"
#include "inference/family/model_family.h"
#include "inference/model/model_memory.h"

namespace ingot::inference {

Model::Model(const formats::Checkpoint& source, const RankView& rank, Comm& comm,
             const ModelOptions& options)
    : spec_(model_spec(source.family(), source.config())),
      context_{.spec = spec_,
               .profile = options.profile,
               .form = options.form,
               .threads = options.threads,
               .rank = rank,
               .comm = comm},
      weights_(source, options.profile, options.threads) {
  const bool with_mtp = !options.without_mtp && MtpLayer::is_in(weights_, spec_);
  const ExpertShape shape = expert_shape(spec_, rank, with_mtp);
  const std::uint64_t budget =
      expert_budget(need_of_weights(weights_, shape, with_mtp, spec_), options.weight_limit);
  if (!shape.layers.empty()) {
    experts_ = std::make_unique<ExpertStore>(weights_, shape, budget, options.threads);
  }
  embedding_.emplace(weights_, context_);
  head_.emplace(weights_, context_, &*embedding_);
  layers_.reserve(spec_.layers);
  for (std::size_t l = 0; l < spec_.layers; ++l) {
    layers_.emplace_back(weights_, context_, static_cast<std::uint32_t>(l), l, experts_.get());
  }
  if (with_mtp) mtp_.emplace(weights_, context_, experts_.get());
}

std::vector<std::vector<CacheStream>> Model::streams(KvFormat format, std::size_t first,
                                                     std::size_t n) const {
  std::vector<std::vector<CacheStream>> streams;
  for (std::size_t l = first; l < first + n; ++l) {
    streams.push_back(cache_streams(spec_, context_.rank, context_.profile, format, l));
  }
  return streams;
}

std::uint64_t Model::cache_bytes_per_token(KvFormat format) const {
  const std::size_t n_mtp = has_mtp() ? 1 : 0;
  return KvCache::bytes_per_token(streams(format, 0, spec_.layers + n_mtp));
}

ModelCache Model::make_cache(KvFormat format, std::size_t capacity) const {
  return {KvCache(streams(format, 0, spec_.layers), capacity),
          KvCache(streams(format, spec_.layers, has_mtp() ? 1 : 0), capacity)};
}

Matrix Model::embed(std::span<const Row> rows) const {
  return embedding_->embed(context_, rows);
}

void Model::layer(std::size_t l, Matrix& hidden, std::span<const Row> rows, ModelCache& cache,
                  const Taps& taps) const {
  INGOT_CHECK(l < layers_.size());
  const StepRows grouped(rows);
  layers_[l].forward(context_, hidden, grouped, cache.main(), cache.selection(), taps);
  if (taps.hidden) taps.hidden(l + 1, hidden);
}

Matrix Model::final_norm(const Matrix& hidden) const {
  return head_->final_norm(context_, hidden);
}

Matrix Model::head(const Matrix& normed) const {
  return head_->logits(context_, normed);
}

Matrix Model::step(std::span<const Row> rows, ModelCache& cache, const Taps& taps,
                   Matrix* normed_hidden) const {
  const StepRows grouped(rows);
  Matrix hidden = embed(rows);  // refuses bad tokens before the cache is touched
  reserve_rows(grouped, cache.main());
  if (taps.hidden) taps.hidden(0, hidden);
  for (std::size_t l = 0; l < layers_.size(); ++l) layer(l, hidden, rows, cache, taps);

  std::vector<std::size_t> wanted;
  for (std::size_t r = 0; r < rows.size(); ++r) {
    if (rows[r].logits) wanted.push_back(r);
  }
  if (normed_hidden != nullptr) *normed_hidden = final_norm(hidden);
  Matrix last(wanted.size(), hidden.cols());
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    std::ranges::copy(hidden.row(wanted[i]), last.row(i).begin());
  }
  return head(final_norm(last));
}

Matrix Model::mtp(const Matrix& normed, std::span<const Row> rows, ModelCache& cache,
                  const Taps& taps) const {
  if (!mtp_) {
    throw Error(ErrorCode::kUnsupported, "this model has no layer for multi-token prediction");
  }
  const StepRows grouped(rows);
  const Matrix embedded = embed(rows);
  reserve_rows(grouped, cache.mtp());
  return mtp_->forward(context_, embedded, normed, grouped, cache.mtp(), cache.selection(), taps);
}

std::vector<std::int32_t> Model::draft(std::size_t k, const Matrix& normed, SequenceId sequence,
                                       std::uint32_t position, std::int32_t token,
                                       ModelCache& cache) const {
  std::vector<std::int32_t> drafted;
  Matrix state = normed;
  try {
    for (std::size_t i = 0; i < k; ++i) {
      const Row row{.sequence = sequence,
                    .position = position + static_cast<std::uint32_t>(i),
                    .token = token};
      state = mtp(state, {&row, 1}, cache);
      const Matrix logits = head(state);
      const auto best = std::ranges::max_element(logits.row(0));
      token = static_cast<std::int32_t>(best - logits.row(0).begin());
      drafted.push_back(token);
    }
  } catch (...) {
    cache.mtp().truncate(sequence, position);
    throw;
  }
  cache.mtp().truncate(sequence, position);
  return drafted;
}

}  // namespace ingot::inference
