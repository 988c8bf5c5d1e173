#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "inference/base/matrix.h"
#include "verify/outputs/prompt_rows.h"

namespace ingot::verify {

/// Throws kMismatch when states and logits of the two models cannot be compared.
void require_same_shape(const inference::ModelSpec& source, const inference::ModelSpec& output);

/// -ln softmax(logits)[token], in double.
double negative_log_likelihood(std::span<const float> logits, std::int32_t token);

/// The largest logit less the second.
double top_gap(std::span<const float> logits);

/// The largest |a - b|.
double largest_difference(std::span<const float> a, std::span<const float> b);

/// How the logits of one token differ; sums in double over ascending ids.
struct TokenDivergence {
  std::size_t prompt = 0, token = 0;
  double kl = 0;         ///< KL(source || output), natural logarithm; not below 0
  bool same_top = true;  ///< largest logits have one id; the lower id counts among equal ones
  double top5 = 1;       ///< overlap of the five largest (of all, where there are fewer)
  double max_error = 0;
  /// The likelihood of the next token, where there is one.
  std::optional<double> source_nll, output_nll;
  friend bool operator==(const TokenDivergence&, const TokenDivergence&) = default;
};
TokenDivergence compare_logits(std::span<const float> source, std::span<const float> output,
                               std::optional<std::int32_t> next);

/// Where two sides of a comparison of logits come from: logits [count, vocab] of rows [first,
/// first + count).
using LogitsOf = std::function<inference::Matrix(std::size_t first, std::size_t count)>;

/// Compares the logits of the rows of `spans`, at most `head_rows` at a time.
std::vector<TokenDivergence> compare_heads(const LogitsOf& source, const LogitsOf& output,
                                           std::span<const PromptSpan> spans, std::size_t head_rows,
                                           std::size_t threads);

/// Logits of every position, accumulated mode.
struct LogitAgreement {
  std::size_t tokens = 0;            ///< compared; with none nothing below means anything
  double mean_kl = 0, worst_kl = 0;  ///< KL(source || output) per token, natural logarithm
  std::size_t worst_prompt = 0, worst_token = 0;
  double top1 = 1;  ///< part of tokens whose largest logit is the same
  double top5 = 1;  ///< mean overlap of the five largest
  double max_error = 0;
  /// Mean negative log-likelihood of the next token of the prompt on each side.
  double source_nll = 0, output_nll = 0;
  friend bool operator==(const LogitAgreement&, const LogitAgreement&) = default;
};

/// Over tokens in order; the defaults of an empty agreement when there is none.
LogitAgreement logit_agreement(std::span<const TokenDivergence> tokens);

}  // namespace ingot::verify
