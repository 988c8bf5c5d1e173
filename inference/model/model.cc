#include "inference/model/model.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "formats/base/error.h"
#include "inference/family/model_family.h"
#include "inference/model/model_memory.h"

namespace ingot::inference {

Model::Model(const formats::Checkpoint& source, const RankView& rank, Comm& comm,
             const ModelOptions& options)
    : spec_(model_spec(source)),
      context_{.spec = spec_,
               .profile = options.profile,
               .form = options.form,
               .threads = options.threads,
               .rank = rank,
               .comm = comm},
      stage_(stage_part(rank, spec_.n_main)),
      weights_(source, options.profile, options.threads) {
  require_keys_in_stage(spec_, stage_);
  const bool is_first = rank.stage() == 0, is_last = rank.is_last_stage();
  const bool with_mtp = !options.without_mtp && is_last && MtpLayer::is_in(weights_, spec_);
  const ExpertShape shape = expert_shape(spec_, rank, with_mtp);
  const std::uint64_t budget =
      expert_budget(need_of_weights(weights_, shape, with_mtp, spec_), options.weight_limit);
  if (!shape.experts.empty()) {
    experts_ = std::make_unique<ExpertStore>(weights_, shape, budget, options.threads);
  }
  if (is_first || with_mtp) embedding_.emplace(weights_, context_);
  if (is_last) head_.emplace(weights_, context_, embedding_ ? &*embedding_ : nullptr);
  layers_.reserve(stage_.count);
  for (std::size_t i = 0; i < stage_.count; ++i) {
    const auto layer = static_cast<std::uint32_t>(stage_.first + i);
    layers_.emplace_back(weights_, context_, layer, i, experts_.get());
  }
  if (with_mtp) mtp_.emplace(weights_, context_, experts_.get());
  has_mtp_ = is_in_last_stage(context_, with_mtp);
}

std::vector<std::vector<CacheStream>> Model::streams(KvFormat format, Range layers,
                                                     std::span<const StaticScales> scales) const {
  std::vector<std::vector<CacheStream>> streams;
  for (std::size_t l = layers.first; l < layers.first + layers.count; ++l) {
    streams.push_back(cache_streams(spec_, context_.rank, context_.profile, format, l,
                                    l < scales.size() ? &scales[l] : nullptr));
  }
  // Further visits have caches of their own, behind the others.
  const bool has_loop = spec_.loop && layers.first <= spec_.loop->first && layers.count > 0 &&
                        layers.first + layers.count >= spec_.loop->end;
  for (std::size_t pass = 1; has_loop && pass < spec_.loop->passes; ++pass) {
    for (std::size_t l = spec_.loop->first; l < spec_.loop->end; ++l)
      streams.push_back(streams[l - layers.first]);
  }
  return streams;
}

Range Model::mtp_layers() const {
  return {.first = spec_.n_main, .count = mtp_ ? std::size_t{1} : 0};
}

ModelCache Model::make_cache(KvFormat format, std::size_t capacity,
                             std::span<const StaticScales> scales) const {
  return {KvCache(streams(format, stage_, scales), capacity),
          KvCache(streams(format, mtp_layers(), scales), capacity)};
}

// The hidden states, then per row how many positions were chosen, and those.
void Model::hand_on(std::size_t from, Matrix& hidden, Selection& selection) const {
  const bool gives = context_.rank.stage() == from;
  const bool takes = context_.rank.stage() == from + 1;
  const std::size_t next = context_.rank.stages.first[from + 1];
  // The first attention that asks tells whether the choice is read.
  bool with_selection = false;
  for (std::size_t l = next; l < spec_.n_main; ++l) {
    const auto* latent = spec_.layers[l].find<LatentSpec>();
    if (latent == nullptr) continue;
    with_selection = latent->takes_earlier_choice;
    break;
  }
  Bytes bytes;
  if (gives) {
    std::vector<std::uint32_t> numbers;
    for (std::size_t r = 0; with_selection && r < hidden.rows(); ++r) {
      numbers.push_back(static_cast<std::uint32_t>(selection[r].size()));
      numbers.insert(numbers.end(), selection[r].begin(), selection[r].end());
    }
    bytes.resize(hidden.values().size_bytes() + numbers.size() * sizeof(std::uint32_t));
    const auto states = std::as_bytes(std::span<const float>(hidden.values()));
    const auto after = std::ranges::copy(states, bytes.begin()).out;
    std::ranges::copy(std::as_bytes(std::span(numbers)), after);
  }
  bytes = hand_over(context_.comm, {.group = Group::kPipeline, .name = "hidden states"}, from,
                    std::move(bytes));
  if (!takes) return;
  std::span<const std::byte> left = bytes;
  const auto take = [&](std::size_t n_bytes) {
    INGOT_CHECK(n_bytes <= left.size());
    const auto taken = left.first(n_bytes);
    left = left.subspan(n_bytes);
    return taken;
  };
  const auto take_numbers = [&](std::span<std::uint32_t> numbers) {
    const auto taken = take(numbers.size_bytes());
    if (!taken.empty()) std::memcpy(numbers.data(), taken.data(), taken.size());
  };
  copy_values(take(hidden.values().size_bytes()), hidden.values());
  if (with_selection) selection.assign(hidden.rows(), {});
  for (std::size_t r = 0; with_selection && r < hidden.rows(); ++r) {
    std::uint32_t count = 0;
    take_numbers({&count, 1});
    INGOT_CHECK(count <= left.size() / sizeof count);
    selection[r].resize(count);
    take_numbers(selection[r]);
  }
  INGOT_CHECK(left.empty());
}

Matrix Model::embed(std::span<const Row> rows) const {
  INGOT_CHECK(embedding_.has_value());
  return embedding_->embed(context_, rows);
}

void Model::layer(std::size_t l, Matrix& hidden, std::span<const Row> rows, ModelCache& cache,
                  const Taps& taps) const {
  INGOT_CHECK(l - stage_.first < stage_.count);
  const StepRows grouped(rows);
  const auto visit = [&](std::size_t layer, const LoopVisit* again) {
    layers_[layer - stage_.first].forward(context_, hidden, grouped, cache.main(),
                                          cache.selection(), taps, nullptr, again);
  };
  visit(l, nullptr);
  if (spec_.visits(l) == 1) return show_hidden(spec_, taps, l + 1, hidden);
  if (l + 1 < spec_.loop->end) return;
  visit_again(spec_, stage_.count, hidden, [&](std::size_t layer, const LoopVisit& again) {
    visit(layer, &again);
    if (again.is_last) show_hidden(spec_, taps, layer + 1, hidden);
  });
}

Matrix Model::final_norm(const Matrix& hidden) const {
  INGOT_CHECK(head_.has_value());
  return head_->final_norm(context_, hidden);
}

Matrix Model::head(const Matrix& normed) const {
  return of_last_stage(context_, "logits of the last stage", normed.rows(), spec_.vocab,
                       [&] { return head_->logits(context_, normed); });
}

Matrix Model::step(std::span<const Row> rows, ModelCache& cache, const Taps& taps,
                   Matrix* normed_hidden) const {
  const StepRows grouped(rows);
  require_tokens(spec_, rows);  // before the cache is touched
  Matrix hidden =
      context_.rank.stage() == 0 ? embed(rows) : Matrix(rows.size(), spec_.stream_width());
  reserve_rows(grouped, cache.main());
  if (context_.rank.stage() == 0) show_hidden(spec_, taps, 0, hidden);
  for (std::size_t stage = 0; stage < context_.rank.n_stages(); ++stage) {
    for (std::size_t i = 0; stage == context_.rank.stage() && i < stage_.count; ++i) {
      layer(stage_.first + i, hidden, rows, cache, taps);
    }
    if (stage + 1 < context_.rank.n_stages()) hand_on(stage, hidden, cache.selection());
  }

  std::vector<std::size_t> wanted;
  for (std::size_t r = 0; r < rows.size(); ++r) {
    if (rows[r].logits) wanted.push_back(r);
  }
  if (normed_hidden != nullptr) {
    *normed_hidden = of_last_stage(context_, "normed states of the last stage", rows.size(),
                                   spec_.hidden, [&] { return final_norm(hidden); });
  }
  return of_last_stage(context_, "logits of the last stage", wanted.size(), spec_.vocab, [&] {
    Matrix last(wanted.size(), hidden.cols());
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      std::ranges::copy(hidden.row(wanted[i]), last.row(i).begin());
    }
    return head_->logits(context_, final_norm(last));
  });
}

Matrix Model::mtp(const Matrix& normed, std::span<const Row> rows, ModelCache& cache,
                  const Taps& taps) const {
  if (!has_mtp_) {
    throw Error(ErrorCode::kUnsupported, "this model has no layer for multi-token prediction");
  }
  const StepRows grouped(rows);
  require_tokens(spec_, rows);
  reserve_rows(grouped, cache.mtp());
  return of_last_stage(context_, "MTP states of the last stage", rows.size(), spec_.hidden, [&] {
    return mtp_->forward(context_, embed(rows), normed, grouped, cache.mtp(), cache.selection(),
                         taps);
  });
}

}  // namespace ingot::inference
