#include "inference/model/step/predicted_streams.h"

#include <algorithm>
#include <cmath>

#include "inference/kernels/vector_math.h"

namespace ingot::inference {

using formats::FineRole;

namespace {

constexpr float kLeastMeanSquare = 1e-5F;

Matrix copied(formats::MatrixView<const float> values) {
  Matrix copy(values.rows, values.cols);
  for (std::size_t r = 0; r < copy.rows(); ++r)
    std::copy_n(values.row(r), values.cols, copy.row(r).begin());
  return copy;
}

// Rows of `values` as long as those of `by`.
void scale_to(const StepContext& context, const Matrix& by, Matrix& values) {
  const auto n = static_cast<float>(by.cols());
  for (std::size_t r = 0; r < values.rows(); ++r) {
    const float wanted = std::sqrt(sum_of_squares(by.row(r)) / n);
    const float is = std::sqrt(std::max(sum_of_squares(values.row(r)) / n, kLeastMeanSquare));
    for (float& value : values.row(r)) value = value * wanted / is;
  }
  round_between(context.profile, values.values());
}

}  // namespace

PredictedStreams::PredictedStreams(const BlockWeights& weights, const StepContext& context) {
  const HyperSpec& spec = context.spec.ends.hyper.value();
  const std::size_t n = spec.streams, hidden = context.spec.hidden;
  norm_ = hidden_norm(weights, hidden, context.spec.norm, {.weight = FineRole::kStreamsRouterNorm});
  router_ = weights.linear(FineRole::kStreamsRouter, n, hidden);
  predict_ = weights.linear(FineRole::kStreamsPredict, n * n, n);
  correct_ = weights.linear(FineRole::kStreamsCorrect, n, n);
  if (spec.scales_active) factors_ = weights.vector(FineRole::kStreamsFactor, {hidden});
}

Matrix PredictedStreams::active_of(const StepContext& context, const Matrix& streams) const {
  const std::size_t hidden = context.spec.hidden;
  return copied(
      streams.block(0, streams.rows(), *context.spec.ends.hyper->active * hidden, hidden));
}

Matrix PredictedStreams::modalities(const StepContext& context, const Matrix& stream) const {
  Matrix input = normed(context, stream, norm_);
  scale_rounded(context.profile, 1.0F / static_cast<float>(input.cols()), input);
  Matrix values = rounded_product(context, router_, input);
  for (float& value : values.values()) value = std::tanh(value);
  round_between(context.profile, values.values());
  return values;
}

Matrix PredictedStreams::predict(const StepContext& context, Matrix& streams) const {
  const std::size_t n = context.spec.ends.hyper->streams, hidden = context.spec.hidden;
  const Matrix factors =
      rounded_product(context, predict_, modalities(context, active_of(context, streams)));
  std::vector<float> row(streams.cols());
  for (std::size_t r = 0; r < streams.rows(); ++r) {
    std::ranges::copy(streams.row(r), row.begin());
    for (std::size_t at = 0; at < n * n; ++at) {
      const float factor = factors.row(r)[at];
      const auto to = streams.row(r).subspan(at / n * hidden, hidden);
      const float* from = row.data() + at % n * hidden;
      for (std::size_t c = 0; c < hidden; ++c) to[c] += factor * from[c];
    }
  }
  round_between(context.profile, streams.values());
  return active_of(context, streams);
}

Matrix PredictedStreams::correct(const StepContext& context, const Matrix& computed,
                                 Matrix& streams) const {
  const std::size_t hidden = context.spec.hidden;
  Matrix factors = rounded_product(context, correct_, modalities(context, computed));
  for (float& factor : factors.values()) factor += 1;
  round_between(context.profile, factors.values());
  Matrix change = active_of(context, streams);
  for (std::size_t i = 0; i < change.values().size(); ++i)
    change.values()[i] = computed.values()[i] - change.values()[i];
  round_between(context.profile, change.values());
  for (std::size_t r = 0; r < streams.rows(); ++r) {
    for (std::size_t at = 0; at < streams.cols(); ++at)
      streams.row(r)[at] += change.row(r)[at % hidden] * factors.row(r)[at / hidden];
  }
  round_between(context.profile, streams.values());
  Matrix active = active_of(context, streams);
  for (std::size_t r = 0; !factors_.empty() && r < active.rows(); ++r) {
    for (std::size_t c = 0; c < hidden; ++c) active.row(r)[c] *= factors_[c];
  }
  round_between(context.profile, active.values());
  return active;
}

void add_behind_first(const StepContext& context, const Matrix& what, Matrix& streams) {
  const std::size_t hidden = what.cols();
  for (std::size_t r = 0; r < streams.rows(); ++r) {
    for (std::size_t at = hidden; at < streams.cols(); ++at)
      streams.row(r)[at] += what.row(r)[at % hidden];
  }
  round_between(context.profile, streams.values());
}

StreamEnds::StreamEnds(const BlockWeights& weights, const StepContext& context, FineRole role) {
  const std::size_t hidden = context.spec.hidden;
  for (std::uint32_t j = 0; j + 1 < context.spec.ends.hyper->streams; ++j)
    matrices_.push_back(weights.store().linear(weights.name(role, j), hidden, hidden));
}

Matrix StreamEnds::spread(const StepContext& context, const Matrix& embedded) const {
  const std::size_t hidden = embedded.cols();
  Matrix streams = of_width(embedded, (matrices_.size() + 1) * hidden);
  for (std::size_t j = 0; j < matrices_.size(); ++j) {
    Matrix made = rounded_product(context, matrices_[j], embedded);
    scale_to(context, embedded, made);
    for (std::size_t r = 0; r < made.rows(); ++r)
      std::ranges::copy(made.row(r), streams.row(r).subspan((j + 1) * hidden).begin());
  }
  return streams;
}

Matrix StreamEnds::joined(const StepContext& context, const Matrix& streams) const {
  const std::size_t hidden = context.spec.hidden;
  const Matrix first = copied(streams.block(0, streams.rows(), 0, hidden));
  Matrix sum = first;
  for (std::size_t j = 0; j < matrices_.size(); ++j) {
    Matrix made = rounded_product(
        context, matrices_[j], copied(streams.block(0, streams.rows(), (j + 1) * hidden, hidden)));
    scale_to(context, first, made);
    for (std::size_t i = 0; i < sum.values().size(); ++i) sum.values()[i] += made.values()[i];
  }
  const auto n = static_cast<float>(matrices_.size() + 1);
  for (float& value : sum.values()) value /= n;
  round_between(context.profile, sum.values());
  return sum;
}

}  // namespace ingot::inference
