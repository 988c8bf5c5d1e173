#include "inference/model/step/gated_streams.h"

#include "inference/kernels/vector_math.h"
#include "inference/model/step/norm.h"

namespace ingot::inference {

GatedStreams::GatedStreams(const BlockWeights& weights, const StepContext& context,
                           const Roles& roles) {
  const HyperSpec& spec = context.spec.ends.hyper.value();
  const std::size_t width = context.spec.stream_width();
  norm_ = norm_weights(weights, context.spec, roles.norm, width);
  down_ = weights.linear(roles.down, spec.rank, width);
  up_ = weights.linear(roles.up, width, spec.rank);
  if (roles.inject) inject_ = weights.linear(*roles.inject, spec.streams, width);
}

HyperInput GatedStreams::input(const StepContext& context, const Matrix& streams) const {
  const Profile profile = context.profile;
  const std::size_t n = context.spec.ends.hyper->streams, hidden = context.spec.hidden;
  const auto parts = static_cast<float>(n);
  const Matrix normed = normed_streams(context, norm_, streams);
  Matrix inner = rounded_product(context, down_, normed);
  for (float& value : inner.values()) value /= parts;
  round_between(profile, inner.values());
  for (float& value : inner.values()) value *= sigmoid_f32(value);  // silu
  round_between(profile, inner.values());
  Matrix gates = rounded_product(context, up_, inner);
  for (float& value : gates.values()) value = sigmoid_f32(value);
  round_between(profile, gates.values());
  HyperInput input{.collapsed = Matrix(streams.rows(), hidden), .post = {}, .mix = {}};
  for (std::size_t r = 0; r < streams.rows(); ++r) {
    const auto to = input.collapsed.row(r);
    for (std::size_t c = 0; c < hidden; ++c) {
      for (std::size_t at = c; at < n * hidden; at += hidden)
        to[c] += gates.row(r)[at] * normed.row(r)[at];
      to[c] /= parts;
    }
  }
  round_between(profile, input.collapsed.values());
  if (inject_.empty()) return input;
  input.post = rounded_product(context, inject_, normed);
  for (float& value : input.post.values()) value = 2 * sigmoid_f32(value / parts);
  round_between(profile, input.post.values());
  return input;
}

Matrix normed_streams(const StepContext& context, std::span<const float> weights,
                      const Matrix& streams) {
  Matrix normed(streams.rows(), streams.cols());
  const std::size_t hidden = context.spec.hidden;
  for (std::size_t first = 0; first < streams.cols(); first += hidden) {
    rms_norm(context.profile, streams.columns(first, hidden), weights.subspan(first, hidden),
             context.spec.norm.eps, normed.columns(first, hidden));
  }
  return normed;
}

}  // namespace ingot::inference
