#include "verify/layers/reference.h"

#include <algorithm>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "formats/base/error.h"
#include "inference/family/model_family.h"
#include "inference/generate/generate.h"
#include "inference/generate/memory_plan.h"
#include "inference/generate/sampling.h"
#include "inference/model/layer_stream.h"
#include "verify/layers/lockstep_memory.h"
#include "verify/layers/recorded_activations.h"
#include "verify/layers/similarity.h"
#include "verify/outputs/batch_decoder.h"
#include "verify/outputs/divergence.h"

namespace ingot::verify {

using formats::Checkpoint;
using formats::MatrixView;
using formats::StoredTensor;
using inference::LayerStream;
using inference::Matrix;
using inference::ModelSpec;
using inference::RunMemory;

namespace {

std::vector<Prompt> prompts_of(const RecordedActivations& recorded) {
  std::vector<Prompt> prompts;
  for (const RecordedPrompt& prompt : recorded.prompts()) prompts.push_back({.ids = prompt.ids});
  return prompts;
}

void check_stop(const ReferenceOptions& options) {
  if (options.stop_requested && options.stop_requested()) {
    throw Error(ErrorCode::kInterrupted, "stopped while a reference was compared");
  }
}

// As in compare_layers two sets of sequences pass at once, the isolated one first.
class LayersBeside {
 public:
  LayersBeside(const Checkpoint& model, const ModelSpec& spec, const RecordedActivations& recorded,
               const ReferenceOptions& options)
      : recorded_(recorded),
        options_(options),
        prompts_(prompts_of(recorded)),
        spans_(spans_of(prompts_, spec)),
        rows_(rows_of(spans_, 2)),
        stream_(model, {.profile = options.profile,
                        .threads = options.threads,
                        .weight_limit =
                            inference::weight_limit(need_of(model, spec), options.mem_limit)}) {
    report_.source_profile = "recorded";
    report_.output_profile = inference::profile_name(options.profile);
    report_.prompts = prompts_.size();
    report_.tokens = n_rows();
  }

  LayersReport run() {
    const std::vector<inference::Row> once = rows_of(spans_, 1);
    const Matrix embedded = stream_.embed(once);
    Matrix both(2 * n_rows(), embedded.cols());
    for (const auto half : {both.values().first(embedded.values().size()),
                            both.values().last(embedded.values().size())}) {
      std::ranges::copy(embedded.values(), half.begin());
    }
    const std::size_t n_layers = stream_.spec().layers;
    for (std::size_t l = 0; l < n_layers; ++l) {
      check_stop(options_);
      isolate(l, both);
      stream_.layer(l, both, rows_);
      compare(l, both);
      if (options_.progress) options_.progress(l + 1, n_layers);
    }
    report_.logits = logits(half_of(both, 1));
    return std::move(report_);
  }

 private:
  [[nodiscard]] std::size_t n_rows() const { return row_count(spans_); }

  [[nodiscard]] RunMemory need_of(const Checkpoint& model, const ModelSpec& spec) const {
    std::vector<std::size_t> lengths = lengths_of(spans_);
    lengths.insert(lengths.end(), lengths.begin(), lengths.end());
    RunMemory need = inference::stream_memory(model, options_.profile, lengths, options_.threads);
    // Both sets, what was recorded after a layer, and logits of both sides.
    need.scratch += (4 * n_rows() * spec.hidden + 2 * kHeadRows * spec.vocab) * sizeof(float);
    return need;
  }

  // The recorded states before layer l; where there is none, the model's own.
  void isolate(std::size_t l, Matrix& both) const {
    const auto own = both.values().last(both.values().size() / 2);
    std::ranges::copy(own, both.values().begin());
    for (const PromptSpan& span : spans_) {
      const auto& hidden = recorded_.prompts()[span.prompt].hidden;
      const auto found = hidden.find(l);
      if (found == hidden.end()) continue;
      const Matrix states = recorded_.rows(found->second, 0, span.ids.size());
      std::ranges::copy(states.values(), both.row(span.first).begin());
    }
  }

