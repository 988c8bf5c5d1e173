#pragma once

#include <filesystem>
#include <functional>

#include "check/check.h"
#include "formats/records/slicing_record.h"

namespace ingot::formats {

/// Checks the directories that the top manifest of a sliced checkpoint lists, in its order: that
/// each is there, that its manifest has the hash that is known, and what `check_rank` finds in it.
/// Reports other directories that look like a rank's. Findings go to `result`, their files behind
/// the directory's name; counts are added up.
void check_ranks(const std::filesystem::path& directory, const SlicingRecord& slicing,
                 const std::function<CheckResult(const std::filesystem::path&)>& check_rank,
                 CheckResult& result);

}  // namespace ingot::formats
