#pragma once

#include <cstdint>
#include <vector>

#include "convert/job/journal.h"
#include "convert/output/output_directory.h"
#include "convert/plan/plan.h"
#include "convert/recipe/source_stamps.h"

namespace ingot::convert {

/// Throws kUnsupported when a weights file is a symbolic link, as in the hub's cache, and for jobs
/// that could not go on without their source: slices, dialects that are only read, repairs.
void require_consumable(const Plan& plan);

/// When --consume-source deletes source files.
enum class Consume : std::uint8_t {
  kOnTheWay,  ///< a file when every item that reads it is durable, was read and matches its hash
  kAtTheEnd,  ///< everything, when the output was read back from the disk (--read-back)
};

/// Deletes source files behind the conversion (--consume-source). The deletion is in the journal
/// first.
class SourceConsumer {
 public:
  /// A file that is deleted must be as `stamps` has it, which forget it.
  SourceConsumer(const Plan& plan, const OutputPaths& paths, SourceStamps& stamps, Consume when);

  /// Saves every header, so that a resumed run can plan without the files. Before the first item.
  void save_headers() const;
  /// These items are durable; deletes the source files that are free now. `hashes` by item.
  void tensors_done(const std::vector<std::uint32_t>& items,
                    const std::vector<TensorResult>& hashes, Journal& journal);
  /// Deletes the rest: everything, or files that no item reads (their tensors were dropped). When
  /// all files of the output have their names.
  void finish(Journal& journal);

 private:
  void consume(std::uint32_t file, Journal& journal);

  const Plan& plan_;
  const OutputPaths& paths_;
  SourceStamps& stamps_;
  Consume when_;
  std::vector<std::vector<std::uint32_t>> readers_;  // per source file: the items that read it
  std::vector<std::size_t> waiting_;  // per source file: how many of them are not durable
  std::vector<char> consumed_;
  std::vector<char> verified_;  // per item
};

}  // namespace ingot::convert
