#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <vector>

#include "formats/config/model_config.h"
#include "inference/generate/sampling.h"

namespace ingot::inference {

/// What a checkpoint says of generation.
struct GenerationConfig {
  bool do_sample = false;
  SamplingOptions sampling;
  std::vector<std::int32_t> eos;  ///< any of them ends an answer
  std::optional<std::size_t> max_new_tokens;
};

/// generation_config.json of a directory, where there is one; the ids of the end also from
/// config.json. kCorrupt naming file and key for a wrong type or a number out of range.
GenerationConfig read_generation_config(const std::filesystem::path& directory,
                                        const formats::ModelConfig& config);

}  // namespace ingot::inference
