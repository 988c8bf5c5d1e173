#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "inference/generate/generate.h"
#include "tests/inference/model/golden_file.h"

// Prompts to the bundled model and its recorded answers.

namespace ingot::testing {

using Prompts = std::vector<std::vector<std::int32_t>>;

inline const std::string kExample = INGOT_SOURCE_DIR "/examples/tiny-v32";

inline std::vector<std::int32_t> golden_ids(const std::string& name) {
  static const GoldenFile golden(INGOT_SOURCE_DIR "/tests/golden/tiny-v32/forward_fp8.safetensors");
  const auto ids = golden.integers(name);
  return {ids.begin(), ids.end()};
}

inline inference::GenerateOptions greedy_options(std::size_t drafts = 0) {
  inference::GenerateOptions options;
  options.sampling.temperature = 0;
  options.max_new_tokens = 160;
  options.eos = {1};
  options.kv_format = inference::KvFormat::kF32;
  options.drafts = drafts;
  return options;
}

inline Prompts tokens_of(const inference::GenerateResult& result) {
  Prompts tokens;
  for (const inference::Answer& answer : result.answers) tokens.push_back(answer.tokens);
  return tokens;
}

}  // namespace ingot::testing
