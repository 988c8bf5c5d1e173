#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include "formats/base/checked.h"
#include "formats/base/error.h"
#include "formats/base/parallel.h"
#include "formats/json/json.h"
#include "inference/base/matrix.h"
#include "inference/family/parameters.h"
#include "inference/family/spec_parts.h"
#include "inference/model/attention/attention.h"
#include "inference/model/attention/compressor.h"
#include "inference/model/spec/mixer_kinds.h"
#include "inference/model/spec/mixer_specs.h"
#include "inference/model/step/norm.h"
#include "inference/model/step/recent_rows.h"
#include "inference/model/step/step.h"
#include "inference/parallel/comm.h"
#include "inference/weights/block_weights.h"
#include "inference/weights/linear.h"

namespace ingot::inference {

using formats::FineRole;
using formats::ModelConfig;
using formats::Role;

namespace {

// DeepSeek-V4's own code has FP8 scales of this many values of an entry.
constexpr std::size_t kEntryGroup = 64;

constexpr std::array kCompressedRows = {
    ParameterRow<CompressedSpec>{"out_groups", &CompressedSpec::out_groups},
    ParameterRow<CompressedSpec>{"out_lora", &CompressedSpec::out_lora, kFew},
    ParameterRow<CompressedSpec>{"window", &CompressedSpec::window, kFew}};

// Attention of DeepSeek-V4 (its paper, 2.3; transformers 5.23). Queries come through a latent,
// have a norm without weight per head, and share one key head, whose keys are its values:
//   q_h = rope(n(wq_b norm(wq_a x))_h)     k = rope(norm(wkv x))
//   out_h = rope^-1(sum over what the row sees of softmax_h(q_h . k / sqrt(head_dim)) k)
//   y = wo_b [wo_a,g (outputs of the heads of group g)]_g
// A row sees the last `window` tokens and then, in ascending number, entries of a compressed cache
// whose windows ended before or with it: all of them, or the topk best of the indexer,
//   score = sum over heads of weights_h relu(q^I_h . e^I),
// e^I being entries of a compressor of the indexer's own. Each head has a sink: one logit more,
// that takes a share of the softmax and gives nothing. Rope is on the last values of a head;
// layers without compressor have frequencies of their own. A rank has groups of heads.
class CompressedAttention final : public Mixer {
 public:
  using Spec = CompressedSpec;
  CompressedAttention(const BlockWeights& weights, const StepContext& context, const Spec& spec);

  [[nodiscard]] Matrix partial(const LayerStep& step, const Matrix& x) const override;
  static Spec read(const DecoderSpec& model, Parameters& parameters, std::uint32_t layer);
  static std::vector<CacheStream> streams(const Spec& spec, const CacheForm& form);
  static MixerMemory memory(const Spec& spec, std::size_t threads, std::uint64_t longest);

 private:
  /// Entries that each row sees; a row with an empty list sees all of them.
  using Chosen = std::vector<std::vector<std::uint32_t>>;

  Matrix queries(const StepContext& context, const Matrix& latent, const RopeAngles& angles) const;
  Matrix keys(const LayerStep& step, const Matrix& x, const RopeAngles& angles) const;
  /// Caches the entries that the run completes.
  void compress(const LayerStep& step, const SequenceRun& run, const Matrix& projected,
                const Matrix& index_projected, std::span<float> state) const;
  Chosen choose(const LayerStep& step, const Matrix& x, const Matrix& latent,
                const RopeAngles& angles) const;
  void attend_run(const LayerStep& step, const SequenceRun& run, const Matrix& queries,
                  const Matrix& window, const Chosen& chosen, Matrix& out) const;
  [[nodiscard]] std::size_t seen_entries(std::size_t position) const;

