#pragma once

#include <filesystem>

#include "formats/checkpoint/checkpoint.h"

namespace ingot::formats {

/// True if `path` names one weights file (`*.safetensors`), not a directory.
bool is_weights_file(const std::filesystem::path& path);

/// One weights file as a checkpoint; no other file of its folder is read. Its family is the one in
/// the options, else that of `config` (a config.json), else generic, which accepts any names. Parts
/// of weights whose other parts are elsewhere, as at the borders of shards, are left out with a
/// remark. Throws, or collects, as Checkpoint::open does.
Checkpoint open_weights_file(const std::filesystem::path& path, const std::filesystem::path& config,
                             OpenOptions options);

}  // namespace ingot::formats
