#include "inference/model/step/norm.h"

#include <algorithm>
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
  std::vector<float> squares;
  for (std::size_t r = 0; r < x.rows; ++r)
    squares.push_back(sum_of_squares(std::span(x.row(r), x.cols)));
  rms_norm_of_part(profile, x, squares, x.cols, weight, eps, out);
}

void rms_norm_of_part(Profile profile, formats::MatrixView<const float> x,
                      std::span<const float> squares, std::size_t width,
                      std::span<const float> weight, float eps, formats::MatrixView<float> out) {
  INGOT_CHECK(weight.size() == x.cols && out.cols == x.cols && out.rows == x.rows);
  INGOT_CHECK(squares.size() == x.rows);
  for (std::size_t r = 0; r < x.rows; ++r) {
    const std::span in(x.row(r), x.cols);
    const std::span to(out.row(r), x.cols);
    const float mean = squares[r] / static_cast<float>(width);
    const float factor = 1.0F / std::sqrt(mean + eps);
    for (std::size_t i = 0; i < in.size(); ++i) to[i] = in[i] * factor;
    round_between(profile, to);
    for (std::size_t i = 0; i < in.size(); ++i) to[i] = weight[i] * to[i];
    round_between(profile, to);
  }
}

std::vector<float> norm_weights(const BlockWeights& weights, const ModelSpec& spec, WeightRole role,
                                std::size_t n) {
  std::vector<float> values = weights.vector(role, {n});
  for (float& value : values) value += spec.norm.adds;
  return values;
}

HiddenNorm hidden_norm(const BlockWeights& weights, std::size_t width, const NormSpec& form,
                       const NormRoles& roles) {
  const auto has = [&](const std::optional<formats::FineRole>& role) {
    return role && weights.expects(*role);
  };
  HiddenNorm norm{.form = form};
  norm.weight =
      form.is_plain ? std::vector<float>(width, 1.0F) : weights.vector(roles.weight, {width});
  for (float& value : norm.weight) value += form.adds;
  if (form.is_layer)
    norm.bias = has(roles.bias) ? weights.vector(*roles.bias, {width}) : std::vector<float>(width);
  if (!has(roles.down)) return norm;
  norm.down = weights.linear(*roles.down, form.gate_rank, width);
  norm.up = weights.linear(roles.up.value(), width, form.gate_rank);
  return norm;
}

Matrix normed(const StepContext& context, const Matrix& x, const HiddenNorm& norm) {
  const Profile profile = context.profile;
  const std::size_t width = norm.weight.size();
  if (x.cols() > width) {
    Matrix all(x.rows(), x.cols());
    for (std::size_t first = 0; first < x.cols(); first += width) {
      Matrix part(x.rows(), width);
      for (std::size_t r = 0; r < x.rows(); ++r)
        std::ranges::copy(x.row(r).subspan(first, width), part.row(r).begin());
      part = normed(context, part, norm);
      for (std::size_t r = 0; r < x.rows(); ++r)
        std::ranges::copy(part.row(r), all.row(r).subspan(first).begin());
    }
    return all;
  }
  Matrix out(x.rows(), x.cols());
  if (norm.form.is_layer) {
    layer_norm(profile, x.view(), norm.weight, norm.bias, norm.form.eps, out.view());
  } else if (norm.form.weighs_first) {
    for (std::size_t r = 0; r < x.rows(); ++r) {
      for (std::size_t c = 0; c < x.cols(); ++c) out.row(r)[c] = norm.weight[c] * x.row(r)[c];
    }
    round_between(profile, out.values());
    const std::vector<float> ones(x.cols(), 1.0F);
    rms_norm(profile, out.view(), ones, norm.form.eps, out.view());
  } else {
    rms_norm(profile, x.view(), norm.weight, norm.form.eps, out.view());
  }
  if (norm.down.empty()) return out;
  Matrix inner = rounded_product(context, norm.down, out);
  for (float& value : inner.values()) value *= sigmoid_f32(value);  // silu
  round_between(profile, inner.values());
  const Matrix gates = rounded_product(context, norm.up, inner);
  for (std::size_t i = 0; i < gates.values().size(); ++i)
    out.values()[i] *= norm.form.gate_factor * sigmoid_f32(gates.values()[i]);
  round_between(profile, out.values());
  return out;
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

RopeSpec with_learned_frequencies(const WeightStore& weights, const RopeSpec& spec) {
  RopeSpec learned = spec;
  if (!spec.is_learned) return learned;
  const std::string name = weights.name_of({.role = formats::FineRole::kRopeFactors});
  const std::vector<float> alpha = weights.vector(name, {spec.freqs.size()});
  for (std::size_t i = 0; i < alpha.size(); ++i) {
    learned.freqs[i] *= static_cast<float>(std::exp(static_cast<double>(alpha[i])));
    if (!std::isfinite(learned.freqs[i])) {
      throw Error(ErrorCode::kNonFinite,
                  "holds {}, whose exponential is no frequency (fetch the file again)", alpha[i])
          .in_tensor(name);
    }
  }
  return learned;
}

RopeAngles::RopeAngles(Profile profile, const RopeSpec& spec,
                       std::span<const std::uint32_t> positions)
    : profile_(profile),
      interleaved_(spec.interleaved),
      cos_(positions.size(), spec.freqs.size()),
      sin_(positions.size(), spec.freqs.size()) {
  for (std::size_t i = 0; i < positions.size(); ++i) {
    for (std::size_t pair = 0; pair < spec.freqs.size(); ++pair) {
      const float angle = static_cast<float>(positions[i]) * spec.freqs[pair];
      cos_.row(i)[pair] = static_cast<float>(std::cos(static_cast<double>(angle))) * spec.magnitude;
      sin_.row(i)[pair] = static_cast<float>(std::sin(static_cast<double>(angle))) * spec.magnitude;
    }
  }
  round_between(profile, cos_.values());
  round_between(profile, sin_.values());
}

void RopeAngles::rotate(std::size_t i, std::span<float> values) const {
  turn(i, 1.0F, values);
}

void RopeAngles::rotate_back(std::size_t i, std::span<float> values) const {
  turn(i, -1.0F, values);
}

void RopeAngles::turn(std::size_t i, float direction, std::span<float> values) const {
  const std::size_t n_pairs = cos_.cols();
  INGOT_CHECK(values.size() == 2 * n_pairs);
  for (std::size_t pair = 0; pair < n_pairs; ++pair) {
    float& u = interleaved_ ? values[2 * pair] : values[pair];
    float& w = interleaved_ ? values[2 * pair + 1] : values[pair + n_pairs];
    const float cos = cos_.row(i)[pair], sin = direction * sin_.row(i)[pair];
    float products[4] = {u * cos, w * sin, w * cos, u * sin};
    round_between(profile_, products);
    u = products[0] - products[1];
    w = products[2] + products[3];
  }
  round_between(profile_, values);
}

}  // namespace ingot::inference