  void compare(std::size_t l, const Matrix& both) {
    Matrix wanted(n_rows(), both.cols());
    std::vector<PromptSpan> compared;
    for (const PromptSpan& span : spans_) {
      const auto& hidden = recorded_.prompts()[span.prompt].hidden;
      const auto found = hidden.find(l + 1);
      if (found == hidden.end()) continue;
      const Matrix states = recorded_.rows(found->second, 0, span.ids.size());
      std::ranges::copy(states.values(), wanted.row(span.first).begin());
      compared.push_back(span);
    }
    if (compared.empty()) return;
    report_.layers.push_back(
        {.layer = l,
         .isolated = similarity(wanted.view(), half_of(both, 0), compared, options_.threads),
         .accumulated = similarity(wanted.view(), half_of(both, 1), compared, options_.threads)});
  }

  LogitAgreement logits(MatrixView<const float> hidden) {
    std::vector<TokenDivergence> tokens;
    for (const PromptSpan& span : spans_) {
      const RecordedPrompt& prompt = recorded_.prompts()[span.prompt];
      if (!prompt.logits && !prompt.logits_last) continue;
      // The last token alone, or all.
      const std::size_t skipped = prompt.logits ? 0 : span.ids.size() - 1;
      const StoredTensor& tensor = prompt.logits ? *prompt.logits : *prompt.logits_last;
      const PromptSpan own{.prompt = span.prompt, .first = 0, .ids = span.ids.subspan(skipped)};
      const auto recorded = [&](std::size_t first, std::size_t count) {
        return recorded_.rows(tensor, first, count);
      };
      const auto is = [&](std::size_t first, std::size_t count) {
        return stream_.head(
            stream_.final_norm(copy_rows(hidden, span.first + skipped + first, count)));
      };
      for (TokenDivergence token :
           compare_heads(recorded, is, {&own, 1}, kHeadRows, options_.threads)) {
        token.token += skipped;
        tokens.push_back(token);
      }
    }
    return logit_agreement(tokens);
  }

  static constexpr std::size_t kHeadRows = 256;

  const RecordedActivations& recorded_;
  const ReferenceOptions& options_;
  std::vector<Prompt> prompts_;
  std::vector<PromptSpan> spans_;
  std::vector<inference::Row> rows_;
  LayerStream stream_;
  LayersReport report_;
};

// Logits that the first token of an answer was chosen from, where they were recorded.
std::optional<Matrix> first_logits(const RecordedActivations& recorded,
                                   const RecordedPrompt& prompt) {
  if (prompt.logits_last) return recorded.rows(*prompt.logits_last, 0, 1);
  if (prompt.logits) return recorded.rows(*prompt.logits, prompt.ids.size() - 1, 1);
  return std::nullopt;
}

// The model answers as many tokens as were recorded.
class AnswersBeside {
 public:
  AnswersBeside(const RecordedActivations& recorded, const ReferenceOptions& options)
      : recorded_(recorded), options_(options) {
    for (const RecordedPrompt& prompt : recorded.prompts()) {
      if (prompt.greedy.empty()) continue;
      asked_.push_back(&prompt);
      ids_.push_back(prompt.ids);
    }
  }

  [[nodiscard]] bool empty() const { return asked_.empty(); }

