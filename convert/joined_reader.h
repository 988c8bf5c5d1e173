#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "convert/output/tensor_records.h"
#include "convert/plan/plan.h"

namespace ingot::convert {

/// Stored tensors that parts make up (PlannedFile::joined), with those that the same source tensors
/// fill: codes and their scales.
struct JoinedGroup {
  std::string name;                    ///< name of the first
  std::vector<std::uint32_t> tensors;  ///< indices into Plan::tensors, in the order of their bytes
  std::uint64_t n_bytes = 0;           ///< bytes of all parts, before they are cut
};
/// The groups of a plan whose files have joined tensors, by name; constants are in none.
std::vector<JoinedGroup> joined_groups(const Plan& plan);

/// The next bytes of a stored tensor, which come in their order.
struct JoinedPiece {
  std::uint32_t file = 0;    ///< index into Plan::files
  std::uint32_t joined = 0;  ///< index into its `joined`
  std::span<const std::byte> bytes;
};

/// Converts groups in memory, and gives each of their stored tensors in each file piece by piece;
/// the source is read once for all files.
class JoinedReader {
 public:
  /// The plan must outlive it, and write nothing by encoding under shared scales.
  explicit JoinedReader(const Plan& plan);

  /// Safe from many threads for different groups.
  void read(const JoinedGroup& group, const std::function<void(const JoinedPiece&)>& receive);

 private:
  class Sink;

  const Plan& plan_;
  std::vector<std::uint32_t> file_of_;                                       // by member
  std::map<std::pair<std::uint32_t, std::uint64_t>, std::uint32_t> begins_;  // by file and offset
  std::vector<char> done_;
  std::vector<TensorResult> results_;
};

}  // namespace ingot::convert
