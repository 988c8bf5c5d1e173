#pragma once

#include <filesystem>
#include <vector>

#include "convert/plan/plan.h"

namespace ingot::convert {

/// Inputs of a job, which its output must not replace.
struct JobInputs {
  std::vector<std::filesystem::path> folders;     ///< checkpoints: its source, and --scales-from
  std::vector<std::filesystem::path> files = {};  ///< files that options name
};

JobInputs inputs_of(const Plan& plan);

/// Throws kInvalidArgument when the output is one of these folders, or one is inside the other, or
/// files of theirs lie in the output. Folders are told apart by device and inode, and every one on
/// the way is looked at, so names, links and mounts do not matter.
void require_apart(const JobInputs& inputs, const std::filesystem::path& output);

/// Throws, as require_apart() does, where inodes tell no difference (an overlay and its layers,
/// FUSE, a server by two mounts): makes a probe file in the output, which must exist, for a moment;
/// the probe must not appear in or above these folders.
void require_unseen(const JobInputs& inputs, const std::filesystem::path& output);

/// True if a name in an output is that of a probe file of require_unseen(), which a kill may leave.
bool is_probe(const std::filesystem::path& name);

}  // namespace ingot::convert
