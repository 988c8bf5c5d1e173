#include "inference/model/step/hyper_connection.h"

#include <algorithm>
#include <cmath>

#include "formats/base/error.h"
#include "inference/kernels/matmul.h"
#include "inference/kernels/vector_math.h"

namespace ingot::inference {

namespace {

// fn u for every row, u being the row over its root mean square.
Matrix projected(const HyperSpec& spec, const HyperWeights& weights, const Matrix& streams,
                 std::size_t threads) {
  const std::size_t width = streams.cols(), outputs = weights.base.size();
  INGOT_CHECK(weights.fn.size() == outputs * width);
  Matrix normed = streams;
  for (std::size_t r = 0; r < normed.rows(); ++r) {
    const auto row = normed.row(r);
    const float mean = sum_of_squares(row) / static_cast<float>(width);
    const float factor = 1.0F / std::sqrt(mean + spec.norm_eps);
    for (float& value : row) value *= factor;
  }
  Matrix out(streams.rows(), outputs);
  matmul(normed.view(), f32_matrix(weights.fn.data(), outputs, width, width),
         WeightRounding::kExact, out.view(), threads);
  return out;
}

// sum over i of weight[i] x stream i.
void collapse(std::span<const float> weight, std::span<const float> streams, std::span<float> to) {
  for (std::size_t i = 0; i < weight.size(); ++i) {
    const auto stream = streams.subspan(i * to.size(), to.size());
    for (std::size_t c = 0; c < to.size(); ++c) {
      const float product = weight[i] * stream[c];
      to[c] = i == 0 ? product : to[c] + product;
    }
  }
}

void gate(std::span<float> logits, std::span<const float> base, float scale, float factor,
          float offset) {
  for (std::size_t i = 0; i < logits.size(); ++i) {
    logits[i] = factor * sigmoid_f32(logits[i] * scale + base[i]) + offset;
  }
}

}  // namespace

void sinkhorn(std::span<float> logits, std::size_t n, std::size_t rounds, float eps) {
  INGOT_CHECK(logits.size() == n * n && rounds > 0);
  for (std::size_t i = 0; i < n; ++i) softmax(logits.subspan(i * n, n));
  for (float& value : logits) value += eps;
  const auto divide = [&](std::size_t first, std::size_t step) {
    float sum = 0;
    for (std::size_t k = 0; k < n; ++k) sum += logits[first + k * step];
    for (std::size_t k = 0; k < n; ++k) logits[first + k * step] /= sum + eps;
  };
  for (std::size_t round = 0; round < rounds; ++round) {
    for (std::size_t i = 0; round > 0 && i < n; ++i) divide(i * n, 1);
    for (std::size_t j = 0; j < n; ++j) divide(j, n);
  }
}

HyperInput hyper_input(Profile profile, const HyperSpec& spec, const HyperWeights& weights,
                       const Matrix& streams, std::size_t threads) {
  const std::size_t n = spec.streams, hidden = streams.cols() / n;
  const std::size_t n_mix = spec.mixes ? n * n : 0;
  INGOT_CHECK(weights.base.size() == 2 * n + n_mix &&
              weights.scale.size() == (spec.mixes ? std::size_t{3} : std::size_t{2}));
  Matrix logits = projected(spec, weights, streams, threads);
  HyperInput input{.collapsed = Matrix(streams.rows(), hidden),
                   .post = Matrix(streams.rows(), n),
                   .mix = Matrix(streams.rows(), n_mix)};
  const std::span base(weights.base);
  for (std::size_t r = 0; r < streams.rows(); ++r) {
    const auto row = logits.row(r);
    gate(row.first(n), base.first(n), weights.scale[0], 1.0F, spec.eps);
    collapse(row.first(n), streams.row(r), input.collapsed.row(r));
    gate(row.subspan(n, n), base.subspan(n, n), weights.scale[1], spec.magnitude,
         spec.mixes ? 0.0F : spec.eps);
    std::ranges::copy(row.subspan(n, n), input.post.row(r).begin());
    if (!spec.mixes) continue;
    const auto mix = row.subspan(2 * n);
    for (std::size_t i = 0; i < mix.size(); ++i) {
      mix[i] = mix[i] * weights.scale[2] + base[2 * n + i];
    }
    sinkhorn(mix, n, spec.rounds, spec.eps);
    std::ranges::copy(mix, input.mix.row(r).begin());
  }
  round_between(profile, input.collapsed.values());
  round_between(profile, input.post.values());
  round_between(profile, input.mix.values());
  return input;
}

void hyper_output(Profile profile, const HyperInput& input, const Matrix& output, Matrix& streams) {
  const std::size_t n = input.post.cols(), hidden = output.cols();
  INGOT_CHECK(streams.cols() == n * hidden && streams.rows() == output.rows());
  std::vector<float> before(streams.cols());
  for (std::size_t r = 0; r < streams.rows(); ++r) {
    const auto row = streams.row(r);
    std::ranges::copy(row, before.begin());
    for (std::size_t j = 0; j < n; ++j) {
      const auto to = row.subspan(j * hidden, hidden);
      const float post = input.post.row(r)[j];
      for (std::size_t c = 0; c < hidden; ++c) to[c] = post * output.row(r)[c];
      const bool is_mixed = input.mix.cols() > 0;
      for (std::size_t i = is_mixed ? 0 : j; i < (is_mixed ? n : j + 1); ++i) {
        const float weight = is_mixed ? input.mix.row(r)[i * n + j] : 1.0F;
        const float* from = before.data() + i * hidden;
        for (std::size_t c = 0; c < hidden; ++c) to[c] += weight * from[c];
      }
    }
  }
  round_between(profile, streams.values());
}

Matrix hyper_head(Profile profile, const HyperSpec& spec, const HyperWeights& weights,
                  const Matrix& streams, std::size_t threads) {
  const std::size_t n = spec.streams;
  Matrix out(streams.rows(), streams.cols() / n);
  Matrix logits(streams.rows(), n);
  if (spec.learned_head) {
    INGOT_CHECK(weights.base.size() == n && weights.scale.size() == 1);
    logits = projected(spec, weights, streams, threads);
  }
  for (std::size_t r = 0; r < streams.rows(); ++r) {
    const auto row = logits.row(r);
    if (spec.learned_head) {
      gate(row, weights.base, weights.scale[0], 1.0F, spec.eps);
    } else {
      std::ranges::fill(row, 1.0F);
    }
    collapse(row, streams.row(r), out.row(r));
    if (spec.learned_head) continue;
    for (float& value : out.row(r)) value /= static_cast<float>(n);
  }
  round_between(profile, out.values());
  return out;
}

Matrix hyper_streams(const HyperSpec& spec, const Matrix& embedded) {
  Matrix streams(embedded.rows(), spec.streams * embedded.cols());
  for (std::size_t r = 0; r < embedded.rows(); ++r) {
    for (std::size_t i = 0; i < spec.streams; ++i) {
      std::ranges::copy(embedded.row(r),
                        streams.row(r).subspan(i * embedded.cols(), embedded.cols()).begin());
    }
  }
  return streams;
}

}  // namespace ingot::inference
