#include "inference/model/model.h"

#include <algorithm>
#include <numeric>

#include <fmt/format.h>

#include "formats/base/error.h"
#include "inference/family/model_family.h"
#include "inference/model/decoder_layer.h"
#include "inference/model/finite.h"
#include "inference/model/model_memory.h"
#include "inference/model/norm.h"
#include "inference/parallel/split.h"

namespace ingot::inference {
namespace {

// The layer for multi-token prediction: what it adds to a decoder layer.
struct MtpLayer {
  std::vector<float> embedding_norm, hidden_norm, head_norm;
  Linear project;
  DecoderLayer layer;
};

MtpLayer load_mtp(const WeightStore& weights, const StepContext& context, ExpertStore* experts) {
  const std::size_t hidden = context.spec.hidden;
  const auto layer = static_cast<std::uint32_t>(context.spec.layers);
  const std::string prefix = fmt::format("model.layers.{}.", layer);
  return {.embedding_norm = weights.vector(prefix + "enorm.weight", {hidden}),
          .hidden_norm = weights.vector(prefix + "hnorm.weight", {hidden}),
          .head_norm = weights.vector(prefix + "shared_head.norm.weight", {hidden}),
          .project = weights.linear(prefix + "eh_proj.weight", hidden, 2 * hidden, {0, hidden},
                                    {0, 2 * hidden}),
          .layer = DecoderLayer(weights, context, layer, 0, experts)};
}

// A promised layer of which no tensor is there was left out on purpose; one of which some are there
// must be whole.
bool has_mtp_layer(const WeightStore& weights, const ModelSpec& spec, const ModelOptions& options) {
  const auto tensors = weights.source().tensors();
  return spec.mtp_layers > 0 && !options.without_mtp &&
         std::any_of(tensors.begin(), tensors.end(), [&](const formats::LogicalTensor& tensor) {
           return tensor.layer && *tensor.layer >= spec.layers;
         });
}

}  // namespace

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
  Range vocab;                           // rows of embedding and head of this rank
  Linear embedding, head;
  std::vector<float> final_norm;
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
  const bool with_mtp = has_mtp_layer(weights, spec, options);
  const ExpertShape shape = expert_shape(spec, rank, with_mtp);
  const std::uint64_t budget =
      expert_budget(need_of_weights(weights, shape, with_mtp, spec), options.weight_limit);
  if (!shape.layers.empty()) {
    experts = std::make_unique<ExpertStore>(weights, shape, budget, options.threads);
  }
  vocab = tensor_part(rank, spec.vocab, "the vocabulary");
  const Range all{0, spec.hidden};
  embedding = weights.linear("model.embed_tokens.weight", spec.vocab, spec.hidden, vocab, all);
  head = spec.tied_head ? embedding
                        : weights.linear("lm_head.weight", spec.vocab, spec.hidden, vocab, all);
  final_norm = weights.vector("model.norm.weight", {spec.hidden});
  layers.reserve(spec.layers);
  for (std::size_t l = 0; l < spec.layers; ++l) {
    layers.emplace_back(weights, context(), static_cast<std::uint32_t>(l), l, experts.get());
  }
  if (with_mtp) mtp = load_mtp(weights, context(), experts.get());
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
  const State& state = *state_;
  Matrix hidden(rows.size(), state.spec.hidden);
  for (std::size_t r = 0; r < rows.size(); ++r) {
    const auto token = static_cast<std::size_t>(rows[r].token);
    if (rows[r].token < 0 || token >= state.spec.vocab) {
      throw Error(ErrorCode::kInvalidArgument,
                  fmt::format("token id {} is not within the vocabulary of {}", rows[r].token,
                              state.spec.vocab));
    }
    if (token - state.vocab.first < state.vocab.count) {
      decode_row(state.embedding.weight(), token - state.vocab.first, hidden.row(r));
    }
  }
  state.communicator->all_reduce(Group::kTensor, hidden.values());
  round_between(state.options.profile, hidden.values());
  return hidden;
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
  Matrix out(hidden.rows(), hidden.cols());
  rms_norm(state_->options.profile, hidden.view(), state_->final_norm, state_->spec.norm_eps,
           out.view());
  return out;
}

Matrix Model::head(const Matrix& normed) const {
  const State& state = *state_;
  Matrix mine(normed.rows(), state.vocab.count);
  state.head.apply(normed.view(), mine.view(), state.options.threads);
  if (state.rank.tp_size == 1) {
    require_finite(mine, state.spec.layers, "the head");
    return mine;
  }
  const std::vector<float> all = state.communicator->all_gather(Group::kTensor, mine.values());
  Matrix logits(normed.rows(), state.spec.vocab);
  INGOT_CHECK(all.size() == logits.values().size());
  for (std::size_t rank = 0; rank < state.rank.tp_size; ++rank) {
    for (std::size_t r = 0; r < normed.rows(); ++r) {
      const auto at =
          all.begin() + static_cast<std::ptrdiff_t>((rank * normed.rows() + r) * state.vocab.count);
      std::copy_n(at, state.vocab.count,
                  logits.row(r).begin() + static_cast<std::ptrdiff_t>(rank * state.vocab.count));
    }
  }
  require_finite(logits, state.spec.layers, "the head");
  return logits;
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
  const MtpLayer& mtp = *state.mtp;
  INGOT_CHECK(normed.rows() == rows.size());
  const StepRows grouped(rows);
  const Profile profile = state.options.profile;
  const std::size_t width = state.spec.hidden;
  const Matrix embedded = embed(rows);
  reserve_rows(grouped, cache.mtp());
  Matrix joined(rows.size(), 2 * width), hidden(rows.size(), width);
  rms_norm(profile, embedded.view(), mtp.embedding_norm, state.spec.norm_eps,
           joined.columns(0, width));
  rms_norm(profile, normed.view(), mtp.hidden_norm, state.spec.norm_eps,
           joined.columns(width, width));
  mtp.project.apply(joined.view(), hidden.view(), state.options.threads);
  round_between(profile, hidden.values());
  mtp.layer.forward(state.context(), hidden, grouped, cache.mtp(), cache.selection(), taps);
  if (taps.hidden) taps.hidden(state.spec.layers + 1, hidden);
  rms_norm(profile, hidden.view(), mtp.head_norm, state.spec.norm_eps, hidden.view());
  return hidden;
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