  Spec spec_;
  std::size_t heads_ = 0, groups_ = 0;  ///< heads and groups of this rank
  Linear q_a_, q_b_, kv_, o_a_, o_b_;
  std::vector<float> q_norm_, kv_norm_, sinks_;
  std::optional<Compressor> compressor_, index_compressor_;
  Linear index_queries_, index_weights_;
};

// Every layer has a sliding window and a compressed cache, of which a row sees all, or the choice
// of an indexer. Layers with a compressor have other, stretched frequencies, without an effect on
// magnitudes; short windows of it overlap and have an indexer, long ones neither.
CompressedSpec CompressedAttention::read(const DecoderSpec& model, Parameters& parameters,
                                         std::uint32_t layer) {
  constexpr std::uint64_t kShort = 4, kLong = 128;
  const ModelConfig& config = model.config;
  CompressedSpec spec{.heads = of_heads(config.num_attention_heads, "num_attention_heads"),
                      .head_dim = of_heads(config.head_dim, "head_dim"),
                      .rope_dim = of_heads(config.qk_rope_head_dim, "qk_rope_head_dim"),
                      .q_lora = required(config.q_lora_rank, "q_lora_rank")};
  parameters.set(spec, kCompressedRows);
  if (spec.rope_dim >= spec.head_dim || spec.heads % spec.out_groups != 0) {
    refuse(
        fmt::format("{} heads of {} values, of which {} are rotated, in {} groups make no "
                    "attention",
                    spec.heads, spec.head_dim, spec.rope_dim, spec.out_groups));
  }
  const std::string key = parameters.key("ratio");
  const formats::Json& ratios = value_of(config, key);
  const auto ratio = ratios.is_array() && layer < ratios.size()
                         ? formats::whole_number(ratios[layer], kMaxCount)
                         : std::nullopt;
  if (!ratio) refuse(fmt::format("'{}' has no whole number for layer {}", key, layer));
  if (*ratio != 0 && *ratio != kShort && *ratio != kLong) {
    refuse(ErrorCode::kUnsupported,
           fmt::format("'{}' has {} for layer {}; the forward pass knows 0, {} and {}", key, *ratio,
                       layer, kShort, kLong));
  }
  formats::RopeConfig stretched = config.rope;
  stretched.theta = parameters.real("compressed_theta", {0, 1e12}).value_or(config.rope.theta);
  const RopeSpec far = rope_spec(stretched, spec.rope_dim, /*interleaved=*/true);
  spec.rope = rope_spec({.theta = config.rope.theta}, spec.rope_dim, /*interleaved=*/true);
  if (*ratio == 0) return spec;
  spec.rope = far;
  spec.rope.magnitude = 1.0F;
  spec.compressor = {static_cast<std::size_t>(*ratio), *ratio == kShort};
  if (*ratio != kShort) return spec;
  spec.topk = required(config.index_topk, "index_topk");
  spec.index_heads = of_heads(config.index_n_heads, "index_n_heads");
  spec.index_head_dim = of_heads(config.index_head_dim, "index_head_dim");
  if (spec.index_head_dim < spec.rope_dim) {
    refuse(fmt::format("'index_head_dim' is {}, less than the {} values that are rotated",
                       spec.index_head_dim, spec.rope_dim));
  }
  return spec;
}

std::vector<CacheStream> CompressedAttention::streams(const Spec& spec, const CacheForm& form) {
  std::vector<CacheStream> streams;
  if (spec.compressor) {
    const std::size_t every = spec.compressor->ratio, plain = spec.head_dim - spec.rope_dim;
    const KvFormat whole = unquantized(form.format);
    streams = {{.width = plain,
                .format = form.format,
                .group = form.format == KvFormat::kFp8 ? kEntryGroup : plain,
                .every = every},
               {.width = spec.rope_dim, .format = whole, .every = every}};
    if (spec.topk > 0) {
      streams.push_back({.width = spec.index_head_dim, .format = whole, .every = every});
    }
  }
  const CompressedState state = state_of(spec);
  streams.push_back(state_stream(state.keys + state.windows + state.index_windows));
  return streams;
}

MixerMemory CompressedAttention::memory(const Spec& spec, std::size_t threads, std::uint64_t) {
  const std::size_t series = spec.compressor && spec.compressor->overlap ? 2 : 1;
  const std::size_t entry = spec.head_dim + spec.index_head_dim;
  MixerMemory memory{.per_row = 2 * spec.heads * spec.head_dim + spec.q_lora +
                                spec.out_groups * spec.out_lora + 8 * series * entry +
                                spec.index_heads * spec.index_head_dim,
                     .fixed = (2 + 2 * threads) * spec.window * spec.head_dim};
  if (!spec.compressor) return memory;
  // Keys of the rows that are computed at once, all entries, and the indexer's products.
  const std::size_t per_entry = (2 + threads) * spec.head_dim + spec.index_head_dim +
                                threads * (spec.index_heads + 2 * spec.heads);
  memory.per_token = ceil_div(per_entry, spec.compressor->ratio);
  return memory;
}

CompressedAttention::CompressedAttention(const BlockWeights& weights, const StepContext& context,
                                         const Spec& spec)
    : spec_(spec) {
  const std::size_t hidden = context.spec.hidden, width = spec.head_dim;
  const std::size_t per_group = spec.heads / spec.out_groups;
  const Range groups = tensor_part(context.rank, spec.out_groups, "groups of heads");
  const Range heads{groups.first * per_group, groups.count * per_group};
  groups_ = groups.count;
  heads_ = heads.count;
  q_a_ = weights.linear(Role::kQaProj, spec.q_lora, hidden);
  q_norm_ = weights.vector(Role::kQaNorm, {spec.q_lora});
  q_b_ = weights.linear(Role::kQbProj, spec.heads * width, spec.q_lora,
                        {heads.first * width, heads.count * width}, {0, spec.q_lora});
  kv_ = weights.linear(Role::kKvaProj, width, hidden);
  kv_norm_ = weights.vector(Role::kKvaNorm, {width});
  sinks_ = weights.vector_part(FineRole::kCompressedSinks, spec.heads, heads);
  const Range latents{groups.first * spec.out_lora, groups.count * spec.out_lora};
  o_a_ = weights.linear(FineRole::kOAProj, spec.out_groups * spec.out_lora, per_group * width,
                        latents, {0, per_group * width});
  o_b_ =
      weights.linear(Role::kOProj, hidden, spec.out_groups * spec.out_lora, {0, hidden}, latents);
  if (!spec.compressor) return;
  compressor_.emplace(weights, context, /*is_of_indexer=*/false, *spec.compressor, width);
  if (spec.topk == 0) return;
  index_compressor_.emplace(weights, context, /*is_of_indexer=*/true, *spec.compressor,
                            spec.index_head_dim);
  index_queries_ =
      weights.linear(Role::kIndexerQ, spec.index_heads * spec.index_head_dim, spec.q_lora);
  index_weights_ = weights.linear(Role::kIndexerWeights, spec.index_heads, hidden);
}

std::size_t CompressedAttention::seen_entries(std::size_t position) const {
  return spec_.compressor ? (position + 1) / spec_.compressor->ratio : 0;
}

Matrix CompressedAttention::queries(const StepContext& context, const Matrix& latent,
                                    const RopeAngles& angles) const {
  Matrix heads = rounded_product(context, q_b_, latent);
  const std::vector<float> ones(spec_.head_dim, 1.0F);
  for (std::size_t h = 0; h < heads_; ++h) {
    const auto head = heads.columns(h * spec_.head_dim, spec_.head_dim);
    rms_norm(context.profile, head, ones, context.spec.norm.eps, head);
    for (std::size_t r = 0; r < heads.rows(); ++r) {
      angles.rotate(
          r, heads.row(r).subspan((h + 1) * spec_.head_dim - spec_.rope.dim, spec_.rope.dim));
    }
  }
  return heads;
}

Matrix CompressedAttention::keys(const LayerStep& step, const Matrix& x,
                                 const RopeAngles& angles) const {
  Matrix keys = rounded_product(step.context, kv_, x);
  rms_norm(step.context.profile, keys.view(), kv_norm_, step.context.spec.norm.eps, keys.view());
  for (std::size_t r = 0; r < x.rows(); ++r) {
    angles.rotate(r, keys.row(r).subspan(spec_.head_dim - spec_.rope.dim));
  }
  require_finite(keys, step.layer, "the key");
  return keys;
}

void CompressedAttention::compress(const LayerStep& step, const SequenceRun& run,
                                   const Matrix& projected, const Matrix& index_projected,
                                   std::span<float> state) const {
  if (!compressor_) return;
  const std::size_t plain = spec_.head_dim - spec_.rope.dim;
  const std::size_t own = state_of(spec_).windows;
  const std::size_t first = run.first_position / spec_.compressor->ratio;
  const auto write = [&](std::size_t stream, formats::MatrixView<const float> entries) {
    for (std::size_t i = 0; i < entries.rows; ++i) {
      step.cache.write(run.sequence, step.cache_layer, stream, first + i,
                       {entries.row(i), entries.cols});
    }
  };
  const Matrix entries =
      compressor_->entries(step.context, spec_.rope, run, projected, state.first(own));
  require_finite(entries, step.layer, "a compressed entry");
  write(kEntryStream, entries.columns(0, plain));
  write(kEntryRopeStream, entries.columns(plain, spec_.rope.dim));
  if (!index_compressor_) return;
  const Matrix index_entries = index_compressor_->entries(step.context, spec_.rope, run,
                                                          index_projected, state.subspan(own));
  require_finite(index_entries, step.layer, "an index entry");
  write(kEntryIndexStream, index_entries.view());
}

CompressedAttention::Chosen CompressedAttention::choose(const LayerStep& step, const Matrix& x,
                                                        const Matrix& latent,
                                                        const RopeAngles& angles) const {
  const StepContext& context = step.context;
  Chosen chosen(x.rows());
  const auto sees_all = [&](const SequenceRun& run) {
    return seen_entries(run.total() - 1) <= spec_.topk;
  };
  if (spec_.topk == 0 || std::ranges::all_of(step.rows.runs, sees_all)) return chosen;
  Matrix queries = rounded_product(context, index_queries_, latent);
  for (std::size_t r = 0; r < x.rows(); ++r) {
    for (std::size_t h = 1; h <= spec_.index_heads; ++h) {
      angles.rotate(
          r, queries.row(r).subspan(h * spec_.index_head_dim - spec_.rope.dim, spec_.rope.dim));
    }
  }
  Matrix weights(x.rows(), spec_.index_heads);
  index_weights_.apply_unquantized(x.view(), weights.view(), context.threads);
  const float factor = 1.0F / std::sqrt(static_cast<float>(spec_.index_heads)) /
                       std::sqrt(static_cast<float>(spec_.index_head_dim));
  for (float& weight : weights.values()) weight *= factor;
  require_finite(queries, step.layer, "the indexer's query");
  require_finite(weights, step.layer, "the indexer's head weights");
  for (const SequenceRun& run : step.rows.runs) {
    if (sees_all(run)) continue;
    const Matrix entries = step.cached(context.profile, run.sequence, kEntryIndexStream,
                                       first_positions(seen_entries(run.total() - 1)));
    parallel_for(run.count, context.threads, [&](std::size_t i) {
      const std::size_t r = run.first_row + i, seen = seen_entries(run.first_position + i);
      if (seen <= spec_.topk) return;
      const std::vector<float> scores = index_scores(
          {queries.row(r).data(), spec_.index_heads, spec_.index_head_dim, spec_.index_head_dim},
          weights.row(r), entries, seen);
      chosen[r] = best_positions(scores, spec_.topk);
      if (step.taps.near_ties != nullptr && is_near_tie(scores, chosen[r]))
        ++std::atomic_ref(step.taps.near_ties->indexer);
    });
  }
  step.show(chosen);
  return chosen;
}

void CompressedAttention::attend_run(const LayerStep& step, const SequenceRun& run,
                                     const Matrix& queries, const Matrix& window,
                                     const Chosen& chosen, Matrix& out) const {
  const StepContext& context = step.context;
  const std::size_t width = spec_.head_dim, plain = width - spec_.rope.dim, past = spec_.window - 1;
  const float scale = 1.0F / std::sqrt(static_cast<float>(width));
  const auto entries = [&](std::span<const std::uint32_t> which) {
    Matrix keys(which.size(), width);
    if (which.empty()) return keys;
    const Matrix values = step.cached(context.profile, run.sequence, kEntryStream, which);
    const Matrix rotated = step.cached(context.profile, run.sequence, kEntryRopeStream, which);
    for (std::size_t i = 0; i < which.size(); ++i) {
      std::ranges::copy(values.row(i), keys.row(i).begin());
      std::ranges::copy(rotated.row(i), keys.row(i).subspan(plain).begin());
    }
    return keys;
  };
  // Rows that see all entries read one copy.
  std::size_t most = 0;
  for (std::size_t i = 0; i < run.count; ++i) {
    if (chosen[run.first_row + i].empty()) most = seen_entries(run.first_position + i);
  }
  const Matrix all = entries(first_positions(most));
  const std::size_t within = run.count == 1 ? context.threads : 1;
  parallel_for(run.count, context.threads, [&](std::size_t i) {
    const std::size_t r = run.first_row + i, position = run.first_position + i;
    const bool is_chosen = !chosen[r].empty();
    const Matrix own = is_chosen ? entries(chosen[r]) : Matrix();
    const Matrix& far = is_chosen ? own : all;
    const std::size_t n_far = is_chosen ? own.rows() : seen_entries(position);
    const std::size_t n_near = std::min(past, position) + 1;
    Matrix keys(n_near + n_far, width);
    const auto near = window.values().subspan((past + i + 1 - n_near) * width, n_near * width);
    std::ranges::copy(near, keys.values().begin());
    std::ranges::copy(far.values().first(n_far * width),
                      keys.values().subspan(n_near * width).begin());
    const ScorePart parts[] = {{{queries.row(r).data(), heads_, width, width}, keys.view()}};
    const AttentionNumbers numbers{
        .profile = context.profile, .scale = scale, .threads = within, .sinks = sinks_};
    attend(numbers, parts, keys.view(), [&](std::size_t) { return keys.rows(); },
           {out.row(r).data(), heads_, width, width});
  });
}

Matrix CompressedAttention::partial(const LayerStep& step, const Matrix& x) const {
  const StepContext& context = step.context;
  const RopeAngles angles(context.profile, spec_.rope, step.rows.positions);
  Matrix latent = rounded_product(context, q_a_, x);
  rms_norm(context.profile, latent.view(), q_norm_, context.spec.norm.eps, latent.view());
  const Matrix queries = this->queries(context, latent, angles);
  const Matrix keys = this->keys(step, x, angles);
  const Matrix projected = compressor_ ? compressor_->project(context, step.rows, x) : Matrix();
  const Matrix index_projected =
      index_compressor_ ? index_compressor_->project(context, step.rows, x) : Matrix();

  const std::size_t n_keys = state_of(spec_).keys;
  std::vector<std::span<float>> states;
  for (const SequenceRun& run : step.rows.runs) {
    states.push_back(step.state(run));
    compress(step, run, projected, index_projected, states.back().subspan(n_keys));
  }
  const Chosen chosen = choose(step, x, latent, angles);

  Matrix attended(x.rows(), heads_ * spec_.head_dim);
  for (std::size_t i = 0; i < states.size(); ++i) {
    const SequenceRun& run = step.rows.runs[i];
    RecentRows recent(states[i].first(n_keys), spec_.head_dim);
    const auto mine = keys.block(run.first_row, run.count, 0, spec_.head_dim);
    const Matrix window = recent.followed_by(run.first_position, spec_.window - 1, mine);
    recent.keep(run.first_position, mine);
    attend_run(step, run, queries, window, chosen, attended);
  }
  for (std::size_t r = 0; r < x.rows(); ++r) {
    for (std::size_t h = 1; h <= heads_; ++h) {
      angles.rotate_back(
          r, attended.row(r).subspan(h * spec_.head_dim - spec_.rope.dim, spec_.rope.dim));
    }
  }
  require_finite(attended, step.layer, "attention");

  Matrix latents(x.rows(), groups_ * spec_.out_lora);
  o_a_.apply_in_runs(groups_, attended.view(), latents.view(), context.threads);
  round_between(context.profile, latents.values());
  return product(context, o_b_, latents);
}

}  // namespace

constinit const MixerKind kCompressedAttention = mixer_kind<CompressedAttention>("compressed");

}  // namespace ingot::inference
