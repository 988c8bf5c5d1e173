#pragma once

#include <map>
#include <string>
#include <vector>

#include "formats/base/hash.h"
#include "formats/checkpoint/checkpoint.h"
#include "formats/dialect/dialect.h"

namespace ingot::convert {

struct Plan;

/// The facts that `ingot repair` must read of a checkpoint before it can plan: a plan opens no
/// file.
struct RepairFacts {
  /// NVFP4 tensors that take the global scale of another one with which loaders fuse them, by name,
  /// and that scale as their dialect stores it. The largest of a set, as it multiplies, so that no
  /// block scale grows.
  std::map<std::string, float> joint_globals;
  std::vector<Hash128> headers;  ///< hashes of the bytes before the data, by file of the source
  /// True if `scale_fmt` of the output says that FP8 scales are powers of two: all of them are, and
  /// the source says so or they are too many for chance.
  bool power_of_two_scales = false;
};

/// Reads every file's header, the scales of FP8 blocks, and the global scales of NVFP4 weights that
/// loaders fuse. Throws kBadScale, collected, for one that is not finite and above zero, and for
/// those that are farther apart than kFarthestGlobals: no block scale can make up for that.
RepairFacts read_repair_facts(const formats::Checkpoint& source);

/// The largest of fused global scales over the smallest, up to which codes can be kept. Block
/// scales of a weight are 448 at most and rarely below a seventh of their largest; divided by this
/// they are still normal numbers of E4M3, from 2^-6, with all bits of their fraction.
inline constexpr float kFarthestGlobals = 4096;

/// The dialect in which a checkpoint is repaired: the one that its files name, if it holds their
/// tensors. Where they name none, the one whose names the parts have; else one that holds them.
/// Throws kUnsupported for weights under DeepSeek's native names in a scheme that its config must
/// name, and does not.
const formats::Dialect& repaired_dialect(const formats::Checkpoint& source);

/// How engines treat the activations of a weight: static where it has a scale for them that its
/// block does not call unused (SourceActivations::leaves_inputs), and only there; else as the
/// source says, if the dialect has that, or as the dialect has it.
formats::Activations repaired_activations(const formats::SourceActivations& said,
                                          const formats::Dialect& dialect,
                                          const formats::LogicalTensor& tensor);

/// Gives the joint global scales to the tensors that keep their codes, and the dialect's names and
/// shapes to parts that have others.
void mend_tensors(Plan& plan);

/// Says of every file whether it would be that of the source, byte for byte (PlannedFile::linked).
/// Such a file is not written.
void keep_whole_files(Plan& plan);

}  // namespace ingot::convert
