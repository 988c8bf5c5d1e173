#include "inference/generate/sampling.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <vector>

#include <xxhash.h>

#include "formats/base/error.h"
#include "formats/config/nested_config.h"
#include "formats/json/json.h"
#include "formats/json/json_fields.h"
#include "inference/kernels/vector_math.h"

namespace ingot::inference {

using formats::Json;
using formats::JsonFields;

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

namespace {

constexpr const char* kFileName = "generation_config.json";
constexpr std::uint64_t kMaxSettingsBytes = 1U << 20;
constexpr std::uint64_t kMaxSetting = 1U << 30;

// One id or a list.
std::vector<std::int32_t> ids(const JsonFields& fields, const char* key) {
  std::vector<std::int32_t> found;
  const auto add = [&](const Json& value) {
    const auto id = formats::whole_number(value, std::numeric_limits<std::int32_t>::max());
    if (!id) fields.refuse(key, "is not a token id or a list of them");
    found.push_back(static_cast<std::int32_t>(*id));
  };
  const Json* value = fields.find(key);
  if (value == nullptr) return found;
  if (value->is_array()) {
    for (const Json& one : *value) add(one);
  } else {
    add(*value);
  }
  return found;
}

}  // namespace

GenerationConfig read_generation_config(const std::filesystem::path& directory,
                                        const formats::ModelConfig& config) {
  GenerationConfig is;
  const std::filesystem::path path = directory / kFileName;
  if (std::filesystem::exists(path)) {
    const Json json = formats::read_json_file(path, kMaxSettingsBytes);
    const JsonFields fields(json, kFileName);
    is.do_sample = fields.boolean("do_sample", is.do_sample);
    is.sampling.temperature =
        static_cast<float>(fields.optional_real("temperature", 0.0, 1e4).value_or(1.0));
    is.sampling.top_p = static_cast<float>(fields.optional_real("top_p", 0.0, 1.0).value_or(1.0));
    is.sampling.top_k = fields.optional_number("top_k", kMaxSetting).value_or(0);
    is.max_new_tokens = fields.optional_number("max_new_tokens", kMaxSetting);
    is.eos = ids(fields, "eos_token_id");
  }
  if (is.eos.empty())
    is.eos = ids(JsonFields(formats::text_keys(config), "config.json"), "eos_token_id");
  return is;
}

}  // namespace ingot::inference
