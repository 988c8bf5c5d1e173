#include <algorithm>
#include <vector>

#include "formats/base/error.h"
#include "inference/kernels/matmul.h"
#include "inference/kernels/vector_math.h"
#include "inference/model/attention/attention.h"

namespace ingot::inference {

using formats::MatrixView;

namespace {

constexpr std::size_t kQueryBlock = 32;

template <typename T>
MatrixView<T> rows_of(const MatrixView<T>& matrix, std::size_t first, std::size_t n) {
  return {matrix.row(first), n, matrix.cols, matrix.stride};
}

WeightMatrix as_weight(const MatrixView<const float>& matrix, std::size_t rows) {
  return f32_matrix(matrix.data, rows, matrix.cols, matrix.stride);
}

}  // namespace

void attend(const AttentionNumbers& numbers, std::span<const ScorePart> parts,
            MatrixView<const float> values, const std::function<std::size_t(std::size_t)>& visible,
            MatrixView<float> out) {
  INGOT_CHECK(!parts.empty() && parts.size() <= 2);
  std::vector<float> scores, second;
  for (std::size_t first = 0; first < out.rows; first += kQueryBlock) {
    const std::size_t n = std::min(kQueryBlock, out.rows - first);
    std::size_t reach = 0;
    for (std::size_t i = 0; i < n; ++i) reach = std::max(reach, visible(first + i));
    scores.resize(n * reach);
    const MatrixView<float> score_view{scores.data(), n, reach, reach};
    matmul(rows_of(parts[0].queries, first, n), as_weight(parts[0].keys, reach),
           WeightRounding::kExact, score_view, numbers.threads);
    if (parts.size() > 1) {
      second.resize(n * reach);
      matmul(rows_of(parts[1].queries, first, n), as_weight(parts[1].keys, reach),
             WeightRounding::kExact, {second.data(), n, reach, reach}, numbers.threads);
      for (std::size_t i = 0; i < scores.size(); ++i) scores[i] += second[i];
    }
    round_between(numbers.profile, scores);
    for (float& score : scores) score *= numbers.scale;
    round_between(numbers.profile, scores);
    for (std::size_t i = 0; i < n; ++i) {
      const std::span row(score_view.row(i), reach);
      const std::size_t seen = visible(first + i);
      softmax(row.first(seen));
      // Nothing is added for what a query does not see: 0 x value leaves every sum as it is.
      std::fill(row.begin() + static_cast<std::ptrdiff_t>(seen), row.end(), 0.0F);
    }
    round_between(numbers.profile, scores);
    matmul_transposed({scores.data(), n, reach, reach}, as_weight(values, reach),
                      WeightRounding::kExact, rows_of(out, first, n), numbers.threads);
  }
  for (std::size_t r = 0; r < out.rows; ++r) {
    round_between(numbers.profile, std::span(out.row(r), out.cols));
  }
}

}  // namespace ingot::inference
