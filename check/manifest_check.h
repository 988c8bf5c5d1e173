#pragma once

#include <filesystem>

#include "check/check.h"
#include "check/stored_hashes.h"
#include "formats/records/manifest.h"

namespace ingot::formats {

/// Adds to `result` whatever in `directory` is not as its manifest says: sizes and, when
/// `options.hashes`, the bytes of every tensor, header and side file. `weights` may be null when
/// they could not be opened, or stand in the directories of ranks. Tensors of one name may be in
/// several files.
void check_against_manifest(const std::filesystem::path& directory, const Manifest& manifest,
                            const StoredWeights* weights, const CheckOptions& options,
                            LinkedHashes& hashes, CheckResult& result);

/// Makes warnings of the findings that the manifest says were allowed when the checkpoint was
/// written: refusals of engines whose tensor matches a pattern of `--allow engine-refuses`.
void admit_allowed(const Manifest& manifest, CheckResult& result);

}  // namespace ingot::formats
