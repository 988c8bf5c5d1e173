#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <vector>

#include "formats/config/model_config.h"

namespace ingot::inference {

/// How a token is chosen from logits.
struct SamplingOptions {
  float temperature = 1.0F;  ///< 0: the largest logit
  std::size_t top_k = 0;     ///< keep the k largest, and those equal to the k-th; 0: all
  /// Probability: after top_k, keep the fewest tokens that reach it together, at least one.
  float top_p = 1.0F;
  std::uint64_t seed = 0;
};

/// Facts that the noise of a sample depends on in addition to seed and token, so that an answer is
/// the same by itself, at any place of a batch and on any number of threads.
struct SampleKey {
  std::uint64_t prompt = 0;    ///< hash_of_prompt
  std::uint64_t position = 0;  ///< position of the token that is chosen
};

/// XXH3-64 of the ids.
std::uint64_t hash_of_prompt(std::span<const std::int32_t> ids);

/// Id of the largest logit, the lowest of equals.
std::int32_t greedy_token(std::span<const float> logits);

/// argmax over kept tokens j of p_j / e_j, with p the softmax of logits / temperature in FP32 and
/// e_j = -ln u_j exponential noise (the Gumbel-max trick: a draw from p without a cumulative sum).
/// u_j in (0, 1) comes from XXH3-64 of (prompt, position, j) under the seed.
std::int32_t sample_token(std::span<const float> logits, const SamplingOptions& options,
                          const SampleKey& key);

/// The generation options of a checkpoint.
struct GenerationConfig {
  bool do_sample = false;
  SamplingOptions sampling;
  std::vector<std::int32_t> eos;  ///< tokens that end an answer
  std::optional<std::size_t> max_new_tokens;
};

/// Reads generation_config.json of a directory, where there is one; the ids of the end also from
/// config.json. Throws kCorrupt naming file and key for a wrong type or a number out of range.
GenerationConfig read_generation_config(const std::filesystem::path& directory,
                                        const formats::ModelConfig& config);

}  // namespace ingot::inference
