#include "inference/model/layer_stream.h"

#include <algorithm>
#include <optional>

#include "formats/base/checked.h"
#include "formats/base/error.h"
#include "inference/family/model_family.h"
#include "inference/model/decoder_layer.h"
#include "inference/model/model_ends.h"
#include "inference/model/model_memory.h"
#include "inference/model/step/step.h"
#include "inference/parallel/comm.h"

namespace ingot::inference {
namespace {

KvFormat format_of(Profile profile) {
  return profile == Profile::kF32 ? KvFormat::kF32 : KvFormat::kBf16;
}

}  // namespace

struct LayerStream::State {
  State(const formats::Checkpoint& source, const LayerStreamOptions& the_options)
      : spec(model_spec(source.family(), source.config())),
        options(the_options),
        weights(source, options.profile, options.threads, options.observer) {}

  [[nodiscard]] StepContext context() {
    return {.spec = spec,
            .profile = options.profile,
            .form = options.form,
            .threads = options.threads,
            .rank = {},
            .comm = comm};
  }

  /// Experts of one layer; null where it has none.
  [[nodiscard]] std::unique_ptr<ExpertStore> experts_of(std::uint32_t l) const {
    ExpertShape shape = expert_shape(spec, {}, true);
    if (!spec.is_moe[l]) return nullptr;
    shape.layers = {l};
    const WeightNeed need = need_of_layer(weights, shape, l);
    return std::make_unique<ExpertStore>(weights, shape, expert_budget(need, options.weight_limit),
                                         options.threads);
  }

  /// An empty cache of one layer with room for the rows.
  [[nodiscard]] KvCache cache_of(std::size_t l, const StepRows& rows) const {
    std::size_t capacity = 0;
    SequenceId n_sequences = 0;
    for (const SequenceRun& run : rows.runs) {
      INGOT_CHECK(run.first_position == 0);
      capacity += round_up(run.count, KvCache::kPageTokens);
      n_sequences = std::max(n_sequences, run.sequence + 1);
    }
    KvCache cache({cache_streams(spec, {}, options.profile, format_of(options.profile), l)},
                  capacity);
    for (SequenceId i = 0; i < n_sequences; ++i) cache.add();
    reserve_rows(rows, cache);
    return cache;
  }

  OutputHead& output_head() {
    if (!head) head.emplace(weights, context(), nullptr);
    return *head;
  }

  ModelSpec spec;
  LayerStreamOptions options;
  OneRank comm;
  WeightStore weights;
  Selection selection;
  std::optional<OutputHead> head;  // while nothing else is read
};

LayerStream::LayerStream(const formats::Checkpoint& source, const LayerStreamOptions& options)
    : state_(std::make_unique<State>(source, options)) {}
LayerStream::~LayerStream() = default;

const ModelSpec& LayerStream::spec() const {
  return state_->spec;
}

bool LayerStream::has_mtp() const {
  return MtpLayer::is_in(state_->weights, state_->spec);
}

Matrix LayerStream::embed(std::span<const Row> rows) {
  state_->head.reset();
  return TokenEmbedding(state_->weights, state_->context()).embed(state_->context(), rows);
}

void LayerStream::layer(std::size_t l, Matrix& hidden, std::span<const Row> rows,
                        const Taps& taps) {
  State& state = *state_;
  INGOT_CHECK(l < state.spec.layers && hidden.rows() == rows.size());
  state.head.reset();
  const StepRows grouped(rows);
  KvCache cache = state.cache_of(l, grouped);
  const auto at = static_cast<std::uint32_t>(l);
  const auto experts = state.experts_of(at);
  const DecoderLayer layer(state.weights, state.context(), at, 0, experts.get());
  layer.forward(state.context(), hidden, grouped, cache, state.selection, taps);
  if (taps.hidden) taps.hidden(l + 1, hidden);
}

Matrix LayerStream::final_norm(const Matrix& hidden) {
  return state_->output_head().final_norm(state_->context(), hidden);
}

Matrix LayerStream::head(const Matrix& normed) {
  return state_->output_head().logits(state_->context(), normed);
}

Matrix LayerStream::mtp(const Matrix& normed, std::span<const Row> rows, const Taps& taps) {
  State& state = *state_;
  INGOT_CHECK(normed.rows() == rows.size());
  const Matrix embedded = embed(rows);
  const StepRows grouped(rows);
  KvCache cache = state.cache_of(state.spec.layers, grouped);
  const auto experts = state.experts_of(static_cast<std::uint32_t>(state.spec.layers));
  const MtpLayer layer(state.weights, state.context(), experts.get());
  return layer.forward(state.context(), embedded, normed, grouped, cache, state.selection, taps);
}

std::uint64_t LayerStream::bytes_read() const {
  return state_->weights.bytes_read();
}

}  // namespace ingot::inference