  GreedyReport run(const Checkpoint& model, const ModelSpec& spec) {
    std::size_t longest = 0;
    for (const RecordedPrompt* prompt : asked_) longest = std::max(longest, prompt->greedy.size());
    most_ = inference::final_lengths(spec, ids_, longest);
    for (std::size_t p = 0; p < asked_.size(); ++p) {
      most_[p] = std::min(most_[p], ids_[p].size() + asked_[p]->greedy.size());
      report_.prompts.push_back({.prompt = {.ids = asked_[p]->ids}, .source = asked_[p]->greedy});
    }
    const RunMemory need = inference::run_memory(
        model, options_.profile, cache_format(options_.profile), most_, options_.threads);
    BatchDecoder decoder(model,
                         {.profile = options_.profile,
                          .threads = options_.threads,
                          .weight_limit = inference::weight_limit(need, options_.mem_limit),
                          .without_mtp = true},
                         ids_, most_);
    Matrix logits = decoder.begin();
    first_differences(logits);
    for (std::vector<std::size_t> rows = all(); !rows.empty();) {
      check_stop(options_);
      const auto continuations = take(rows, logits);
      rows.clear();
      for (const auto& continuation : continuations) rows.push_back(continuation.prompt);
      if (!rows.empty()) logits = decoder.step(continuations);
    }
    finish_greedy(report_, nullptr);
    return std::move(report_);
  }

 private:
  [[nodiscard]] std::vector<std::size_t> all() const {
    std::vector<std::size_t> prompts(asked_.size());
    for (std::size_t p = 0; p < prompts.size(); ++p) prompts[p] = p;
    return prompts;
  }

  void first_differences(const Matrix& logits) {
    for (std::size_t p = 0; p < asked_.size(); ++p) {
      const auto recorded = first_logits(recorded_, *asked_[p]);
      if (!recorded || inference::greedy_token(logits.row(p)) != asked_[p]->greedy[0]) continue;
      const double difference = largest_difference(recorded->row(0), logits.row(p));
      largest_ = std::max(largest_.value_or(0.0), difference);
    }
  }

  // The next token of every prompt; row i of the logits is of rows[i]. Those that go on.
  std::vector<BatchDecoder::Continuation> take(std::span<const std::size_t> rows,
                                               const Matrix& logits) {
    std::vector<BatchDecoder::Continuation> continuations;
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const std::size_t p = rows[i];
      GreedyPrompt& prompt = report_.prompts[p];
      const std::size_t n = prompt.output.size();
      const std::int32_t token = inference::greedy_token(logits.row(i));
      prompt.output.push_back(token);
      if (token != prompt.source[n] && !prompt.first_difference) part(p, n, logits.row(i));
      if (ids_[p].size() + n + 1 < most_[p]) {
        continuations.push_back({.prompt = p, .token = token});
      }
    }
    return continuations;
  }

  void part(std::size_t p, std::size_t n, std::span<const float> logits) {
    GreedyPrompt& prompt = report_.prompts[p];
    prompt.first_difference = n;
    const auto recorded = n == 0 ? first_logits(recorded_, *asked_[p]) : std::nullopt;
    prompt.gap = recorded ? top_gap(recorded->row(0)) : top_gap(logits);
    prompt.limit = n > 0 && largest_ ? std::min(options_.gap, 2 * *largest_) : options_.gap;
    prompt.outcome =
        prompt.gap > prompt.limit ? GreedyOutcome::kDifferent : GreedyOutcome::kInconclusive;
  }

  const RecordedActivations& recorded_;
  const ReferenceOptions& options_;
  std::vector<const RecordedPrompt*> asked_;
  std::vector<std::vector<std::int32_t>> ids_;
  std::vector<std::size_t> most_;
  std::optional<double> largest_;  // difference of logits for the first token
  GreedyReport report_;
};

}  // namespace

ReferenceReport compare_reference(const Checkpoint& model, const std::filesystem::path& recorded,
                                  const ReferenceOptions& options) {
  const ModelSpec spec = inference::model_spec(model.family(), model.config());
  const RecordedActivations activations(recorded, spec);
  ReferenceReport report{.recorded_by = activations.recorded_by()};
  report.layers = LayersBeside(model, spec, activations, options).run();
  AnswersBeside answers(activations, options);
  if (!answers.empty()) report.greedy = answers.run(model, spec);
  return report;
}

}  // namespace ingot::verify
