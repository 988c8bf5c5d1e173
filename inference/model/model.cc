#include "inference/model/model.h"

#include <algorithm>
#include <optional>

#include <fmt/format.h>

#include "formats/base/error.h"
#include "inference/family/model_family.h"
#include "inference/model/decoder_layer.h"
#include "inference/model/model_ends.h"
#include "inference/model/model_memory.h"

namespace ingot::inference {

struct Model::State {
  State(const formats::Checkpoint& source, const RankView& the_rank, Comm& comm,
        const ModelOptions& the_options);

  [[nodiscard]] StepContext context() const {
    return {.spec = spec,
            .profile = options.profile,
            .form = options.form,
            .threads = options.threads,
            .rank = rank,
            .comm = *communicator};
  }
  [[nodiscard]] std::vector<std::vector<CacheStream>> streams(KvFormat format, std::size_t first,
                                                              std::size_t n) const;

  ModelSpec spec;
  RankView rank;
  Comm* communicator;
  ModelOptions options;
  WeightStore weights;
  std::unique_ptr<ExpertStore> experts;  // null without any
  std::optional<TokenEmbedding> embedding;
  std::optional<OutputHead> head;
  std::vector<DecoderLayer> layers;
  std::optional<MtpLayer> mtp;
};

Model::State::State(const formats::Checkpoint& source, const RankView& the_rank, Comm& comm,
                    const ModelOptions& the_options)
    : spec(model_spec(source.family(), source.config())),
      rank(the_rank),
      communicator(&comm),
      options(the_options),
      weights(source, the_options.profile, the_options.threads) {
  const bool with_mtp = !options.without_mtp && MtpLayer::is_in(weights, spec);
  const ExpertShape shape = expert_shape(spec, rank, with_mtp);
  const std::uint64_t budget =
      expert_budget(need_of_weights(weights, shape, with_mtp, spec), options.weight_limit);
  if (!shape.layers.empty()) {
    experts = std::make_unique<ExpertStore>(weights, shape, budget, options.threads);
  }
  embedding.emplace(weights, context());
  head.emplace(weights, context(), &*embedding);
  layers.reserve(spec.layers);
  for (std::size_t l = 0; l < spec.layers; ++l) {
    layers.emplace_back(weights, context(), static_cast<std::uint32_t>(l), l, experts.get());
  }
  if (with_mtp) mtp.emplace(weights, context(), experts.get());
}

std::vector<std::vector<CacheStream>> Model::State::streams(KvFormat format, std::size_t first,
                                                            std::size_t n) const {
  std::vector<std::vector<CacheStream>> streams;
  for (std::size_t l = first; l < first + n; ++l) {
    streams.push_back(cache_streams(spec, rank, options.profile, format, l));
  }
  return streams;
}

Model::Model(std::unique_ptr<State> state) : state_(std::move(state)) {}
Model::~Model() = default;
Model::Model(Model&&) noexcept = default;
Model& Model::operator=(Model&&) noexcept = default;

Model Model::open(const formats::Checkpoint& source, const RankView& rank, Comm& comm,
                  const ModelOptions& options) {
  return Model(std::make_unique<State>(source, rank, comm, options));
}

const ModelSpec& Model::spec() const {
  return state_->spec;
}

bool Model::has_mtp() const {
  return state_->mtp.has_value();
}

std::uint64_t Model::cache_bytes_per_token(KvFormat format) const {
  const std::size_t n_mtp = has_mtp() ? 1 : 0;
  return KvCache::bytes_per_token(state_->streams(format, 0, spec().layers + n_mtp));
}

ModelCache Model::make_cache(KvFormat format, std::size_t capacity) const {
  return {KvCache(state_->streams(format, 0, spec().layers), capacity),
          KvCache(state_->streams(format, spec().layers, has_mtp() ? 1 : 0), capacity)};
}

Matrix Model::embed(std::span<const Row> rows) const {
  return state_->embedding->embed(state_->context(), rows);
}

void Model::layer(std::size_t l, Matrix& hidden, std::span<const Row> rows, ModelCache& cache,
                  const Taps& taps) const {
  INGOT_CHECK(l < state_->layers.size());
  const StepRows grouped(rows);
  state_->layers[l].forward(state_->context(), hidden, grouped, cache.main(), cache.selection(),
                            taps);
  if (taps.hidden) taps.hidden(l + 1, hidden);
}

Matrix Model::final_norm(const Matrix& hidden) const {
  return state_->head->final_norm(state_->context(), hidden);
}

Matrix Model::head(const Matrix& normed) const {
  return state_->head->logits(state_->context(), normed);
}

Matrix Model::step(std::span<const Row> rows, ModelCache& cache, const Taps& taps,
                   Matrix* normed_hidden) const {
  const StepRows grouped(rows);
  Matrix hidden = embed(rows);  // refuses bad tokens before the cache is touched
  reserve_rows(grouped, cache.main());
  if (taps.hidden) taps.hidden(0, hidden);
  for (std::size_t l = 0; l < state_->layers.size(); ++l) layer(l, hidden, rows, cache, taps);

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
  const State& state = *state_;
  if (!state.mtp) {
    throw Error(ErrorCode::kUnsupported, "this model has no layer for multi-token prediction");
  }
  const StepRows grouped(rows);
  const Matrix embedded = embed(rows);
  reserve_rows(grouped, cache.mtp());
  return state.mtp->forward(state.context(), embedded, normed, grouped, cache.mtp(),
                            cache.selection(), taps);
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

ExpertCounters Model::expert_counters() const {
  return state_->experts ? state_->experts->counters() : ExpertCounters{};
}

bool Model::all_experts_resident() const {
  return !state_->experts || state_->experts->all_resident();
}

std::uint64_t Model::bytes_read() const {
  return state_->weights.bytes_read();
}

}  // namespace ingot::inference
