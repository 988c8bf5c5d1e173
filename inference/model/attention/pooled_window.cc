#include "inference/model/attention/pooled_window.h"

#include <algorithm>
#include <limits>
#include <vector>

#include "formats/base/error.h"
#include "inference/kernels/vector_math.h"

namespace ingot::inference {

void pool_window(std::span<const WindowPart> parts, std::span<float> out) {
  const std::size_t width = out.size();
  std::vector<float> largest(width, -std::numeric_limits<float>::infinity()), weight(width, 0.0F);
  std::ranges::fill(out, 0.0F);
  for (const WindowPart& part : parts) {
    INGOT_CHECK(part.values.cols == width && part.logits.cols == width &&
                part.values.rows == part.logits.rows);
    for (std::size_t r = 0; r < part.logits.rows; ++r) {
      for (std::size_t c = 0; c < width; ++c) {
        largest[c] = std::max(largest[c], part.logits.row(r)[c]);
      }
    }
  }
  for (const WindowPart& part : parts) {
    for (std::size_t r = 0; r < part.values.rows; ++r) {
      for (std::size_t c = 0; c < width; ++c) {
        const float e = exp_f32(part.logits.row(r)[c] - largest[c]);
        weight[c] += e;
        out[c] += e * part.values.row(r)[c];
      }
    }
  }
  for (std::size_t c = 0; c < width; ++c) out[c] /= weight[c];
}

}  // namespace ingot::inference
