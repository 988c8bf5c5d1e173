#pragma once

#include <filesystem>
#include <vector>

#include "convert/plan/plan.h"

namespace ingot::convert {

/// Inputs of a job, which its output must not replace.
struct JobInputs {
  std::vector<std::filesystem::path> folders;     ///< checkpoints: its source, and --scales-from
  std::vector<std::filesystem::path> files = {};  ///< that options name
};

JobInputs inputs_of(const Plan& plan);

/// Throws kInvalidArgument when the output is one of these folders, or one is inside the other, or
/// files of theirs lie in the output. Folders are told apart by device and inode, and every one on
/// the way is looked at, so names, links and mounts do not matter.
void require_apart(const JobInputs& inputs, const std::filesystem::path& output);

/// The same where inodes tell nothing (an overlay and its layers, FUSE, a server by two mounts): a
/// file that is made in the output, which must exist, for a moment must not appear in or above
/// these folders.
void require_unseen(const JobInputs& inputs, const std::filesystem::path& output);

/// Whether a name in an output is that of such a file, which a kill may leave.
bool is_probe(const std::filesystem::path& name);

}  // namespace ingot::convert
