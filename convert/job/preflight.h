#pragma once

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <optional>

#include "convert/job/execute.h"
#include "convert/job/journal.h"
#include "convert/output/output_directory.h"
#include "convert/output/planned_checkpoint.h"
#include "convert/plan/plan.h"
#include "convert/recipe/recipe.h"
#include "convert/run/memory_plan.h"

namespace ingot::convert {

/// Disk that a job needs, and has.
struct DiskNeed {
  std::uint64_t peak_bytes = 0;  ///< bytes of the whole output, at the peak
  std::uint64_t side_bytes = 0;  ///< bytes of the peak in files next to the weights, at most
  std::uint64_t held_bytes = 0;  ///< bytes of the peak that an earlier run has on the disk
  std::uint64_t free_bytes = 0;  ///< free bytes for us, with the bytes that --force will remove
  /// Peak with --consume-source; nullopt where that is on already, or refused.
  std::optional<std::uint64_t> consuming_bytes;

  [[nodiscard]] std::uint64_t missing() const {
    const std::uint64_t needed = peak_bytes - std::min(peak_bytes, held_bytes);
    return needed - std::min(needed, free_bytes);
  }
};

/// The facts about a job that headers, options and the place of the output decide before its first
/// byte.
struct Preflight {
  OutputState state = OutputState::kEmpty;
  MemoryPlan memory;
  DiskNeed disk;
  std::optional<JournalContents> earlier;  ///< journal of the run that is resumed
  std::vector<std::string> replaced;       ///< files there that --force replaces and removes
  bool is_finished = false;                ///< --resume of an output that is complete
  Loadable loadable;
  formats::JsonValue identity;  ///< identity of the job; set by require_resumable()
};

/// Throws kUnsupported, collected, for side files that are links to something outside the source: a
/// conversion would publish a copy of it. A snapshot of the hub's cache links to `../../blobs`,
/// which belongs to it.
void require_own_side_files(const formats::Checkpoint& source);

/// Throws preflight()'s refusals of source and place, and those of a run before it claims the
/// output: whether an unfinished one is in the way shows only then.
void require_place(const Plan& plan, const std::filesystem::path& output,
                   const ExecuteOptions& options);

/// Throws the refusals of a run, by the same code in a dry run and a real one: too little memory
/// (kLimit), a source and output that contain one another, files in the hub's cache that would be
/// deleted or replaced (kInvalidArgument), a source that cannot be consumed or has side files
/// elsewhere (kUnsupported), an output that is in the way (kExists) or may not be written
/// (kPermission), a verification that the earlier run asked for and this one does not (kMismatch),
/// a checkpoint that loader rules refuse. Then come require_space() and require_resumable(). Writes
/// nothing and reads no weights.
Preflight preflight(const Plan& plan, const std::filesystem::path& output,
                    const ExecuteOptions& options);

/// Throws kNoSpace, with the missing bytes and remedies, when the disk is too small.
void require_space(const Plan& plan, const Preflight& checked, const std::filesystem::path& output);

/// Bytes of all weights files with a copy for each rank that loads one. Exact.
std::uint64_t copied_bytes(const Plan& plan);

}  // namespace ingot::convert
