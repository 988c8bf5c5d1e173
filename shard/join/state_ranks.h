#pragma once

#include <filesystem>

#include "formats/checkpoint/checkpoint.h"
#include "formats/records/manifest.h"

namespace ingot::shard {

/// The model that the files of layout vllm-sharded hold together, under the names of the hub: the
/// manifest's records tell which stretch of which stored tensor each is. Throws kNotFound for
/// missing files.
formats::Draft join_state_ranks(const std::filesystem::path& directory,
                                const formats::Manifest& manifest, bool compare_replicas,
                                const formats::OpenOptions& options);

}  // namespace ingot::shard
