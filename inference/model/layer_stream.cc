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
  const ExpertShape shape = expert_shape(spec_, context_.rank, true).of_layer(l);
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
    if (spec_.indexer() != nullptr) result.selection = selection_;
  }
  result = share_result(context_.comm, l, stage, is_here ? &result : nullptr);
  out = std::move(result.states);
  if (is_here) return;
  selection_ = std::move(result.selection);
  if (taps.router && !result.experts.empty()) taps.router(l, result.experts, result.weights);
  for (std::size_t r = 0; taps.indexer && r < selection_.size(); ++r) {
    if (!selection_[r].empty()) taps.indexer(l, r, selection_[r]);
  }
}

void LayerStream::layer(std::size_t l, Matrix& hidden, std::span<const Row> rows,
                        const Taps& taps) {
  INGOT_CHECK(l < spec_.n_main && hidden.rows() == rows.size());
  tell_task(context_.comm, StreamTask::Kind::kLayer, l, rows, &hidden);
  head_.reset();
  const auto at = static_cast<std::uint32_t>(l);
  const std::size_t stage = context_.rank.n_stages() > 1 ? context_.rank.stages.stage_of(at) : 0;
  in_stage(stage, l, hidden, taps, [&](const Taps& shown) {
    const StepRows grouped(rows);
    KvCache cache = cache_of(l, grouped);
    const auto experts = experts_of(at);
    const DecoderLayer layer(weights_, context_, at, 0, experts.get());
    const std::size_t source = spec_.keys_of(l);
    INGOT_CHECK(source == l || keys_.contains(source));
    layer.forward(context_, hidden, grouped, cache, selection_, shown,
                  source == l ? nullptr : &keys_.at(source));
    std::erase_if(keys_, [&](const auto& kept) { return spec_.last_reader(kept.first) <= l; });
    if (spec_.last_reader(l) > l) keys_.insert_or_assign(l, std::move(cache));
    if (spec_.visits(l) == 1 || l + 1 < spec_.loop->end) return;
    visit_again(spec_, 0, hidden, [&](std::size_t of_loop, const LoopVisit& again) {
      const auto number = static_cast<std::uint32_t>(of_loop);
      KvCache own = cache_of(of_loop, grouped);
      const auto own_experts = experts_of(number);
      const LoopVisit visit{.sources = again.sources, .is_last = again.is_last};
      DecoderLayer(weights_, context_, number, 0, own_experts.get())
          .forward(context_, hidden, grouped, own, selection_, shown, nullptr, &visit);
      if (again.is_last && of_loop < l) show_hidden(spec_, taps, of_loop + 1, hidden);
    });
  });
  if (spec_.visits(l) == 1 || l + 1 == spec_.loop->end) show_hidden(spec_, taps, l + 1, hidden);
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
    const StepRows grouped(rows);
    KvCache cache = cache_of(spec_.n_main, grouped);
    const auto experts = experts_of(static_cast<std::uint32_t>(spec_.n_main));
    const MtpLayer layer(weights_, context_, experts.get());
    out = layer.forward(context_, tokens, normed, grouped, cache, selection_, shown);
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
