#include "inference/model/hadamard.h"

#include <bit>
#include <cmath>

#include "formats/base/error.h"

namespace ingot::inference {

void hadamard(std::span<float> x) {
  INGOT_CHECK(std::has_single_bit(x.size()));
  for (std::size_t stride = 1; stride < x.size(); stride *= 2) {
    for (std::size_t base = 0; base < x.size(); base += 2 * stride) {
      for (std::size_t i = base; i < base + stride; ++i) {
        const float a = x[i], b = x[i + stride];
        x[i] = a + b;
        x[i + stride] = a - b;
      }
    }
  }
  const float factor = 1.0F / std::sqrt(static_cast<float>(x.size()));
  for (float& value : x) value *= factor;
}

}  // namespace ingot::inference
