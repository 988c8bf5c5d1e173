#include "inference/model/step/source_mix.h"

#include <algorithm>
#include <cmath>

#include "inference/kernels/vector_math.h"

namespace ingot::inference {

namespace {

constexpr float kEps = 1e-6F;

}  // namespace

SourceMix::SourceMix(const BlockWeights& weights, const StepContext& context, WeightRole role,
                     std::size_t n)
    : queries_(weights.vector(role, n == 1 ? formats::Shape{context.spec.hidden}
                                           : formats::Shape{n, context.spec.hidden})) {}

Matrix SourceMix::inputs(Profile profile, const Matrix& sources, std::size_t n,
                         const Matrix& sum) const {
  const std::size_t width = sum.cols(), n_queries = queries_.size() / width;
  const float scale = 1.0F / std::sqrt(static_cast<float>(width));
  Matrix out(sum.rows(), queries_.size()), normed(n + 1, width);
  std::vector<float> weights(n + 1);
  for (std::size_t r = 0; r < sum.rows(); ++r) {
    for (std::size_t s = 0; s <= n; ++s) {
      const auto from = s < n ? sources.row(r).subspan(s * width, width) : sum.row(r);
      const float mean = sum_of_squares(from) / static_cast<float>(width);
      const float factor = 1.0F / std::sqrt(mean + kEps);
      for (std::size_t c = 0; c < width; ++c) normed.row(s)[c] = from[c] * factor;
    }
    for (std::size_t q = 0; q < n_queries; ++q) {
      const auto query = std::span(queries_).subspan(q * width, width);
      for (std::size_t s = 0; s <= n; ++s) weights[s] = scale * dot(query, normed.row(s));
      softmax(weights);
      const auto to = out.row(r).subspan(q * width, width);
      for (std::size_t s = 0; s <= n; ++s) {
        for (std::size_t c = 0; c < width; ++c) to[c] += weights[s] * normed.row(s)[c];
      }
    }
  }
  round_between(profile, out.values());
  return out;
}

}  // namespace ingot::inference
