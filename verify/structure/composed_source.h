#pragma once

#include <cstddef>
#include <filesystem>
#include <functional>
#include <map>
#include <string>

#include "check/opened.h"
#include "formats/checkpoint/checkpoint.h"

namespace ingot::verify {

/// How composed_as_in() opens a directory of a source, and how it sees a checkpoint: with the
/// experts and caches that the output has.
struct SourceViews {
  std::function<formats::Checkpoint(const std::filesystem::path&)> open;
  std::function<formats::Checkpoint(formats::Checkpoint)> as_in_output;
  std::size_t threads = 1;
};

/// The source of an output that was composed of several checkpoints: each tensor is that of the
/// checkpoint that the output's records name. `base` is the first of Manifest::sources, as it was
/// opened; `sources` has the directories of the others by their names. Throws kNotFound for a name
/// without a directory, kMissingTensor for a checkpoint that lacks a tensor which the records take
/// from it, and as read_tensor_records() and with_overlay() do.
formats::Checkpoint composed_as_in(formats::Checkpoint base, const check::Opened& output,
                                   const std::map<std::string, std::filesystem::path>& sources,
                                   const SourceViews& views);

}  // namespace ingot::verify
