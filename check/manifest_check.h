#pragma once

#include <filesystem>
#include <functional>

#include "check/check.h"
#include "check/stored_hashes.h"
#include "formats/records/manifest.h"
#include "formats/records/slicing_record.h"

namespace ingot::check {

/// Runs `body` and adds the error that it ends with to `result`, with `file` as its file unless
/// that is empty. kInterrupted is thrown on.
void collect(CheckResult& result, const std::string& file, const std::function<void()>& body);

/// Adds to `result` every difference between `directory` and its manifest: sizes and, when
/// `options.hashes`, the bytes of every tensor, header and side file. `weights` may be null when
/// they could not be opened, or are in the directories of ranks. Tensors of one name may be in
/// several files.
void check_against_manifest(const std::filesystem::path& directory,
                            const formats::Manifest& manifest, const StoredWeights* weights,
                            const CheckOptions& options, LinkedHashes& hashes, CheckResult& result);

/// Makes warnings of the findings that the manifest says were allowed when the checkpoint was
/// written: refusals of engines whose tensor matches a pattern of `--allow engine-refuses`.
void admit_allowed(const formats::Manifest& manifest, CheckResult& result);

/// Checks the directories that the top manifest of a sliced checkpoint lists, in its order: that
/// each is there, and that its manifest has the known hash; adds the findings of `check_rank`.
/// Reports other directories that look like a rank's. Findings go to `result`, their files behind
/// the directory's name; counts are added up.
void check_ranks(const std::filesystem::path& directory, const formats::SlicingRecord& slicing,
                 const std::function<CheckResult(const std::filesystem::path&)>& check_rank,
                 CheckResult& result);

}  // namespace ingot::check
