// Both models pass through the same prompts, layer by layer. The source runs one set of sequences:
// what it makes of its own states. The output runs two at once, so that its weights are read once:
// one that is given the source's states before every layer (isolated), and one that continues its
// own (accumulated). Rows of a step do not see other sequences, so each set computes what it would
// alone.

#include "verify/layers/layer_check.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "formats/base/error.h"
#include "inference/family/model_family.h"
#include "inference/model/layer_stream.h"
#include "verify/layers/layer_choices.h"
#include "verify/layers/lockstep_memory.h"
#include "verify/layers/similarity.h"
#include "verify/outputs/divergence.h"
#include "verify/outputs/prompt_rows.h"

namespace ingot::verify {

using formats::Checkpoint;
using formats::MatrixView;
using inference::LayerStream;
using inference::Matrix;
using inference::ModelSpec;
using inference::Row;

namespace {

// Says whose values are not finite, or cannot be read.
template <typename Body>
auto on_side(std::string_view side, Body&& body) {
  try {
    return body();
  } catch (Error& error) {
    throw Error(error.code(), fmt::format("the {}: {}", side, error.message()))
        .in_file(error.file())
        .in_tensor(error.tensor());
  }
}

void require_same_shape(const ModelSpec& source, const ModelSpec& output) {
  const auto require = [](std::string_view what, std::size_t a, std::size_t b) {
    if (a == b) return;
    throw Error(ErrorCode::kMismatch,
                fmt::format("the source has {} {}, the output {}: they are not the same model", a,
                            what, b));
  };
  require("layers", source.layers, output.layers);
  require("values per hidden state", source.hidden, output.hidden);
  require("words in its vocabulary", source.vocab, output.vocab);
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
           std::span<const Prompt> prompts, const LayersOptions& options)
      : options_(options),
        spans_(spans_of(prompts, spec)),
        rows_(rows_of(spans_, 1)),
        rows_twice_(rows_of(spans_, 2)),
        memory_(share_memory({.model = source, .profile = options.source_profile},
                             {.model = output, .profile = options.output_profile, .copies = 2},
                             spec, lengths_of(spans_), options.threads, options.mem_limit)),
        source_(source, {.profile = options.source_profile,
                         .threads = options.threads,
                         .weight_limit = memory_.source_weights}),
        output_(output, {.profile = options.output_profile,
                         .threads = options.threads,
                         .weight_limit = memory_.output_weights}),
        states_(rows_.size(), spec.hidden),
        both_(2 * rows_.size(), spec.hidden) {
    report_.source_profile = inference::profile_name(options.source_profile);
    report_.output_profile = inference::profile_name(options.output_profile);
    report_.prompts = prompts.size();
    report_.tokens = rows_.size();
  }

  LayersReport run() {
    const std::size_t n_layers = source_.spec().layers;
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
    report_.logits = logits(states_, half_of(both_, 1), spans_);
    if (with_mtp) {
      mtp_layer();
      passed(n_layers + 1);
    }
    return std::move(report_);
  }

 private:
  void check_stop() const {
    if (options_.stop_requested && options_.stop_requested()) {
      throw Error(ErrorCode::kInterrupted, "stopped while layers were compared");
    }
  }

  void main_layer(std::size_t l) {
    check_stop();
    set_isolated(both_, states_.values());
    LayerChoices source_choices(rows_.size(), rows_.size());
    LayerChoices output_choices(rows_.size(), rows_twice_.size());
    on_side("source", [&] { source_.layer(l, states_, rows_, source_choices.taps()); });
    on_side("output", [&] { output_.layer(l, both_, rows_twice_, output_choices.taps()); });
    add_agreement(l, states_, both_, spans_);
    report_.layers.back().router_overlap = source_choices.router_overlap(output_choices);
    report_.layers.back().indexer_overlap = source_choices.indexer_overlap(output_choices);
  }

  void add_agreement(std::size_t l, const Matrix& states, const Matrix& both,
                     std::span<const PromptSpan> spans) {
    const auto compare = [&](MatrixView<const float> half) {
      try {
        return similarity(states.view(), half, spans, options_.threads);
      } catch (Error& error) {
        throw Error(error.code(), fmt::format("layer {}: {}", l, error.message()));
      }
    };
    report_.layers.push_back({.layer = l,
                              .is_mtp = l == source_.spec().layers,
                              .isolated = compare(half_of(both, 0)),
                              .accumulated = compare(half_of(both, 1))});
  }

  LogitAgreement logits(const Matrix& source_normed, MatrixView<const float> output_normed,
                        std::span<const PromptSpan> spans) {
    const auto of = [](LayerStream& stream, std::string_view side, MatrixView<const float> normed) {
      return [&stream, side, normed](std::size_t first, std::size_t count) {
        return on_side(side, [&] { return stream.head(copy_rows(normed, first, count)); });
      };
    };
    check_stop();
    return logit_agreement(compare_heads(of(source_, "source", source_normed.view()),
                                         of(output_, "output", output_normed), spans,
                                         memory_.head_rows, options_.threads));
  }

  // Entry i of a prompt is made of its normed state i and its token i + 1.
  void mtp_layer() {
    check_stop();
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
    both = on_side("output", [&] { return output_.mtp(both, rows_twice, output_choices.taps()); });
    add_agreement(source_.spec().layers, states, both, next);
    report_.layers.back().router_overlap = source_choices.router_overlap(output_choices);
    report_.layers.back().indexer_overlap = source_choices.indexer_overlap(output_choices);
    report_.mtp_logits = logits(states, half_of(both, 1), next);
  }

  const LayersOptions& options_;
  std::vector<PromptSpan> spans_;
  std::vector<Row> rows_, rows_twice_;
  LockstepMemory memory_;
  LayerStream source_, output_;
  Matrix states_;  // the source's
  Matrix both_;    // the output's, isolated and accumulated
  LayersReport report_;
};

}  // namespace

LayersReport compare_layers(const Checkpoint& source, const Checkpoint& output,
                            std::span<const Prompt> prompts, const LayersOptions& options) {
  const ModelSpec spec = inference::model_spec(source.family(), source.config());
  require_same_shape(spec, inference::model_spec(output.family(), output.config()));
  return Lockstep(source, output, spec, prompts, options).run();
}

}  // namespace ingot::verify
