#pragma once

#include <filesystem>

#include "formats/checkpoint/checkpoint.h"
#include "formats/records/manifest.h"

namespace ingot::shard {

/// True if a directory holds model{i}-mp{N}.safetensors, as DeepSeek's inference code loads.
bool holds_deepseek_shards(const std::filesystem::path& directory);

/// The model that such shards hold together, under the names of the hub. `manifest`: of ours, whose
/// records tell how each tensor was cut; null for shards that others made, where the family's rows
/// tell it: column-parallel and vocabulary weights and their scales are joined along the first
/// dimension, row-parallel ones along the second, the others are replicas, an expert is in one
/// shard. `config`: config.json of the hub, empty for that of the manifest or of the directory.
/// Throws kNotFound for missing shards, and without a config, naming --config; kMismatch for shards
/// of several numbers; kUnsupported for foreign scales that were cut inside a block.
formats::Draft join_deepseek_shards(const std::filesystem::path& directory,
                                    const formats::Manifest* manifest,
                                    const std::filesystem::path& config, bool compare_replicas,
                                    const formats::OpenOptions& options);

}  // namespace ingot::shard
