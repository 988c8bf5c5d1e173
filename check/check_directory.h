#pragma once

#include <filesystem>

#include "check/check.h"

namespace ingot::shard {

/// formats::check_checkpoint of any directory that can be opened. Of slices, each directory is
/// checked by itself where it has a manifest, and then the model that they are together: how they
/// contradict one another, and what loaders refuse of it. What was found in one directory is not
/// said again. `config`: as SourceOptions has it.
formats::CheckResult check_directory(const std::filesystem::path& directory,
                                     const formats::CheckOptions& options,
                                     const std::filesystem::path& config);

}  // namespace ingot::shard
