#include "inference/model/step/residual_sum.h"

#include <algorithm>
#include <cmath>

#include "formats/base/error.h"
#include "inference/kernels/vector_math.h"

namespace ingot::inference {

using formats::FineRole;

namespace {

struct SumRoles {
  FineRole gate, output_factor, output_shift, stream_factor, stream_shift;
};
constexpr SumRoles kMixerSum = {FineRole::kMixerResidualGate, FineRole::kMixerOutputFactor,
                                FineRole::kMixerOutputShift, FineRole::kMixerResidualFactor,
                                FineRole::kMixerResidualShift};
constexpr SumRoles kFeedForwardSum = {
    FineRole::kFeedForwardResidualGate, FineRole::kFeedForwardOutputFactor,
    FineRole::kFeedForwardOutputShift, FineRole::kFeedForwardResidualFactor,
    FineRole::kFeedForwardResidualShift};

// Least square of a gated stream's factor.
constexpr float kLeastSquare = 1e-3F;

}  // namespace

ResidualSum::ResidualSum(const BlockWeights& weights, const StepContext& context,
                         const BlockSpec& block)
    : kept_factor_(block.kept_factor) {
  const SumRoles& roles = block.is_mixer() ? kMixerSum : kFeedForwardSum;
  const formats::Shape shape = {context.spec.hidden};
  if (block.gate_temperature) {
    const std::vector<float> zeros(context.spec.hidden);
    output_.shift = stream_.shift = zeros;
    for (float gate : weights.vector(roles.gate, shape)) {
      gate /= *block.gate_temperature;
      const float beta = sigmoid_f32(gate);
      output_.factor.push_back(beta);
      stream_.factor.push_back(std::sqrt(std::max(sigmoid_f32(-gate) * (1 + beta), kLeastSquare)));
    }
  } else if (weights.expects(roles.output_factor) && !weights.expects(roles.output_shift)) {
    // Scales of what layers add, stored less 1.
    const formats::Shape stored = weights.store().shape_of(weights.name(roles.output_factor));
    const bool is_row = formats::element_count(stored) == shape.front();
    output_ = {.factor = weights.vector(roles.output_factor, is_row ? stored : shape),
               .shift = std::vector<float>(context.spec.hidden)};
    for (float& factor : output_.factor) factor += 1;
    stream_ = {.factor = std::vector<float>(context.spec.hidden, 1.0F), .shift = output_.shift};
  } else if (weights.expects(roles.output_factor)) {
    output_ = {.factor = weights.vector(roles.output_factor, shape),
               .shift = weights.vector(roles.output_shift, shape)};
    stream_ = {.factor = weights.vector(roles.stream_factor, shape),
               .shift = weights.vector(roles.stream_shift, shape)};
  }
}

void ResidualSum::add(Profile profile, const Matrix& output, Matrix& stream) const {
  if (output_.factor.empty()) {
    scale_rounded(profile, kept_factor_, stream);
    add_rounded(profile, stream, output);
    return;
  }
  INGOT_CHECK(output.cols() == stream.cols() && output.rows() == stream.rows());
  for (std::size_t r = 0; r < stream.rows(); ++r) {
    const auto to = stream.row(r);
    const auto from = output.row(r);
    for (std::size_t c = 0; c < to.size(); ++c) {
      const float added = (from[c] + output_.shift[c]) * output_.factor[c];
      to[c] = (to[c] + stream_.shift[c]) * stream_.factor[c] + added;
    }
  }
  round_between(profile, stream.values());
}

}  // namespace ingot::inference
