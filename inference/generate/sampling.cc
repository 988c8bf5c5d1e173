#include "inference/generate/sampling.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <vector>

#include <xxhash.h>

#include "formats/base/error.h"
#include "inference/kernels/vector_math.h"

namespace ingot::inference {
namespace {

// The smallest probability that top-k keeps.
float top_k_floor(std::vector<float> probabilities, std::size_t k) {
  if (k == 0 || k >= probabilities.size()) return 0.0F;
  const auto kth = probabilities.begin() + static_cast<std::ptrdiff_t>(k - 1);
  std::ranges::nth_element(probabilities, kth, std::greater<>());
  return *kth;
}

// The smallest probability that top-p keeps of those from `floor` on, which it takes as the whole.
float top_p_floor(std::vector<float> probabilities, float floor, float p) {
  if (p >= 1.0F) return floor;
  std::erase_if(probabilities, [floor](float value) { return value < floor; });
  std::ranges::sort(probabilities, std::greater<>());
  double total = 0;
  for (const float value : probabilities) total += value;
  double reached = 0;
  for (const float value : probabilities) {
    reached += value;
    if (reached >= double{p} * total) return value;
  }
  return floor;
}

double exponential_noise(std::uint64_t seed, const SampleKey& key, std::uint64_t token) {
  const std::uint64_t counter[] = {key.prompt, key.position, token};
  const std::uint64_t bits = XXH3_64bits_withSeed(counter, sizeof(counter), seed);
  const double u = (static_cast<double>(bits >> 11U) + 0.5) * 0x1p-53;
  return -std::log(u);
}

}  // namespace

std::uint64_t hash_of_prompt(std::span<const std::int32_t> ids) {
  return XXH3_64bits(ids.data(), ids.size_bytes());
}

std::int32_t greedy_token(std::span<const float> logits) {
  INGOT_CHECK(!logits.empty());
  return static_cast<std::int32_t>(std::ranges::max_element(logits) - logits.begin());
}

std::int32_t sample_token(std::span<const float> logits, const SamplingOptions& options,
                          const SampleKey& key) {
  if (options.temperature == 0) return greedy_token(logits);
  std::vector<float> probabilities(logits.begin(), logits.end());
  const float temperature = std::max(options.temperature, 1e-5F);
  for (float& value : probabilities) value /= temperature;
  softmax(probabilities);
  const float floor =
      top_p_floor(probabilities, top_k_floor(probabilities, options.top_k), options.top_p);
  double best = -1;
  std::int32_t token = 0;
  for (std::size_t j = 0; j < probabilities.size(); ++j) {
    if (probabilities[j] < floor || probabilities[j] == 0) continue;
    const double score = double{probabilities[j]} / exponential_noise(options.seed, key, j);
    if (score > best) {
      best = score;
      token = static_cast<std::int32_t>(j);
    }
  }
  return token;
}

}  // namespace ingot::inference
