#include "verify/outputs/draft_check.h"

#include <algorithm>

#include "formats/base/checked.h"
#include "formats/base/error.h"
#include "formats/base/parallel.h"
#include "formats/base/stop_scope.h"
#include "inference/family/model_family.h"
#include "inference/generate/generate.h"
#include "inference/generate/memory_plan.h"
#include "inference/generate/sampling.h"
#include "inference/model/layer_stream.h"
#include "inference/model/model.h"
#include "inference/parallel/comm.h"
#include "inference/parallel/rank_view.h"
#include "verify/outputs/likelihood.h"
#include "verify/outputs/prompt_rows.h"

namespace ingot::verify {

using formats::Checkpoint;
using inference::LayerStream;
using inference::Matrix;

namespace {

// The likeliest token of some rows of normed states.
std::vector<std::int32_t> likeliest(LayerStream& stream, const Matrix& normed,
                                    std::span<const std::size_t> rows, std::size_t threads) {
  std::vector<std::int32_t> tokens(rows.size());
  for (std::size_t first = 0; first < rows.size(); first += kHeadRows) {
    const std::size_t count = std::min(kHeadRows, rows.size() - first);
    Matrix some(count, normed.cols());
    for (std::size_t i = 0; i < count; ++i)
      std::ranges::copy(normed.row(rows[first + i]), some.row(i).begin());
    const Matrix logits = stream.head(some);
    parallel_for(count, threads, [&](std::size_t i) {
      tokens[first + i] = inference::greedy_token(logits.row(i));
    });
  }
  return tokens;
}

double part(std::uint64_t n, std::uint64_t all) {
  return all == 0 ? 0.0 : static_cast<double>(n) / static_cast<double>(all);
}

}  // namespace

bool has_mtp_layer(const Checkpoint& model) {
  return LayerStream(model, {}).has_mtp();
}

std::vector<DraftText> answered_text(const Checkpoint& source, std::span<const Prompt> prompts,
                                     const RunOptions& options) {
  const inference::ModelSpec spec = inference::model_spec(source.family(), source.config());
  std::vector<std::vector<std::int32_t>> ids;
  for (const Prompt& prompt : prompts) ids.push_back(prompt.ids);
  if (ids.empty()) throw Error(ErrorCode::kInvalidArgument, "there is no prompt");
  constexpr std::size_t kDrafts = 1;  // drafts make answers faster, and change none
  const inference::Profile profile = options.source_profile;
  inference::GenerateOptions generation;
  generation.sampling.temperature = 0;
  generation.max_new_tokens = ceil_div(kDraftTokens, ids.size());
  generation.kv_format = inference::plain_kv_format(profile);
  generation.drafts = kDrafts;
  std::uint64_t n_tokens = 0;
  generation.on_token = [&](std::size_t /*prompt*/, std::int32_t /*token*/) {
    ++n_tokens;
    if (options.progress) options.progress(n_tokens, generation.max_new_tokens * ids.size());
  };
  const std::vector<std::size_t> most =
      inference::final_lengths(spec, ids, generation.max_new_tokens);
  const inference::MemoryShare memory = inference::share_memory(
      inference::run_memory(source, profile, generation.kv_format, most, options.threads, kDrafts),
      most, generation.batch_tokens, options.mem_limit);
  generation.cache_tokens = memory.cache_tokens;
  inference::OneRank alone;
  const inference::Model model(
      source, inference::rank_view(source), alone,
      {.profile = profile, .threads = options.threads, .weight_limit = memory.weights});
  const inference::GenerateResult result = inference::generate(model, ids, generation);
  StopScope::check();  // it may have ended the answers
  std::vector<DraftText> texts;
  for (std::size_t p = 0; p < ids.size(); ++p) {
    const inference::Answer& answer = result.answers[p];
    DraftText& text = texts.emplace_back();
    text.first = answer.prompt.size();
    text.text.ids = answer.prompt;
    text.text.ids.insert(text.text.ids.end(), answer.tokens.begin(), answer.tokens.end());
  }
  return texts;
}

std::vector<DraftText> whole_text(std::span<const Prompt> documents) {
  std::vector<DraftText> texts;
  for (const Prompt& document : documents) texts.push_back({.text = document});
  return texts;
}

DraftOutcomes measure_drafts(const Checkpoint& model, std::span<const DraftText> texts,
                             const RunOptions& options) {
  std::vector<Prompt> documents;
  for (const DraftText& text : texts) documents.push_back(text.text);
  DraftOutcomes outcomes;
  const auto take = [&](std::deque<PassedModel>& models, std::span<const PromptSpan> spans) {
    LayerStream& stream = models.front().stream;
    const Matrix normed = stream.final_norm(models.front().hidden);
    const std::vector<PromptSpan> next = next_token_spans(spans);
    const Matrix drafting = stream.mtp(states_before(normed.view(), spans, next), rows_of(next, 1));
    // Token i + 1 goes with entry i and state i, which draft token i + 2; state i + 1 chooses it.
    std::vector<std::size_t> entries, states;
    for (const PromptSpan& span : next) {
      const DraftText& text = texts[outcomes.size() + span.prompt];
      for (std::size_t token = text.first; token <= span.ids.size(); ++token) {
        entries.push_back(span.first + token - 1);
        states.push_back(spans[span.prompt].first + token);
      }
    }
    const std::vector<std::int32_t> drafts = likeliest(stream, drafting, entries, options.threads);
    const std::vector<std::int32_t> own = likeliest(stream, normed, states, options.threads);
    std::size_t at = 0;
    for (const PromptSpan& span : spans) {
      std::vector<bool>& held = outcomes.emplace_back();
      for (std::size_t token = texts[outcomes.size() - 1].first; token < span.ids.size();
           ++token, ++at)
        held.push_back(drafts[at] == own[at]);
    }
    INGOT_CHECK(at == drafts.size());
  };
  constexpr std::size_t kStates = 3;  // normed, and the input and output of the MTP layer
  const PassingModel passing = {.model = model, .profile = options.output_profile};
  pass_documents({&passing, 1}, documents, options, kStates, take);
  return outcomes;
}

double DraftReport::source_acceptance() const {
  return part(source_accepted, tokens);
}

double DraftReport::output_acceptance() const {
  return part(output_accepted, tokens);
}

double DraftReport::loss() const {
  return 100 * (source_acceptance() - output_acceptance());
}

DraftReport compare_drafts(const DraftOutcomes& source, const DraftOutcomes& output) {
  INGOT_CHECK(source.size() == output.size());
  DraftReport report;
  std::vector<ClusterSum> runs;
  for (std::size_t t = 0; t < source.size(); ++t) {
    INGOT_CHECK(source[t].size() == output[t].size());
    for (std::size_t i = 0; i < source[t].size(); ++i) {
      if (i % kDraftRun == 0) runs.emplace_back();
      const int of_source = source[t][i] ? 1 : 0, of_output = output[t][i] ? 1 : 0;
      ++report.tokens;
      report.source_accepted += static_cast<std::uint64_t>(of_source);
      report.output_accepted += static_cast<std::uint64_t>(of_output);
      ++runs.back().count;
      runs.back().sum += 100 * (of_source - of_output);
    }
  }
  report.interval = mean_interval(runs);
  return report;
}

}  // namespace ingot::verify
