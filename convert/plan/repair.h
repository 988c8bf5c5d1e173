#pragma once

#include <map>
#include <string>
#include <vector>

#include "formats/base/hash.h"
#include "formats/checkpoint/checkpoint.h"

namespace ingot::convert {

struct Plan;

/// What `ingot repair` must read of a checkpoint before it can plan: a plan opens no file.
struct RepairFacts {
  /// NVFP4 tensors that take the global scale of another one with which loaders fuse them, by name,
  /// and that scale as their dialect stores it. The largest of a set, as it multiplies, so that no
  /// block scale grows.
  std::map<std::string, float> joint_globals;
  std::vector<Hash128> headers;  ///< of the bytes before the data, by file of the source
};

/// Reads every file's header, and the global scales of NVFP4 weights that loaders fuse. Throws
/// kBadScale for one that is not finite and above zero.
RepairFacts read_repair_facts(const formats::Checkpoint& source);

/// Gives the joint global scales to the tensors that keep their codes, and the dialect's names to
/// parts that are called otherwise.
void mend_tensors(Plan& plan);

/// Says of every file whether it would be that of the source, byte for byte (PlannedFile::linked).
/// Such a file is not written.
void keep_whole_files(Plan& plan);

}  // namespace ingot::convert
