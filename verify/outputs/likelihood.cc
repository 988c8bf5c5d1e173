#include "verify/outputs/likelihood.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <numeric>
#include <vector>

#include "formats/base/error.h"
#include "formats/base/parallel.h"
#include "inference/family/model_family.h"
#include "inference/generate/memory_plan.h"
#include "inference/model/layer_stream.h"
#include "verify/outputs/divergence.h"
#include "verify/outputs/prompt_rows.h"

namespace ingot::verify {

using inference::LayerStream;
using inference::LayerStreamOptions;
using inference::Matrix;
using inference::RunMemory;

namespace {

// Documents that pass through the model together, and the weights that there is room for then.
struct Batch {
  std::size_t first = 0, count = 0;
  std::uint64_t weight_limit = 0;
};

// Divides documents into batches of as many as fit into memory, at least one each. One model works
// at a time, but for the heads, of which all are in memory at the end.
std::vector<Batch> divide(std::span<const PassingModel> models, const inference::ModelSpec& spec,
                          std::span<const std::size_t> lengths, const RunOptions& options,
                          std::size_t states) {
  const auto need_of = [&](std::span<const std::size_t> some) {
    RunMemory need;
    for (const PassingModel& side : models) {
      const RunMemory of =
          inference::stream_memory(side.model, side.profile, some, options.threads);
      need.resident += of.resident;
      need.experts = std::max(need.experts, of.experts);
      need.two_experts = std::max(need.two_experts, of.two_experts);
      need.cache = std::max(need.cache, of.cache);
      need.scratch += of.scratch;
    }
    const auto rows = std::accumulate(some.begin(), some.end(), std::uint64_t{0});
    need.scratch +=
        models.size() *
        (rows * (spec.stream_width() + states * spec.hidden + 1) + kHeadRows * spec.vocab) *
        sizeof(float);
    return need;
  };
  // The figure of a refusal is enough for every document.
  const std::size_t longest = *std::max_element(lengths.begin(), lengths.end());
  inference::weight_limit(need_of({&longest, 1}), options.mem_limit);
  std::vector<Batch> batches;
  for (std::size_t first = 0; first < lengths.size(); first += batches.back().count) {
    const auto rest = lengths.subspan(first);
    std::size_t fits = 1, beyond = rest.size() + 1;
    while (beyond - fits > 1) {
      const std::size_t middle = fits + (beyond - fits) / 2;
      (need_of(rest.first(middle)).least() <= options.mem_limit ? fits : beyond) = middle;
    }
    batches.push_back(
        {.first = first,
         .count = fits,
         .weight_limit = inference::weight_limit(need_of(rest.first(fits)), options.mem_limit)});
  }
  return batches;
}

}  // namespace

void pass_documents(std::span<const PassingModel> models, std::span<const Prompt> documents,
                    const RunOptions& options, std::size_t states, const TakeHidden& take) {
  const formats::Checkpoint& first = models.front().model;
  const inference::ModelSpec spec = inference::model_spec(first.family(), first.config());
  const std::vector<PromptSpan> all = spans_of(documents, spec);
  const std::vector<Batch> batches = divide(models, spec, lengths_of(all), options, states);
  std::uint64_t done = 0;
  for (const Batch& batch : batches) {
    const std::vector<PromptSpan> spans =
        spans_of(documents.subspan(batch.first, batch.count), spec);
    const std::vector<inference::Row> rows = rows_of(spans, 1);
    std::deque<PassedModel> passed;
    for (const PassingModel& side : models) {
      PassedModel& model =
          passed.emplace_back(side.model, LayerStreamOptions{.profile = side.profile,
                                                             .threads = options.threads,
                                                             .weight_limit = batch.weight_limit});
      model.hidden = model.stream.embed(rows);
      for (std::size_t l = 0; l < spec.n_main; ++l) {
        model.stream.layer(l, model.hidden, rows);
        if (options.progress)
          options.progress(++done, batches.size() * models.size() * spec.n_main);
      }
    }
    take(passed, spans);
  }
}

namespace {

// The next token of every row; -1 after the last.
std::vector<std::int32_t> next_tokens(std::span<const PromptSpan> spans) {
  std::vector<std::int32_t> next;
  for (const PromptSpan& span : spans) {
    next.insert(next.end(), span.ids.begin() + 1, span.ids.end());
    next.push_back(-1);
  }
  return next;
}

// The likelihood of every row of hidden states, which the last layer made.
std::vector<double> nll_of_rows(LayerStream& stream, const Matrix& hidden,
                                std::span<const std::int32_t> next, std::size_t threads) {
  std::vector<double> nll(hidden.rows(), 0.0);
  for (std::size_t first = 0; first < hidden.rows(); first += kHeadRows) {
    const std::size_t count = std::min(kHeadRows, hidden.rows() - first);
    const Matrix logits = stream.head(stream.final_norm(copy_rows(hidden.view(), first, count)));
    parallel_for(count, threads, [&](std::size_t i) {
      if (next[first + i] < 0) return;
      nll[first + i] = negative_log_likelihood(logits.row(i), next[first + i]);
    });
  }
  return nll;
}

void add_sequence(const SequenceLikelihood& sequence, Likelihood& sum) {
  ++sum.documents;
  sum.tokens += sequence.tokens;
  sum.nll += sequence.nll;
  sum.sequences.push_back(sequence);
}

// The mean of the sequences' sums, each `value(index)`, and its interval over the documents.
template <typename Value>
TextFigure figure_of(std::span<const SequenceLikelihood> sequences, const Value& value) {
  std::map<std::size_t, ClusterSum> documents;
  ClusterSum all;
  for (std::size_t i = 0; i < sequences.size(); ++i) {
    ClusterSum& document = documents[sequences[i].document];
    document.sum += value(i);
    document.count += sequences[i].tokens;
    all.sum += value(i);
    all.count += sequences[i].tokens;
  }
  std::vector<ClusterSum> clusters;
  for (const auto& [unused, document] : documents) clusters.push_back(document);
  return {.mean = all.sum / static_cast<double>(all.count),
          .interval = bootstrap_interval(clusters)};
}

}  // namespace

double Likelihood::perplexity() const {
  return tokens == 0 ? std::numeric_limits<double>::quiet_NaN()
                     : std::exp(nll / static_cast<double>(tokens));
}

Likelihood measure_likelihood(const formats::Checkpoint& model, std::span<const Prompt> documents,
                              const RunOptions& options) {
  Likelihood sum;
  const auto add = [&](std::deque<PassedModel>& models, std::span<const PromptSpan> spans) {
    const std::vector<double> nll = nll_of_rows(models.front().stream, models.front().hidden,
                                                next_tokens(spans), options.threads);
    for (const PromptSpan& span : spans) {
      SequenceLikelihood of = {.document = documents[sum.documents].document};
      of.tokens = span.ids.size() - 1;
      for (std::size_t row = span.first; row < span.end(); ++row) of.nll += nll[row];
      add_sequence(of, sum);
    }
  };
  const PassingModel passing = {.model = model, .profile = options.output_profile};
  pass_documents({&passing, 1}, documents, options, 0, add);
  return sum;
}

TextReport compare_text(const formats::Checkpoint& source, const formats::Checkpoint& output,
                        std::span<const Prompt> documents, const RunOptions& options) {
  require_same_shape(inference::model_spec(source.family(), source.config()),
                     inference::model_spec(output));
  TextReport report;
  report.source.emplace();
  const auto logits_of = [](PassedModel& side) {
    return [&side](std::size_t first, std::size_t count) {
      return side.stream.head(side.stream.final_norm(copy_rows(side.hidden.view(), first, count)));
    };
  };
  const auto add = [&](std::deque<PassedModel>& models, std::span<const PromptSpan> spans) {
    const std::vector<TokenDivergence> tokens = compare_heads(
        logits_of(models.front()), logits_of(models.back()), spans, kHeadRows, options.threads);
    for (const PromptSpan& span : spans) {
      SequenceLikelihood of_source = {.tokens = span.ids.size() - 1,
                                      .document = documents[report.output.documents].document};
      SequenceLikelihood of_output = of_source;
      for (std::size_t row = span.first; row + 1 < span.end(); ++row) {
        of_source.nll += tokens[row].source_nll.value();
        of_output.nll += tokens[row].output_nll.value();
        of_output.kl += tokens[row].kl;
      }
      add_sequence(of_source, *report.source);
      add_sequence(of_output, report.output);
    }
  };
  const std::array models = {PassingModel{.model = source, .profile = options.source_profile},
                             PassingModel{.model = output, .profile = options.output_profile}};
  pass_documents(models, documents, options, 0, add);
  return report;
}

TextFigure nll_of(const Likelihood& model) {
  return figure_of(model.sequences, [&](std::size_t i) { return model.sequences[i].nll; });
}

TextFigure log_ratio_of(const TextReport& text) {
  const std::vector<SequenceLikelihood>& source = text.source.value().sequences;
  INGOT_CHECK(source.size() == text.output.sequences.size());
  return figure_of(text.output.sequences,
                   [&](std::size_t i) { return text.output.sequences[i].nll - source[i].nll; });
}

TextFigure kl_of(const TextReport& text) {
  return figure_of(text.output.sequences,
                   [&](std::size_t i) { return text.output.sequences[i].kl; });
}

}  // namespace ingot::verify
