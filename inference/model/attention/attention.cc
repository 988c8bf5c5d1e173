#include "inference/model/attention/attention.h"

#include <algorithm>
#include <vector>

#include "formats/base/error.h"
#include "inference/kernels/matmul.h"
#include "inference/kernels/vector_math.h"

namespace ingot::inference {

using formats::MatrixView;

namespace {

constexpr std::size_t kQueryBlock = 32;

template <typename T>
MatrixView<T> rows_of(const MatrixView<T>& matrix, std::size_t first, std::size_t n) {
  return {matrix.row(first), n, matrix.cols, matrix.stride};
}

CodedMatrix as_weight(const MatrixView<const float>& matrix, std::size_t rows) {
  return f32_matrix(matrix.data, rows, matrix.cols, matrix.stride);
}

}  // namespace

void attend(const AttentionNumbers& numbers, std::span<const ScorePart> parts,
            MatrixView<const float> values, const std::function<std::size_t(std::size_t)>& visible,
            MatrixView<float> out) {
  INGOT_CHECK(!parts.empty() && parts.size() <= 2);
  INGOT_CHECK(numbers.sinks.empty() || numbers.sinks.size() == out.rows);
  INGOT_CHECK(numbers.by_distance.rows == 0 || numbers.by_distance.rows == out.rows);
  std::vector<float> scores, second, with_sink;
  for (std::size_t first = 0; first < out.rows; first += kQueryBlock) {
    const std::size_t n = std::min(kQueryBlock, out.rows - first);
    const auto from = [&](std::size_t i) { return numbers.from ? numbers.from(first + i) : 0; };
    std::size_t low = from(0), high = 0;
    for (std::size_t i = 0; i < n; ++i) {
      low = std::min(low, from(i));
      high = std::max(high, visible(first + i));
    }
    const std::size_t reach = high - low;
    const auto keys_of = [&](const ScorePart& part) {
      return as_weight(rows_of(part.keys, low, reach), reach);
    };
    scores.resize(n * reach);
    const MatrixView<float> score_view{scores.data(), n, reach, reach};
    matmul(rows_of(parts[0].queries, first, n), keys_of(parts[0]), WeightRounding::kExact,
           score_view, numbers.threads);
    if (parts.size() > 1) {
      second.resize(n * reach);
      matmul(rows_of(parts[1].queries, first, n), keys_of(parts[1]), WeightRounding::kExact,
             {second.data(), n, reach, reach}, numbers.threads);
      for (std::size_t i = 0; i < scores.size(); ++i) scores[i] += second[i];
    }
    round_between(numbers.profile, scores);
    for (float& score : scores) score *= numbers.scale;
    round_between(numbers.profile, scores);
    if (numbers.cap) {
      for (float& score : scores) score = soft_capped(score, *numbers.cap);
      round_between(numbers.profile, scores);
    }
    for (std::size_t i = 0; i < n && numbers.by_distance.rows > 0; ++i) {
      const float* logits = numbers.by_distance.row(first + i);
      const std::size_t last = visible(first + i) - 1 - low;
      for (std::size_t d = 0; d < std::min(numbers.by_distance.cols, last + 1); ++d) {
        score_view.row(i)[last - d] += logits[d];
      }
    }
    if (numbers.by_distance.rows > 0) round_between(numbers.profile, scores);
    for (std::size_t i = 0; i < n; ++i) {
      const std::span row(score_view.row(i), reach);
      const std::size_t before = from(i) - low, seen = visible(first + i) - low;
      const std::span shown = row.subspan(before, seen - before);
      if (numbers.sinks.empty()) {
        softmax(shown);
      } else {
        with_sink.assign(shown.begin(), shown.end());
        with_sink.push_back(numbers.sinks[first + i]);
        softmax(with_sink);
        std::copy_n(with_sink.begin(), shown.size(), shown.begin());
      }
      // Nothing is added for what a query does not see: 0 x value leaves every sum as it is.
      std::ranges::fill(row.first(before), 0.0F);
      std::ranges::fill(row.subspan(seen), 0.0F);
    }
    round_between(numbers.profile, scores);
    matmul_transposed({scores.data(), n, reach, reach},
                      as_weight(rows_of(values, low, reach), reach), WeightRounding::kExact,
                      rows_of(out, first, n), numbers.threads);
  }
  for (std::size_t r = 0; r < out.rows; ++r) {
    round_between(numbers.profile, std::span(out.row(r), out.cols));
  }
}

Matrix gathered(MatrixView<const float> from, std::span<const std::uint32_t> which) {
  Matrix to(which.size(), from.cols);
  for (std::size_t i = 0; i < which.size(); ++i) {
    std::copy_n(from.row(which[i]), from.cols, to.row(i).data());
  }
  return to;
}

Matrix logits_by_distance(Profile profile, std::span<const float> table, const DistanceSpec& spec,
                          MatrixView<const float> rows) {
  Matrix logits(rows.rows, spec.extent);
  for (std::size_t row = 0; row < rows.rows; ++row) {
    const std::span<float> to = logits.row(row);
    for (std::size_t i = 0; i < spec.values; ++i) {
      const auto own = table.subspan(i * spec.extent, spec.extent);
      for (std::size_t d = 0; d < spec.extent; ++d) to[d] += rows.row(row)[i] * own[d];
    }
  }
  round_between(profile, logits.values());
  return logits;
}

void gate_heads(const StepContext& context, const Linear& gate, const Matrix& x, std::size_t width,
                Matrix& attended, bool is_softplus, std::span<const float> bias) {
  Matrix gates = rounded_product(context, gate, x);
  const std::size_t per_head = bias.empty() ? 1 : gates.cols() / bias.size();
  for (std::size_t r = 0; !bias.empty() && r < gates.rows(); ++r) {
    for (std::size_t c = 0; c < gates.cols(); ++c) gates.row(r)[c] += bias[c / per_head];
  }
  if (!bias.empty()) round_between(context.profile, gates.values());
  for (float& value : gates.values())
    value = is_softplus ? softplus_f32(value) : sigmoid_f32(value);
  round_between(context.profile, gates.values());
  for (std::size_t r = 0; r < x.rows(); ++r) {
    for (std::size_t c = 0; c < attended.cols(); ++c) {
      attended.row(r)[c] *= gates.row(r)[c / width];
    }
  }
  round_between(context.profile, attended.values());
}

}  // namespace ingot::inference
