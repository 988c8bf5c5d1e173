#include "inference/model/step/rope.h"

#include <cmath>

#include "formats/base/error.h"

namespace ingot::inference {

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
  const std::size_t n_pairs = cos_.cols();
  INGOT_CHECK(values.size() == 2 * n_pairs);
  for (std::size_t pair = 0; pair < n_pairs; ++pair) {
    float& u = interleaved_ ? values[2 * pair] : values[pair];
    float& w = interleaved_ ? values[2 * pair + 1] : values[pair + n_pairs];
    const float cos = cos_.row(i)[pair], sin = sin_.row(i)[pair];
    float products[4] = {u * cos, w * sin, w * cos, u * sin};
    round_between(profile_, products);
    u = products[0] - products[1];
    w = products[2] + products[3];
  }
  round_between(profile_, values);
}

}  // namespace ingot::inference
