#include "verify/outputs/likelihood.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "formats/base/parallel.h"
#include "inference/model/layer_stream.h"
#include "verify/outputs/divergence.h"
#include "verify/outputs/prompt_rows.h"
#include "verify/outputs/text_pass.h"

namespace ingot::verify {

using inference::LayerStream;
using inference::Matrix;

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
