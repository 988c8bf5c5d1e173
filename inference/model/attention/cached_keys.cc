#include "inference/model/attention/cached_keys.h"

#include <numeric>

namespace ingot::inference {

std::vector<std::uint32_t> first_positions(std::size_t n) {
  std::vector<std::uint32_t> positions(n);
  std::iota(positions.begin(), positions.end(), 0U);
  return positions;
}

Matrix cached(Profile profile, const KvCache& cache, SequenceId sequence, std::size_t layer,
              std::size_t stream, std::span<const std::uint32_t> positions) {
  Matrix values(positions.size(), cache.streams(layer)[stream].width);
  cache.gather(sequence, layer, stream, positions, values.values());
  if (cache.streams(layer)[stream].format != KvFormat::kBf16) {
    round_between(profile, values.values());
  }
  return values;
}

}  // namespace ingot::inference
