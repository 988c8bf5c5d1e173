#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "formats/base/hash.h"
#include "formats/records/slicing_record.h"
#include "shard/join/slice_join.h"

namespace ingot::shard {

/// A stored tensor of a sliced output, as far as its record tells of its place. Views of the line
/// that is being read.
struct RecordedSlice {
  std::string_view name, file;  ///< name and file in the record's `output`
  /// Null for a tensor that is whole. Records that say the same share one, which lasts until all
  /// are read.
  const formats::SliceRecord* slice = nullptr;
  std::string_view home_file;  ///< home file of the tensor, or of its logical tensor; may be empty
  /// Name of the stored tensor that this is a stretch of (else empty), first byte of the stretch in
  /// it, and shape of the stretch.
  std::string piece_of;
  std::uint64_t piece_offset = 0;
  formats::Shape piece_shape;
  bool is_turned = false;  ///< the stored tensor has columns of its pieces as rows
};

/// Reads the per-tensor records of one directory as a stream, so that memory does not grow with
/// them, and calls `take` for every stored tensor that they promise, in their order. Other fields
/// are passed over. Throws kCorrupt for a line that is no record, kMismatch when the content hash
/// differs from `expected` (by then `take` has had them all).
void read_recorded_slices(const std::filesystem::path& records, const Hash128& expected,
                          const std::function<void(const RecordedSlice&)>& take);

/// A weights file of a directory.
struct SliceFile {
  std::uint32_t index = 0;  ///< index in the join
  std::string name;         ///< relative to its directory, as records name it
};

/// The name of a whole, from that of a stored tensor of a file.
using WholeName = std::function<std::string(const std::string&)>;

/// Reads a file's header and tells the join its facts.
std::vector<formats::StoredTensor> read_stored(SliceJoin& join, std::uint32_t file);

/// Adds the stored tensors of some files of one directory, each at the place that the directory's
/// records give it. Reports to `faults`: files that cannot be read, tensors without a record and
/// records without a tensor (kMismatch), refusals of place_slice. `constants` are stored tensors
/// that belong to no tensor of the model.
void add_recorded(SliceJoin& join, std::span<const SliceFile> files,
                  const std::filesystem::path& directory, const Hash128& records_hash,
                  const WholeName& whole_name, ErrorList& faults,
                  const std::set<std::string, std::less<>>& constants = {});

/// parallel_for, with errors that each call throws or adds to its list collected in order.
void collect_parallel(std::size_t count, std::size_t threads, ErrorList& faults,
                      const std::function<void(std::size_t, ErrorList&)>& body);

}  // namespace ingot::shard
