#include "verify/layers/head_pass.h"

#include <algorithm>

#include "formats/base/parallel.h"

namespace ingot::verify {

using inference::Matrix;

Matrix copy_rows(formats::MatrixView<const float> from, std::size_t first, std::size_t count) {
  Matrix rows(count, from.cols);
  for (std::size_t r = 0; r < count; ++r) {
    std::copy_n(from.row(first + r), from.cols, rows.row(r).begin());
  }
  return rows;
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

}  // namespace ingot::verify
