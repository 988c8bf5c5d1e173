#include "verify/outputs/divergence.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "formats/base/error.h"
#include "formats/base/parallel.h"

namespace ingot::verify {

using inference::Matrix;
using inference::ModelSpec;

namespace {

constexpr std::size_t kTopIds = 5;

// ln of the sum of exponentials, which turns logits into logarithms of probabilities.
double log_sum(std::span<const float> logits) {
  double top = -std::numeric_limits<double>::infinity(), sum = 0;
  for (const float value : logits) top = std::max(top, double{value});
  for (const float value : logits) sum += std::exp(double{value} - top);
  return top + std::log(sum);
}

struct Largest {
  std::array<std::uint32_t, kTopIds> ids{};  // by logit, descending; of equals the lower id first
  std::size_t n = 0;
};

Largest largest_of(std::span<const float> logits) {
  Largest largest;
  for (std::uint32_t id = 0; id < logits.size(); ++id) {
    std::size_t at = largest.n;
    while (at > 0 && logits[id] > logits[largest.ids[at - 1]]) --at;
    if (at == kTopIds) continue;
    largest.n = std::min(largest.n + 1, kTopIds);
    for (std::size_t i = largest.n - 1; i > at; --i) largest.ids[i] = largest.ids[i - 1];
    largest.ids[at] = id;
  }
  return largest;
}

double overlap(const Largest& a, const Largest& b) {
  std::size_t shared = 0;
  for (std::size_t i = 0; i < a.n; ++i) {
    const auto end = b.ids.begin() + static_cast<std::ptrdiff_t>(b.n);
    if (std::find(b.ids.begin(), end, a.ids[i]) != end) ++shared;
  }
  return a.n == 0 ? 1.0 : static_cast<double>(shared) / static_cast<double>(a.n);
}

}  // namespace

void require_same_shape(const ModelSpec& source, const ModelSpec& output) {
  const auto require = [](std::string_view what, std::size_t a, std::size_t b) {
    if (a == b) return;
    throw Error(ErrorCode::kMismatch,
                "the source has {} {}, the output {}: they are not the same model", a, what, b);
  };
  require("layers", source.n_main, output.n_main);
  require("values per hidden state", source.hidden, output.hidden);
  require("values per token between layers", source.stream_width(), output.stream_width());
  require("words in its vocabulary", source.vocab, output.vocab);
}

double negative_log_likelihood(std::span<const float> logits, std::int32_t token) {
  return log_sum(logits) - double{logits[static_cast<std::size_t>(token)]};
}

double top_gap(std::span<const float> logits) {
  const Largest largest = largest_of(logits);
  return largest.n < 2 ? std::numeric_limits<double>::infinity()
                       : double{logits[largest.ids[0]]} - double{logits[largest.ids[1]]};
}

double largest_difference(std::span<const float> a, std::span<const float> b) {
  INGOT_CHECK(a.size() == b.size());
  double largest = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    largest = std::max(largest, std::abs(double{a[i]} - double{b[i]}));
  }
  return largest;
}

TokenDivergence compare_logits(std::span<const float> source, std::span<const float> output,
                               std::optional<std::int32_t> next) {
  INGOT_CHECK(source.size() == output.size() && !source.empty());
  const double source_sum = log_sum(source), output_sum = log_sum(output);
  TokenDivergence token{.max_error = largest_difference(source, output)};
  for (std::size_t i = 0; i < source.size(); ++i) {
    const double p = double{source[i]} - source_sum, q = double{output[i]} - output_sum;
    token.kl += std::exp(p) * (p - q);
  }
  token.kl = std::max(token.kl, 0.0);  // rounding may leave less
  const Largest best = largest_of(source), other = largest_of(output);
  token.same_top = best.ids[0] == other.ids[0];
  token.top5 = overlap(best, other);
  if (next) {
    const auto id = static_cast<std::size_t>(*next);
    token.source_nll = source_sum - double{source[id]};
    token.output_nll = output_sum - double{output[id]};
  }
  return token;
}

std::vector<TokenDivergence> compare_heads(const LogitsOf& source, const LogitsOf& output,
                                           std::span<const PromptSpan> spans, std::size_t head_rows,
                                           std::size_t threads) {
  const std::size_t n_rows = row_count(spans);
  std::vector<TokenDivergence> tokens(n_rows);
  std::vector<std::optional<std::int32_t>> next(n_rows);
  for (const PromptSpan& span : spans) {
    for (std::size_t i = 0; i < span.ids.size(); ++i) {
      tokens[span.first + i].prompt = span.prompt;
      tokens[span.first + i].token = i;
      if (i + 1 < span.ids.size()) next[span.first + i] = span.ids[i + 1];
    }
  }
  for (std::size_t first = 0; first < n_rows; first += head_rows) {
    const std::size_t count = std::min(head_rows, n_rows - first);
    const Matrix wanted = source(first, count), is = output(first, count);
    parallel_for(count, threads, [&](std::size_t i) {
      const TokenDivergence place = tokens[first + i];
      TokenDivergence& token = tokens[first + i];
      token = compare_logits(wanted.row(i), is.row(i), next[first + i]);
      token.prompt = place.prompt;
      token.token = place.token;
    });
  }
  return tokens;
}

LogitAgreement logit_agreement(std::span<const TokenDivergence> tokens) {
  LogitAgreement is{.tokens = tokens.size()};
  if (tokens.empty()) return is;
  double kl = 0, top5 = 0, source_nll = 0, output_nll = 0;
  std::size_t same = 0, predicted = 0;
  for (const TokenDivergence& token : tokens) {
    kl += token.kl;
    top5 += token.top5;
    same += token.same_top ? 1 : 0;
    is.max_error = std::max(is.max_error, token.max_error);
    if (token.kl > is.worst_kl || &token == tokens.data()) {
      is.worst_kl = token.kl;
      is.worst_prompt = token.prompt;
      is.worst_token = token.token;
    }
    if (!token.source_nll) continue;
    source_nll += *token.source_nll;
    output_nll += *token.output_nll;
    ++predicted;
  }
  const auto n = static_cast<double>(tokens.size());
  is.mean_kl = kl / n;
  is.top1 = static_cast<double>(same) / n;
  is.top5 = top5 / n;
  if (predicted > 0) {
    is.source_nll = source_nll / static_cast<double>(predicted);
    is.output_nll = output_nll / static_cast<double>(predicted);
  }
  return is;
}

}  // namespace ingot::verify
