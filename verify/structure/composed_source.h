#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <string>

#include "check/opened.h"
#include "formats/checkpoint/checkpoint.h"

namespace ingot::verify {

/// The source of an output that was composed of several checkpoints: each tensor is that of the
/// checkpoint that the output's records name. `base` is the first of Manifest::sources; `open`
/// opens the others, each as the output has its experts and caches, by the directories in
/// `sources`. Throws kNotFound for a name without a directory, kMissingTensor for a checkpoint that
/// lacks a tensor which the records take from it, and as read_tensor_records() does.
formats::Checkpoint composed_as_in(
    formats::Checkpoint base, const check::Opened& output,
    const std::map<std::string, std::filesystem::path>& sources,
    const std::function<formats::Checkpoint(const std::filesystem::path&)>& open);

}  // namespace ingot::verify
