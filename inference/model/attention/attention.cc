#include "inference/model/attention/attention.h"

#include <algorithm>
#include <vector>

#include "formats/base/error.h"
#include "formats/base/parallel.h"
#include "inference/kernels/matmul.h"
#include "inference/kernels/vector_math.h"
#include "inference/model/step/norm.h"
#include "inference/model/step/step.h"
#include "inference/parallel/comm.h"

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
  INGOT_CHECK(numbers.sinks.empty() || numbers.sinks.size() == out.rows);
  std::vector<float> scores, second, with_sink;
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
      if (numbers.sinks.empty()) {
        softmax(row.first(seen));
      } else {
        with_sink.assign(row.begin(), row.begin() + static_cast<std::ptrdiff_t>(seen));
        with_sink.push_back(numbers.sinks[first + i]);
        softmax(with_sink);
        std::copy_n(with_sink.begin(), seen, row.begin());
      }
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

GqaAttention::GqaAttention(const WeightStore& weights, const StepContext& context,
                           const std::string& prefix) {
  const GqaSpec& gqa = *context.spec.gqa;
  const std::size_t hidden = context.spec.hidden, width = gqa.head_dim;
  const Range heads = tensor_part(context.rank, gqa.heads, "attention heads");
  const Range kv_heads = key_head_part(context.rank, gqa.kv_heads);
  heads_ = heads.count;
  kv_heads_ = kv_heads.count;
  const Range q_rows{heads.first * width, heads.count * width};
  const Range kv_rows{kv_heads.first * width, kv_heads.count * width};
  const std::size_t per_query = gqa.output_gate ? 2 : 1;
  q_ = weights.linear(prefix + "q_proj.weight", per_query * gqa.heads * width, hidden,
                      {per_query * q_rows.first, per_query * q_rows.count}, {0, hidden});
  k_ = weights.linear(prefix + "k_proj.weight", gqa.kv_heads * width, hidden, kv_rows, {0, hidden});
  v_ = weights.linear(prefix + "v_proj.weight", gqa.kv_heads * width, hidden, kv_rows, {0, hidden});
  o_ = weights.linear(prefix + "o_proj.weight", hidden, gqa.heads * width, {0, hidden}, q_rows);
  if (!gqa.norms) return;
  q_norm_ = norm_weights(weights, context.spec, prefix + "q_norm.weight", width);
  k_norm_ = norm_weights(weights, context.spec, prefix + "k_norm.weight", width);
}

void GqaAttention::finish_heads(const StepContext& context, std::span<const float> norm,
                                const RopeAngles& angles, Matrix& heads) const {
  const std::size_t width = context.spec.gqa->head_dim;
  for (std::size_t first = 0; first < heads.cols(); first += width) {
    if (!norm.empty()) {
      rms_norm(context.profile, heads.columns(first, width), norm, context.spec.norm_eps,
               heads.columns(first, width));
    }
    for (std::size_t r = 0; r < heads.rows(); ++r) {
      angles.rotate(r, heads.row(r).subspan(first, context.spec.rope.dim));
    }
  }
}

// A head's gate stands behind its query.
void GqaAttention::split_gates(const StepContext& context, Matrix& queries, Matrix& gates) const {
  if (!context.spec.gqa->output_gate) return;
  const std::size_t width = context.spec.gqa->head_dim;
  const Matrix both = std::move(queries);
  queries = Matrix(both.rows(), heads_ * width);
  gates = Matrix(both.rows(), heads_ * width);
  for (std::size_t r = 0; r < both.rows(); ++r) {
    for (std::size_t h = 0; h < heads_; ++h) {
      const auto pair = both.row(r).subspan(2 * h * width, 2 * width);
      std::ranges::copy(pair.first(width), queries.row(r).subspan(h * width).begin());
      std::ranges::copy(pair.last(width), gates.row(r).subspan(h * width).begin());
    }
  }
}

Matrix GqaAttention::partial(const LayerStep& step, const Matrix& x) const {
  const StepContext& context = step.context;
  const std::size_t width = context.spec.gqa->head_dim, shared_by = heads_ / kv_heads_;
  const RopeAngles angles(context.profile, context.spec.rope, step.rows.positions);
  Matrix queries = rounded_product(context, q_, x), gates;
  split_gates(context, queries, gates);
  finish_heads(context, q_norm_, angles, queries);
  Matrix new_keys = rounded_product(context, k_, x);
  finish_heads(context, k_norm_, angles, new_keys);
  const Matrix new_values = rounded_product(context, v_, x);
  require_finite(new_keys, step.layer, "the key");
  require_finite(new_values, step.layer, "the value");
  step.write(kKeyStream, new_keys.view());
  step.write(kValueStream, new_values.view());
  Matrix attended(x.rows(), heads_ * width);
  for (const SequenceRun& run : step.rows.runs) {
    const auto everything = first_positions(run.total());
    const Matrix keys = step.cached(context.profile, run.sequence, kKeyStream, everything);
    const Matrix values = step.cached(context.profile, run.sequence, kValueStream, everything);
    parallel_for(heads_, context.threads, [&](std::size_t head) {
      const AttentionNumbers numbers{context.profile, context.spec.softmax_scale, 1};
      const std::size_t offset = head * width, kv_offset = head / shared_by * width;
      const ScorePart parts[] = {
          {queries.block(run.first_row, run.count, offset, width), keys.columns(kv_offset, width)}};
      attend(
          numbers, parts, values.columns(kv_offset, width),
          [&](std::size_t row) { return run.first_position + row + 1; },
          attended.block(run.first_row, run.count, offset, width));
    });
  }
  for (std::size_t i = 0; i < gates.values().size(); ++i) {
    attended.values()[i] *= sigmoid_f32(gates.values()[i]);
  }
  if (context.spec.gqa->output_gate) round_between(context.profile, attended.values());
  require_finite(attended, step.layer, "attention");
  return product(context, o_, attended);
}

}  // namespace ingot::inference
