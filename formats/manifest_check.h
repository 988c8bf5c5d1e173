#pragma once

#include <filesystem>

#include "formats/check.h"
#include "formats/manifest.h"

namespace ingot::formats {

/// Adds to `result` whatever in `directory` is not as its manifest says: sizes and, when
/// `options.hashes`, the bytes of every tensor, header and side file. `checkpoint` may be null when
/// the weights could not be opened.
void check_against_manifest(const std::filesystem::path& directory, const Manifest& manifest,
                            const Checkpoint* checkpoint, const CheckOptions& options,
                            CheckResult& result);

}  // namespace ingot::formats
