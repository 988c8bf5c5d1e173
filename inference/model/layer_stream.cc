#include "inference/model/layer_stream.h"

#include <algorithm>

#include "formats/base/checked.h"
#include "formats/base/error.h"
#include "inference/family/model_family.h"
#include "inference/model/model_memory.h"
#include "inference/model/stream_task.h"

namespace ingot::inference {

LayerStream::LayerStream(const formats::Checkpoint& source, const LayerStreamOptions& options)
    : spec_(model_spec(source)),
      context_{.spec = spec_,
               .profile = options.profile,
               .form = options.form,
               .threads = options.threads,
               .rank = options.rank,
               .comm = options.comm != nullptr ? *options.comm : alone_},
      weight_limit_(options.weight_limit),
      weights_(source, options.profile, options.threads, options.observer) {
  require_keys_in_stage(spec_, stage_part(options.rank, spec_.n_main));
  has_mtp_ = is_in_last_stage(context_, MtpLayer::is_in(weights_, spec_));
}

// Experts of one layer; null where it has none.
std::unique_ptr<ExpertStore> LayerStream::experts_of(std::uint32_t l) const {
  if (!spec_.is_moe(l)) return nullptr;
  const std::uint32_t home = spec_.layers[l].find<MixtureSpec>()->home(l);
  const ExpertShape shape = expert_shape(spec_, context_.rank, true).of_layer(home);
  const WeightNeed need = need_of_layer(weights_, shape, l);
  return std::make_unique<ExpertStore>(weights_, shape, expert_budget(need, weight_limit_),
                                       context_.threads);
}

// An empty cache of one layer with room for the rows.
KvCache LayerStream::cache_of(std::size_t l, const StepRows& rows) const {
  std::size_t capacity = 0;
  SequenceId n_sequences = 0;
  for (const SequenceRun& run : rows.runs) {
    INGOT_CHECK(run.first_position == 0);
    capacity += round_up(run.count, KvCache::kPageTokens);
    n_sequences = std::max(n_sequences, run.sequence + 1);
  }
  KvCache cache(
      {cache_streams(spec_, context_.rank, context_.profile, plain_kv_format(context_.profile), l)},
      capacity);
  for (SequenceId i = 0; i < n_sequences; ++i) cache.add();
  reserve_rows(rows, cache);
  return cache;
}

OutputHead& LayerStream::output_head() {
  if (!head_) head_.emplace(weights_, context_, nullptr);
  return *head_;
}

Matrix LayerStream::embed(std::span<const Row> rows) {
  tell_task(context_.comm, StreamTask::Kind::kEmbed, 0, rows);
  if (context_.rank.stage() > 0) return {};
  return embedded(rows);
}

Matrix LayerStream::embedded(std::span<const Row> rows) {
  head_.reset();
  return TokenEmbedding(weights_, context_).embed(context_, rows);
}

void LayerStream::in_stage(std::size_t stage, std::size_t l, Matrix& out, const Taps& taps,
                           const std::function<void(const Taps& taps)>& compute) {
  if (context_.rank.n_stages() == 1) return compute(taps);
  const bool is_here = context_.rank.stage() == stage;
  LayerResult result;
  if (is_here) {
    Taps shown = taps;
    shown.router = [&](std::size_t layer, std::span<const std::uint32_t> experts,
                       std::span<const float> weights) {
      result.experts.assign(experts.begin(), experts.end());
      result.weights.assign(weights.begin(), weights.end());
      if (taps.router) taps.router(layer, experts, weights);
    };
    compute(shown);
    result.states = std::move(out);
    if (spec_.indexer() != nullptr) result.selection = earlier_[0].selection;
  }
  result = share_result(context_.comm, l, stage, is_here ? &result : nullptr);
  out = std::move(result.states);
  if (is_here) return;
  Selection& selection = earlier_[0].selection;
  selection = std::move(result.selection);
  if (taps.router && !result.experts.empty()) taps.router(l, result.experts, result.weights);
  for (std::size_t r = 0; taps.indexer && r < selection.size(); ++r) {
    if (!selection[r].empty()) taps.indexer(l, r, selection[r]);
  }
}

void LayerStream::layer(std::size_t l, Matrix& hidden, std::span<const Row> rows,
                        const Taps& taps) {
  INGOT_CHECK(l < spec_.n_main && hidden.rows() == rows.size());
  tell_task(context_.comm, StreamTask::Kind::kLayer, l, rows, &hidden);
  head_.reset();
  const auto at = static_cast<std::uint32_t>(l);
  const std::size_t stage = context_.rank.n_stages() > 1 ? context_.rank.stages.stage_of(at) : 0;
  in_stage(stage, l, hidden, taps,
           [&](const Taps& shown) { LoadedLayer(*this, l).run(0, hidden, rows, shown); });
  if (spec_.visits(l) == 1 || l + 1 == spec_.loop->end) show_hidden(spec_, taps, l + 1, hidden);
}

LayerStream::LoadedLayer LayerStream::load(std::size_t l) {
  INGOT_CHECK(context_.rank.n_stages() == 1);
  head_.reset();
  return {*this, l};
}

LayerStream::LoadedLayer::LoadedLayer(LayerStream& stream, std::size_t l)
    : stream_(stream), l_(l), experts_(stream.experts_of(static_cast<std::uint32_t>(l))) {
  if (l < stream.spec_.n_main) {
    layer_.emplace(stream.weights_, stream.context_, static_cast<std::uint32_t>(l), 0,
                   experts_.get());
  } else {
    mtp_.emplace(stream.weights_, stream.context_, experts_.get());
  }
}

void LayerStream::LoadedLayer::run(std::size_t batch, Matrix& hidden, std::span<const Row> rows,
                                   const Taps& taps) {
  const ModelSpec& spec = stream_.spec_;
  const StepRows grouped(rows);
  Earlier& earlier = stream_.earlier_[batch];
  KvCache cache = stream_.cache_of(l_, grouped);
  const std::size_t source = spec.keys_of(l_);
  INGOT_CHECK(layer_ && (source == l_ || earlier.keys.contains(source)));
  layer_->forward(stream_.context_, hidden, grouped, cache, earlier.selection, taps,
                  source == l_ ? nullptr : &earlier.keys.at(source));
  std::erase_if(earlier.keys, [&](const auto& kept) { return spec.last_reader(kept.first) <= l_; });
  if (spec.last_reader(l_) > l_) earlier.keys.insert_or_assign(l_, std::move(cache));
  if (spec.visits(l_) > 1 && l_ + 1 == spec.loop->end)
    visit_again(hidden, grouped, earlier.selection, taps);
}

void LayerStream::LoadedLayer::visit_again(Matrix& hidden, const StepRows& grouped,
                                           Selection& selection, const Taps& taps) {
  const ModelSpec& spec = stream_.spec_;
  inference::visit_again(spec, 0, hidden, [&](std::size_t of_loop, const LoopVisit& again) {
    const auto number = static_cast<std::uint32_t>(of_loop);
    KvCache own = stream_.cache_of(of_loop, grouped);
    const auto own_experts = stream_.experts_of(number);
    const LoopVisit visit{.sources = again.sources, .is_last = again.is_last};
    DecoderLayer(stream_.weights_, stream_.context_, number, 0, own_experts.get())
        .forward(stream_.context_, hidden, grouped, own, selection, taps, nullptr, &visit);
    if (again.is_last && of_loop < l_) show_hidden(spec, taps, of_loop + 1, hidden);
  });
}

Matrix LayerStream::LoadedLayer::mtp(std::size_t batch, const Matrix& embedded,
                                     const Matrix& normed, std::span<const Row> rows,
                                     const Taps& taps) {
  INGOT_CHECK(mtp_ && normed.rows() == rows.size());
  const StepRows grouped(rows);
  KvCache cache = stream_.cache_of(l_, grouped);
  return mtp_->forward(stream_.context_, embedded, normed, grouped, cache,
                       stream_.earlier_[batch].selection, taps);
}

Matrix LayerStream::final_norm(const Matrix& hidden) {
  if (context_.rank.n_stages() > 1)
    tell_task(context_.comm, StreamTask::Kind::kNorm, 0, {}, &hidden);
  return of_last_stage(context_, "normed states of the last stage", hidden.rows(), spec_.hidden,
                       [&] { return output_head().final_norm(context_, hidden); });
}

Matrix LayerStream::head(const Matrix& normed) {
  tell_task(context_.comm, StreamTask::Kind::kHead, 0, {}, &normed);
  return of_last_stage(context_, "logits of the last stage", normed.rows(), spec_.vocab,
                       [&] { return output_head().logits(context_, normed); });
}

Matrix LayerStream::mtp(const Matrix& normed, std::span<const Row> rows, const Taps& taps) {
  INGOT_CHECK(normed.rows() == rows.size());
  tell_task(context_.comm, StreamTask::Kind::kMtp, 0, rows, &normed);
  Matrix out;
  in_stage(context_.rank.n_stages() - 1, spec_.n_main, out, taps, [&](const Taps& shown) {
    const Matrix tokens = embedded(rows);
    out = LoadedLayer(*this, spec_.n_main).mtp(0, tokens, normed, rows, shown);
  });
  return out;
}

void LayerStream::follow() {
  for (;;) {
    StreamTask task = next_task(context_.comm);
    switch (task.kind) {
      case StreamTask::Kind::kEmbed:
        (void)embed(task.rows);
        break;
      case StreamTask::Kind::kLayer:
        layer(task.layer, task.states, task.rows);
        break;
      case StreamTask::Kind::kNorm:
        (void)final_norm(task.states);
        break;
      case StreamTask::Kind::kHead:
        (void)head(task.states);
        break;
      case StreamTask::Kind::kMtp:
        (void)mtp(task.states, task.rows);
        break;
      case StreamTask::Kind::kEnd:
        return;
    }
  }
}

void LayerStream::release_followers() {
  tell_task(context_.comm, StreamTask::Kind::kEnd);
}

}  // namespace ingot::inference
