#include "verify/layers/similarity.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <vector>

#include "formats/base/error.h"
#include "formats/base/parallel.h"

namespace ingot::verify {

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

// Both ascending.
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

}  // namespace ingot::verify
