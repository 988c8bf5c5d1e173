#pragma once

#include <filesystem>
#include <functional>
#include <string_view>

#include "formats/base/hash.h"
#include "formats/records/slicing_record.h"

namespace ingot::shard {

/// A stored tensor of a sliced output, as far as its record tells of its place. Views of the line
/// that is being read.
struct RecordedSlice {
  std::string_view name, file;  ///< as in the record's `output`
  /// Null for a tensor that is whole. Records that say the same share one, which lasts until all
  /// are read.
  const formats::SliceRecord* slice = nullptr;
  std::string_view home_file;  ///< its own, or that of its logical tensor; may be empty
};

/// Reads the per-tensor records of one directory as a stream, so that memory does not grow with
/// them, and calls `take` for every stored tensor that they promise, in their order. Other fields
/// are passed over. Throws kCorrupt for what no record is, kMismatch when the content hash differs
/// from `expected` (by then `take` has had them all).
void read_recorded_slices(const std::filesystem::path& records, const Hash128& expected,
                          const std::function<void(const RecordedSlice&)>& take);

}  // namespace ingot::shard
