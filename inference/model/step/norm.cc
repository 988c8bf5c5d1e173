#include "inference/model/step/norm.h"

#include <cmath>
#include <vector>

#include "formats/base/error.h"
#include "inference/kernels/vector_math.h"

namespace ingot::inference {
namespace {

// A sum in the order of dot products.
float sum(std::span<const float> x, std::span<const float> ones) {
  return dot(x, ones.first(x.size()));
}

}  // namespace

void rms_norm(Profile profile, formats::MatrixView<const float> x, std::span<const float> weight,
              float eps, formats::MatrixView<float> out) {
  INGOT_CHECK(weight.size() == x.cols && out.cols == x.cols && out.rows == x.rows);
  for (std::size_t r = 0; r < x.rows; ++r) {
    const std::span in(x.row(r), x.cols);
    const std::span to(out.row(r), x.cols);
    const float mean = sum_of_squares(in) / static_cast<float>(x.cols);
    const float factor = 1.0F / std::sqrt(mean + eps);
    for (std::size_t i = 0; i < in.size(); ++i) to[i] = in[i] * factor;
    round_between(profile, to);
    for (std::size_t i = 0; i < in.size(); ++i) to[i] = weight[i] * to[i];
    round_between(profile, to);
  }
}

void layer_norm(Profile profile, formats::MatrixView<const float> x, std::span<const float> weight,
                std::span<const float> bias, float eps, formats::MatrixView<float> out) {
  INGOT_CHECK(weight.size() == x.cols && bias.size() == x.cols && out.rows == x.rows);
  const std::vector<float> ones(x.cols, 1.0F);
  const auto width = static_cast<float>(x.cols);
  for (std::size_t r = 0; r < x.rows; ++r) {
    const std::span in(x.row(r), x.cols);
    const std::span to(out.row(r), x.cols);
    const float mean = sum(in, ones) / width;
    for (std::size_t i = 0; i < in.size(); ++i) to[i] = in[i] - mean;
    const float variance = sum_of_squares(to) / width;
    const float factor = 1.0F / std::sqrt(variance + eps);
    for (std::size_t i = 0; i < in.size(); ++i) to[i] = to[i] * factor * weight[i] + bias[i];
    round_between(profile, to);
  }
}

}  // namespace ingot::inference
