#include "verify/outputs/likelihood.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <vector>

#include "formats/base/parallel.h"
#include "inference/family/model_family.h"
#include "inference/generate/memory_plan.h"
#include "inference/model/layer_stream.h"
#include "verify/outputs/divergence.h"
#include "verify/outputs/prompt_rows.h"

namespace ingot::verify {

using inference::LayerStream;
using inference::Matrix;
using inference::RunMemory;

namespace {

// Documents that pass through the model together, and the weights that there is room for then.
struct Batch {
  std::size_t first = 0, count = 0;
  std::uint64_t weight_limit = 0;
};

// Divides documents into batches of as many as fit into memory, at least one each.
std::vector<Batch> divide(const formats::Checkpoint& model, const inference::ModelSpec& spec,
                          std::span<const std::size_t> lengths, const RunOptions& options,
                          std::size_t states) {
  const auto need_of = [&](std::span<const std::size_t> some) {
    RunMemory need = inference::stream_memory(model, options.output_profile, some, options.threads);
    const auto rows = std::accumulate(some.begin(), some.end(), std::uint64_t{0});
    need.scratch +=
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

void pass_documents(const formats::Checkpoint& model, std::span<const Prompt> documents,
                    const RunOptions& options, std::size_t states, const TakeHidden& take) {
  const inference::ModelSpec spec = inference::model_spec(model.family(), model.config());
  const std::vector<PromptSpan> all = spans_of(documents, spec);
  const std::vector<Batch> batches = divide(model, spec, lengths_of(all), options, states);
  std::uint64_t done = 0;
  for (const Batch& batch : batches) {
    const std::vector<PromptSpan> spans =
        spans_of(documents.subspan(batch.first, batch.count), spec);
    const std::vector<inference::Row> rows = rows_of(spans, 1);
    LayerStream stream(model, {.profile = options.output_profile,
                               .threads = options.threads,
                               .weight_limit = batch.weight_limit});
    Matrix hidden = stream.embed(rows);
    for (std::size_t l = 0; l < spec.n_main; ++l) {
      stream.layer(l, hidden, rows);
      if (options.progress) options.progress(++done, batches.size() * spec.n_main);
    }
    take(stream, hidden, spans);
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

}  // namespace

double Likelihood::perplexity() const {
  return tokens == 0 ? std::numeric_limits<double>::quiet_NaN()
                     : std::exp(nll / static_cast<double>(tokens));
}

Likelihood measure_likelihood(const formats::Checkpoint& model, std::span<const Prompt> documents,
                              const RunOptions& options) {
  Likelihood sum{.documents = documents.size()};
  const auto add = [&](LayerStream& stream, const Matrix& hidden,
                       std::span<const PromptSpan> spans) {
    const std::vector<double> nll =
        nll_of_rows(stream, hidden, next_tokens(spans), options.threads);
    for (const double of_row : nll) sum.nll += of_row;
    for (const PromptSpan& span : spans) {
      SequenceLikelihood& of_sequence = sum.sequences.emplace_back();
      of_sequence.tokens = span.ids.size() - 1;
      for (std::size_t row = span.first; row < span.end(); ++row) of_sequence.nll += nll[row];
    }
    sum.tokens += nll.size() - spans.size();
  };
  pass_documents(model, documents, options, 0, add);
  return sum;
}

}  // namespace ingot::verify
