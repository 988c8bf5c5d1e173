#include "inference/kernels/vector_math.h"

#include "formats/base/error.h"
#include "inference/kernels/vector_runs.h"

namespace ingot::inference {

float dot(std::span<const float> a, std::span<const float> b) {
  INGOT_CHECK(a.size() == b.size());
  return run_dot(a.data(), b.data(), a.size());
}

float sum_of_squares(std::span<const float> x) {
  return run_dot(x.data(), x.data(), x.size());
}

void softmax(std::span<float> x) {
  run_softmax(x.data(), x.size());
}

void silu_multiply(std::span<const float> gate, std::span<const float> up, std::span<float> out,
                   bool round_bf16) {
  INGOT_CHECK(gate.size() == out.size() && up.size() == out.size());
  run_silu_multiply(gate.data(), up.data(), out.data(), out.size(), round_bf16);
}

}  // namespace ingot::inference
