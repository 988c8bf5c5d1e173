#include "verify/layers/layer_check.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "formats/base/error.h"
#include "formats/base/parallel.h"
#include "formats/checkpoint/checkpoint.h"
#include "inference/family/model_family.h"
#include "inference/generate/memory_plan.h"
#include "inference/model/layer_stream.h"
#include "inference/model/step/step.h"
#include "inference/parallel/comm.h"
#include "inference/parallel/rank_view.h"
#include "verify/outputs/divergence.h"
#include "verify/outputs/prompt_rows.h"

// Both models pass through the same prompts, layer by layer. The source runs one set of sequences,
// on its own states. The output runs two at once, so that its weights are read once: one that is
// given the source's states before every layer (isolated), and one that continues its own
// (accumulated). Rows of a step do not see other sequences, so each set computes the same as it
// would by itself.

namespace ingot::verify {

using formats::Checkpoint;
using formats::MatrixView;
using inference::LayerStream;
using inference::Matrix;
using inference::ModelSpec;
using inference::Row;
using inference::RunMemory;

namespace {

struct TokenSums {
  std::size_t prompt = 0, token = 0, row = 0;
  double cosine = 1, source2 = 0, error2 = 0, max_error = 0;
  bool finite = true;
};

void compare_token(const float* source, const float* output, std::size_t width, TokenSums& sums) {
  double product = 0, output2 = 0;
  for (std::size_t i = 0; i < width; ++i) {
    const double a = source[i], b = output[i], error = b - a;
    product += a * b;
    sums.source2 += a * a;
    output2 += b * b;
    sums.error2 += error * error;
    sums.max_error = std::max(sums.max_error, std::abs(error));
  }
  sums.finite = std::isfinite(sums.source2) && std::isfinite(output2);
  if (sums.error2 == 0) {
    sums.cosine = 1;  // exactly, without rounding
  } else if (sums.source2 == 0 || output2 == 0) {
    sums.cosine = 0;
  } else {
    sums.cosine = product / std::sqrt(sums.source2 * output2);
  }
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const std::size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

double mean(std::span<const double> values) {
  double sum = 0;
  for (const double value : values) sum += value;
  return sum / static_cast<double>(values.size());
}

Similarity summary(std::span<const TokenSums> tokens) {
  Similarity is;
  std::vector<double> all, without_first;
  double error2 = 0, source2 = 0;
  for (const TokenSums& token : tokens) {
    if (all.empty() || token.cosine < is.worst) {
      is.worst = token.cosine;
      is.worst_prompt = token.prompt;
      is.worst_token = token.token;
    }
    all.push_back(token.cosine);
    if (token.token > 0) without_first.push_back(token.cosine);
    error2 += token.error2;
    source2 += token.source2;
    is.max_error = std::max(is.max_error, token.max_error);
  }
  if (without_first.empty()) without_first = all;
  is.mean = mean(all);
  is.median = median(all);
  is.mean_without_first = mean(without_first);
  is.worst_without_first = *std::min_element(without_first.begin(), without_first.end());
  is.relative_error = error2 == 0 ? 0.0 : std::sqrt(error2 / source2);
  return is;
}

// Part of `mine` that is in `other` too. REQUIRES: both ascending.
double shared_part(std::span<const std::uint32_t> mine, std::span<const std::uint32_t> other) {
  std::size_t shared = 0, at = 0;
  for (const std::uint32_t id : mine) {
    while (at < other.size() && other[at] < id) ++at;
    if (at < other.size() && other[at] == id) ++shared;
  }
  return static_cast<double>(shared) / static_cast<double>(mine.size());
}

}  // namespace

Similarity similarity(formats::MatrixView<const float> source,
                      formats::MatrixView<const float> output, std::span<const PromptSpan> spans,
                      std::size_t threads) {
  INGOT_CHECK(source.cols == output.cols);
  std::vector<TokenSums> tokens;
  for (const PromptSpan& span : spans) {
    INGOT_CHECK(span.end() <= source.rows && span.end() <= output.rows);
    for (std::size_t i = 0; i < span.ids.size(); ++i) {
      tokens.push_back({.prompt = span.prompt, .token = i, .row = span.first + i});
    }
  }
  if (tokens.empty()) return {};
  parallel_for(tokens.size(), threads, [&](std::size_t i) {
    compare_token(source.row(tokens[i].row), output.row(tokens[i].row), source.cols, tokens[i]);
  });
  for (const TokenSums& token : tokens) {
    if (!token.finite) {
      throw Error(ErrorCode::kNonFinite, "token {} of prompt {} holds NaN or infinite values",
                  token.token, token.prompt);
    }
  }
  return summary(tokens);
}

inference::Taps LayerChoices::taps() {
  return {.hidden = {},
          .router =
              [this](std::size_t, std::span<const std::uint32_t> experts, std::span<const float>) {
                const auto mine = experts.first(experts.size() / all_rows_ * rows_);
                experts_.assign(mine.begin(), mine.end());
              },
          .indexer =
              [this](std::size_t, std::size_t row, std::span<const std::uint32_t> positions) {
                if (row < rows_) positions_[row].assign(positions.begin(), positions.end());
              }};
}

void LayerChoices::renumber(std::span<const std::uint32_t> numbers) {
  for (std::uint32_t& expert : experts_) {
    // Experts without tensors are behind the others.
    if (expert < numbers.size()) expert = numbers[expert];
  }
}

std::optional<double> LayerChoices::router_overlap(const LayerChoices& other) const {
  if (experts_.empty() || other.experts_.empty()) return std::nullopt;
  const std::size_t mine = experts_.size() / rows_, others = other.experts_.size() / rows_;
  double sum = 0;
  for (std::size_t r = 0; r < rows_; ++r) {
    sum += shared_part(std::span(experts_).subspan(r * mine, mine),
                       std::span(other.experts_).subspan(r * others, others));
  }
  return sum / static_cast<double>(rows_);
}

std::optional<double> LayerChoices::indexer_overlap(const LayerChoices& other) const {
  double sum = 0;
  std::size_t n = 0;
  for (std::size_t r = 0; r < rows_; ++r) {
    if (positions_[r].empty() || other.positions_[r].empty()) continue;
    sum += shared_part(positions_[r], other.positions_[r]);
    ++n;
  }
  if (n == 0) return std::nullopt;
  return sum / static_cast<double>(n);
}

namespace {

/// How a memory limit is shared while two models pass through the same prompts layer by layer. One
/// of them works at a time, but for the heads, of which both are needed for the logits of a token.
struct LockstepMemory {
  std::uint64_t source_weights = 0, output_weights = 0;  ///< LayerStreamOptions::weight_limit
  std::size_t head_rows = 0;  ///< tokens whose logits of both sides are in memory at once
};

/// One model of a pass, and how it runs.
struct LockstepModel {
  const formats::Checkpoint& model;
  inference::Profile profile;
  std::size_t copies = 1;  ///< sequences per prompt that pass through it at once
};

constexpr std::size_t kMostHeadRows = 256;
constexpr std::size_t kCopiesOfOutput = 2;
constexpr inference::Collective kLengths = {.group = inference::Group::kWorld,
                                            .name = "lengths of prompts"};

RunMemory need_of(const LockstepModel& side, std::span<const std::size_t> lengths,
                  std::size_t threads) {
  std::vector<std::size_t> sequences;
  for (std::size_t copy = 0; copy < side.copies; ++copy) {
    sequences.insert(sequences.end(), lengths.begin(), lengths.end());
  }
  return inference::stream_memory(side.model, side.profile, sequences, threads);
}

// The program, and its facts about the checkpoint.
std::uint64_t idle_memory(const LockstepModel& side, std::size_t threads) {
  return inference::stream_memory(side.model, side.profile, {}, threads).scratch;
}

// Hidden states between the layers, twice where the next ones are made of them, and choices of
// experts and positions.
std::uint64_t held_memory(const inference::ModelSpec& spec, std::size_t copies,
                          std::uint64_t rows) {
  const std::uint64_t states = 2 * (1 + copies) * spec.stream_width() * sizeof(float);
  const std::uint64_t choices = 2 * sizeof(std::uint32_t) *
                                ((spec.router() != nullptr ? spec.router()->topk : 0) +
                                 (spec.indexer() != nullptr ? spec.indexer()->topk : 0));
  return rows * (states + choices);
}

/// Bytes of the head, as stored.
std::uint64_t head_bytes(const formats::Checkpoint& model) {
  const auto bytes_of = [&](formats::Role role) {
    std::uint64_t n_bytes = 0;
    for (const formats::LogicalTensor& tensor : model.tensors()) {
      if (role_of(tensor) != role) continue;
      tensor.encoding.stored.for_each(
          [&](formats::Part, std::uint32_t stored) { n_bytes += model.stored()[stored].n_bytes; });
    }
    return n_bytes;
  };
  const std::uint64_t n_bytes = bytes_of(formats::Role::kHead);
  return n_bytes > 0 ? n_bytes : bytes_of(formats::Role::kEmbedding);
}

/// `lengths` are those of the prompts. Keeps the hidden states of all prompts: one copy for the
/// source, one per run of the output. Throws kLimit and names the memory that would suffice.
LockstepMemory share_memory(const LockstepModel& source, const LockstepModel& output,
                            const inference::ModelSpec& spec, std::span<const std::size_t> lengths,
                            std::size_t threads, std::uint64_t limit) {
  const std::uint64_t rows = std::accumulate(lengths.begin(), lengths.end(), std::uint64_t{0});
  const std::uint64_t held = held_memory(spec, output.copies, rows);
  const RunMemory of_source = need_of(source, lengths, threads);
  const RunMemory of_output = need_of(output, lengths, threads);
  const std::uint64_t source_idle = idle_memory(source, threads);
  const std::uint64_t output_idle = idle_memory(output, threads);

  const std::uint64_t beside_source = held + output_idle + of_source.cache + of_source.scratch;
  const std::uint64_t beside_output = held + source_idle + of_output.cache + of_output.scratch;
  const std::uint64_t for_heads =
      held + source_idle + output_idle + head_bytes(source.model) + head_bytes(output.model);
  const std::uint64_t head_row = 2 * (spec.vocab + spec.hidden) * sizeof(float);

  const std::uint64_t enough =
      std::max({beside_source + of_source.resident + of_source.two_experts,
                beside_output + of_output.resident + of_output.two_experts, for_heads + head_row});
  if (limit < enough) {
    throw Error(ErrorCode::kLimit,
                "{} MB of memory do not suffice to compare layers: hidden states of {} tokens take "
                "{} MB, a layer at work up to {} MB; --mem-limit {}MB would be enough",
                limit / 1'000'000, rows, (held + 999'999) / 1'000'000,
                (enough - held + 999'999) / 1'000'000, (enough + 999'999) / 1'000'000);
  }
  return {.source_weights = limit - beside_source,
          .output_weights = limit - beside_output,
          .head_rows = static_cast<std::size_t>(
              std::min<std::uint64_t>(kMostHeadRows, (limit - for_heads) / head_row))};
}

// Says whose values are not finite, or cannot be read.
template <typename Body>
auto on_side(std::string_view side, Body&& body) {
  try {
    return body();
  } catch (Error& error) {
    throw Error(error.code(), "the {}: {}", side, error.message())
        .in_file(error.file())
        .in_tensor(error.tensor());
  }
}

void set_isolated(Matrix& both, std::span<const float> states) {
  std::copy(states.begin(), states.end(), both.values().begin());
}
void set_accumulated(Matrix& both, std::span<const float> states) {
  std::copy(states.begin(), states.end(),
            both.values().begin() + static_cast<std::ptrdiff_t>(states.size()));
}

class Lockstep {
 public:
  Lockstep(const Checkpoint& source, const Checkpoint& output, const ModelSpec& spec,
           std::span<const Prompt> prompts, const RunOptions& options)
      : options_(options),
        spans_(spans_of(prompts, spec)),
        rows_(rows_of(spans_, 1)),
        rows_twice_(rows_of(spans_, 2)),
        memory_(share_memory(
            {.model = source, .profile = options.source_profile},
            {.model = output, .profile = options.output_profile, .copies = kCopiesOfOutput}, spec,
            lengths_of(spans_), options.threads, options.mem_limit)),
        source_(source, {.profile = options.source_profile,
                         .threads = options.threads,
                         .weight_limit = memory_.source_weights}),
        output_(output, {.profile = options.output_profile,
                         .threads = options.threads,
                         .weight_limit = memory_.output_weights,
                         .rank = inference::rank_view(output),
                         .comm = options.ranks}),
        caches_(options.ranks == nullptr
                    ? std::optional<CacheScaleCheck>(std::in_place, output, output_.spec())
                    : std::nullopt),
        states_(rows_.size(), spec.stream_width()),
        both_(2 * rows_.size(), spec.stream_width()) {
    report_.source_profile = inference::profile_name(options.source_profile);
    report_.output_profile = inference::profile_name(options.output_profile);
    report_.prompts = prompts.size();
    report_.tokens = rows_.size();
  }

  LayersReport run() {
    const std::size_t n_layers = source_.spec().n_main;
    const bool with_mtp = source_.has_mtp() && output_.has_mtp();
    const auto passed = [&](std::uint64_t n) {
      if (options_.progress) options_.progress(n, n_layers + (with_mtp ? 1 : 0));
    };
    states_ = on_side("source", [&] { return source_.embed(rows_); });
    set_accumulated(both_, on_side("output", [&] { return output_.embed(rows_); }).values());
    for (std::size_t l = 0; l < n_layers; ++l) {
      main_layer(l);
      passed(l + 1);
    }
    states_ = source_.final_norm(states_);
    both_ = output_.final_norm(both_);  // of which the first half is of no use
    report_.tokens_of_logits = logits(states_, half_of(both_, 1), spans_);
    report_.logits = logit_agreement(report_.tokens_of_logits);
    if (with_mtp) {
      mtp_layer();
      passed(n_layers + 1);
    }
    output_.release_followers();
    return std::move(report_);
  }

 private:
  void main_layer(std::size_t l) {
    set_isolated(both_, states_.values());
    LayerChoices source_choices(rows_.size(), rows_.size());
    LayerChoices output_choices(rows_.size(), rows_twice_.size());
    on_side("source", [&] { source_.layer(l, states_, rows_, source_choices.taps()); });
    on_side("output", [&] {
      output_.layer(l, both_, rows_twice_, output_taps(l, output_choices, rows_.size()));
    });
    add_agreement(l, states_, both_, spans_);
    add_overlaps(source_choices, output_choices);
  }

  // Shows the choices, and what is cached of the output's own states.
  inference::Taps output_taps(std::size_t l, LayerChoices& choices, std::size_t rows) {
    inference::Taps taps = choices.taps();
    if (!caches_) return taps;
    caches_->begin(l, rows);
    taps.cache = [this](std::size_t, std::size_t first_stream, std::size_t stream,
                        MatrixView<const float> values) {
      caches_->see(first_stream, stream, values);
    };
    return taps;
  }

  void add_agreement(std::size_t l, const Matrix& states, const Matrix& both,
                     std::span<const PromptSpan> spans) {
    const auto compare = [&](MatrixView<const float> half) {
      try {
        return similarity(states.view(), half, spans, options_.threads);
      } catch (Error& error) {
        throw Error(error.code(), "layer {}: {}", l, error.message());
      }
    };
    report_.layers.push_back({.layer = l,
                              .is_mtp = l == source_.spec().n_main,
                              .isolated = compare(half_of(both, 0)),
                              .accumulated = compare(half_of(both, 1))});
    if (caches_) report_.layers.back().cache = caches_->figures();
  }

  void add_overlaps(const LayerChoices& source, LayerChoices& output) {
    if (options_.kept_experts != nullptr) {
      const auto kept =
          options_.kept_experts->find(static_cast<std::uint32_t>(report_.layers.back().layer));
      if (kept != options_.kept_experts->end()) output.renumber(kept->second);
    }
    report_.layers.back().router_overlap = source.router_overlap(output);
    report_.layers.back().indexer_overlap = source.indexer_overlap(output);
  }

  std::vector<TokenDivergence> logits(const Matrix& source_normed,
                                      MatrixView<const float> output_normed,
                                      std::span<const PromptSpan> spans) {
    const auto of = [](LayerStream& stream, std::string_view side, MatrixView<const float> normed) {
      return [&stream, side, normed](std::size_t first, std::size_t count) {
        return on_side(side, [&] { return stream.head(copy_rows(normed, first, count)); });
      };
    };
    return compare_heads(of(source_, "source", source_normed.view()),
                         of(output_, "output", output_normed), spans, memory_.head_rows,
                         options_.threads);
  }

  // Entry i of a prompt is made of its normed state i and its token i + 1.
  void mtp_layer() {
    const std::vector<PromptSpan> next = next_token_spans(spans_);
    if (next.empty()) return;
    Matrix states = states_before(states_.view(), spans_, next);
    Matrix both(2 * states.rows(), states.cols());
    set_isolated(both, states.values());
    set_accumulated(both, states_before(half_of(both_, 1), spans_, next).values());
    states_ = both_ = Matrix();

    const std::vector<Row> rows = rows_of(next, 1), rows_twice = rows_of(next, 2);
    LayerChoices source_choices(rows.size(), rows.size());
    LayerChoices output_choices(rows.size(), rows_twice.size());
    states = on_side("source", [&] { return source_.mtp(states, rows, source_choices.taps()); });
    both = on_side("output", [&] {
      return output_.mtp(both, rows_twice,
                         output_taps(source_.spec().n_main, output_choices, rows.size()));
    });
    add_agreement(source_.spec().n_main, states, both, next);
    add_overlaps(source_choices, output_choices);
    report_.tokens_of_mtp = logits(states, half_of(both, 1), next);
    report_.mtp_logits = logit_agreement(report_.tokens_of_mtp);
  }

  const RunOptions& options_;
  std::vector<PromptSpan> spans_;
  std::vector<Row> rows_, rows_twice_;
  LockstepMemory memory_;
  LayerStream source_, output_;
  std::optional<CacheScaleCheck> caches_;  // not over ranks, each of which has a share of the heads
  Matrix states_;                          // the source's
  Matrix both_;                            // the output's, isolated and accumulated
  LayersReport report_;
};

}  // namespace

std::string layer_title(const LayerAgreement& layer) {
  return fmt::format("{}layer {}", layer.is_mtp ? "MTP " : "", layer.layer);
}

LayersReport compare_layers(const Checkpoint& source, const Checkpoint& output,
                            std::span<const Prompt> prompts, const RunOptions& options) {
  const ModelSpec spec = inference::model_spec(source.family(), source.config());
  require_same_shape(spec, inference::model_spec(output));
  if (options.ranks != nullptr) {
    std::vector<std::int32_t> lengths;
    for (const std::size_t length : lengths_of(spans_of(prompts, spec)))
      lengths.push_back(static_cast<std::int32_t>(length));
    broadcast(*options.ranks, kLengths, 0, inference::Lists{lengths});
  }
  return Lockstep(source, output, spec, prompts, options).run();
}

void follow_layers(const Checkpoint& rank, const RunOptions& options) {
  const inference::Lists announced = broadcast(*options.ranks, kLengths, 0, inference::Lists());
  const std::vector<std::size_t> lengths(announced.front().begin(), announced.front().end());
  const LockstepModel side = {
      .model = rank, .profile = options.output_profile, .copies = kCopiesOfOutput};
  LayerStream stream(rank, {.profile = options.output_profile,
                            .threads = options.threads,
                            .weight_limit = inference::weight_limit(
                                need_of(side, lengths, options.threads), options.mem_limit),
                            .rank = inference::rank_view(rank),
                            .comm = options.ranks});
  stream.follow();
}

}  // namespace ingot::verify
