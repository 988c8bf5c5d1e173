#include "inference/model/recurrent/recurrence.h"

#include <algorithm>
#include <cmath>

#include "formats/base/error.h"
#include "inference/kernels/vector_math.h"

namespace ingot::inference {

float silu_f32(float x) {
  return x / (1.0F + exp_f32(-x));
}

void l2_normalize(std::span<float> x, float eps) {
  const float factor = 1.0F / std::sqrt(sum_of_squares(x) + eps);
  for (float& value : x) value *= factor;
}

void delta_rule_token(std::span<const float> q, std::span<const float> k, std::span<const float> v,
                      std::span<const float> decay, float beta, std::span<float> state,
                      std::span<float> out) {
  const std::size_t keys = k.size(), values = v.size();
  INGOT_CHECK(q.size() == keys && state.size() == keys * values && out.size() == values);
  INGOT_CHECK(decay.size() == keys || decay.size() == 1);
  std::ranges::fill(out, 0.0F);  // S^T k first
  for (std::size_t i = 0; i < keys; ++i) {
    const float kept = decay[decay.size() == 1 ? 0 : i], key = k[i];
    float* row = state.data() + i * values;
    for (std::size_t j = 0; j < values; ++j) {
      row[j] *= kept;
      out[j] += row[j] * key;
    }
  }
  for (std::size_t j = 0; j < values; ++j) out[j] = (v[j] - out[j]) * beta;
  for (std::size_t i = 0; i < keys; ++i) {
    const float key = k[i];
    float* row = state.data() + i * values;
    for (std::size_t j = 0; j < values; ++j) row[j] += key * out[j];
  }
  std::ranges::fill(out, 0.0F);
  for (std::size_t i = 0; i < keys; ++i) {
    const float query = q[i];
    const float* row = state.data() + i * values;
    for (std::size_t j = 0; j < values; ++j) out[j] += row[j] * query;
  }
}

void state_space_token(std::span<const float> x, std::span<const float> b, std::span<const float> c,
                       float decay, float step, float skip, std::span<float> state,
                       std::span<float> out) {
  const std::size_t n = b.size();
  INGOT_CHECK(c.size() == n && state.size() == x.size() * n && out.size() == x.size());
  for (std::size_t p = 0; p < x.size(); ++p) {
    const auto row = state.subspan(p * n, n);
    for (std::size_t i = 0; i < n; ++i) row[i] = row[i] * decay + step * b[i] * x[p];
    out[p] = dot(row, c) + skip * x[p];
  }
}

float scan_token(float x, std::span<const float> b, std::span<const float> c,
                 std::span<const float> rate, float step, float skip, std::span<float> state) {
  const std::size_t n = b.size();
  INGOT_CHECK(c.size() == n && rate.size() == n && state.size() == n);
  for (std::size_t i = 0; i < n; ++i)
    state[i] = state[i] * exp_f32(-rate[i] * step) + step * b[i] * x;
  return dot(state, c) + skip * x;
}

void decaying_token(std::span<const float> q, std::span<const float> k, std::span<const float> v,
                    float decay, std::span<float> state, std::span<float> out) {
  const std::size_t keys = k.size(), values = v.size();
  INGOT_CHECK(q.size() == keys && state.size() == keys * values && out.size() == values);
  std::ranges::fill(out, 0.0F);
  for (std::size_t i = 0; i < keys; ++i) {
    const float key = k[i], query = q[i];
    float* row = state.data() + i * values;
    for (std::size_t j = 0; j < values; ++j) {
      row[j] = row[j] * decay + key * v[j];
      out[j] += row[j] * query;
    }
  }
}

}  // namespace ingot::inference
