#include "inference/model/attention/head_growth.h"

#include <cmath>

#include "formats/base/error.h"

namespace ingot::inference {

HeadGrowth::HeadGrowth(const BlockWeights& weights, WeightRole scale, WeightRole bias,
                       std::size_t heads, Range mine)
    : scale_(weights.vector_part(scale, heads, mine)),
      bias_(weights.vector_part(bias, heads, mine)) {}

void HeadGrowth::apply(Profile profile, std::span<const std::uint32_t> positions,
                       Matrix& queries) const {
  if (scale_.empty()) return;
  INGOT_CHECK(queries.rows() == positions.size() && queries.cols() % scale_.size() == 0);
  const std::size_t width = queries.cols() / scale_.size();
  for (std::size_t r = 0; r < queries.rows(); ++r) {
    auto logarithm = static_cast<float>(std::log(static_cast<double>(positions[r]) + 1));
    round_between(profile, std::span(&logarithm, 1));
    for (std::size_t head = 0; head < scale_.size(); ++head) {
      float factor = scale_[head] * logarithm;
      round_between(profile, std::span(&factor, 1));
      factor += bias_[head];
      round_between(profile, std::span(&factor, 1));
      for (float& value : queries.row(r).subspan(head * width, width)) value *= factor;
    }
  }
  round_between(profile, queries.values());
}

}  // namespace ingot::inference
