#include "inference/model/feed_forward/router_mlp.h"

#include <cmath>
#include <numbers>

#include "formats/base/error.h"
#include "inference/model/step/norm.h"

namespace ingot::inference {

using formats::FineRole;

namespace {

// x / 2 (1 + erf(x / root 2)), in FP64 and rounded once.
void exact_gelu(Profile profile, Matrix& values) {
  for (float& value : values.values()) {
    const auto x = static_cast<double>(value);
    value = static_cast<float>(x / 2 * (1 + std::erf(x / std::numbers::sqrt2)));
  }
  round_between(profile, values.values());
}

}  // namespace

RouterMlp::RouterMlp(const BlockWeights& weights, const StepContext& context,
                     const RouterSpec& spec)
    : down_(weights.linear(FineRole::kRouterDown, spec.inner, context.spec.hidden)),
      first_(weights.linear(FineRole::kRouterFirst, spec.inner, spec.inner)),
      second_(weights.linear(FineRole::kRouterSecond, spec.inner, spec.inner)),
      down_bias_(weights.vector(FineRole::kRouterDownBias, {spec.inner})),
      first_bias_(weights.vector(FineRole::kRouterFirstBias, {spec.inner})),
      second_bias_(weights.vector(FineRole::kRouterSecondBias, {spec.inner})),
      norm_(weights.vector(FineRole::kRouterNorm, {spec.inner})) {
  if (weights.expects(FineRole::kRouterMemory))
    memory_ = weights.vector(FineRole::kRouterMemory, {spec.inner});
}

Matrix RouterMlp::inner(const StepContext& context, const Matrix& x, Matrix& state) const {
  Matrix own = rounded_product(context, down_, x, down_bias_);
  INGOT_CHECK(state.rows() == own.rows() && state.cols() == own.cols());
  for (std::size_t r = 0; !memory_.empty() && r < own.rows(); ++r) {
    const auto before = state.row(r), row = own.row(r);
    for (std::size_t c = 0; c < row.size(); ++c) row[c] += memory_[c] * before[c];
  }
  round_between(context.profile, own.values());
  state = own;
  rms_norm(context.profile, own.view(), norm_, context.spec.norm.eps, own.view());
  Matrix first = rounded_product(context, first_, own, first_bias_);
  exact_gelu(context.profile, first);
  Matrix second = rounded_product(context, second_, first, second_bias_);
  exact_gelu(context.profile, second);
  return second;
}

}  // namespace ingot::inference
