#include "formats/base/parallel.h"
#include "inference/model/attention/attention.h"
#include "inference/model/step/norm.h"
#include "inference/model/step/step.h"
#include "inference/parallel/comm.h"

namespace ingot::inference {

using formats::MatrixView;

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
  q_ = weights.linear(prefix + "q_proj.weight", gqa.heads * width, hidden, q_rows, {0, hidden});
  k_ = weights.linear(prefix + "k_proj.weight", gqa.kv_heads * width, hidden, kv_rows, {0, hidden});
  v_ = weights.linear(prefix + "v_proj.weight", gqa.kv_heads * width, hidden, kv_rows, {0, hidden});
  o_ = weights.linear(prefix + "o_proj.weight", hidden, gqa.heads * width, {0, hidden}, q_rows);
  q_norm_ = weights.vector(prefix + "q_norm.weight", {width});
  k_norm_ = weights.vector(prefix + "k_norm.weight", {width});
}

Matrix GqaAttention::heads(const StepContext& context, const Linear& projection,
                           std::span<const float> norm, const Matrix& x,
                           const RopeAngles& angles) const {
  const std::size_t width = context.spec.gqa->head_dim;
  Matrix heads = rounded_product(context, projection, x);
  for (std::size_t first = 0; first < heads.cols(); first += width) {
    rms_norm(context.profile, heads.columns(first, width), norm, context.spec.norm_eps,
             heads.columns(first, width));
    for (std::size_t r = 0; r < x.rows(); ++r) {
      angles.rotate(r, heads.row(r).subspan(first, width));
    }
  }
  return heads;
}

Matrix GqaAttention::partial(const LayerStep& step, const Matrix& x) const {
  const StepContext& context = step.context;
  const std::size_t width = context.spec.gqa->head_dim, shared_by = heads_ / kv_heads_;
  const RopeAngles angles(context.profile, context.spec.rope, step.rows.positions);
  const Matrix queries = heads(context, q_, q_norm_, x, angles);
  const Matrix new_keys = heads(context, k_, k_norm_, x, angles);
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
  require_finite(attended, step.layer, "attention");
  return product(context, o_, attended);
}

}  // namespace ingot::inference
