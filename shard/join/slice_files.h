#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "formats/base/hash.h"
#include "shard/join/slice_join.h"

namespace ingot::shard {

/// A weights file of a directory.
struct SliceFile {
  std::uint32_t index = 0;  ///< in the join
  std::string name;         ///< relative to its directory, as records name it
};

/// The name of a whole, from that of a stored tensor of a file.
using WholeName = std::function<std::string(const std::string&)>;

/// Reads a file's header and tells the join its facts.
std::vector<formats::StoredTensor> read_stored(SliceJoin& join, std::uint32_t file);

/// Adds the stored tensors of some files of one directory, each at the place that the directory's
/// records give it. Reports to `faults`: files that cannot be read, tensors without a record and
/// records without a tensor (kMismatch), what place_slice refuses.
void add_recorded(SliceJoin& join, std::span<const SliceFile> files,
                  const std::filesystem::path& directory, const Hash128& records_hash,
                  const WholeName& whole_name, ErrorList& faults);

/// parallel_for, with what each call throws or adds to its list collected in order.
void collect_parallel(std::size_t count, std::size_t threads, ErrorList& faults,
                      const std::function<void(std::size_t, ErrorList&)>& body);

/// Numbers the files of all directories, in the order in which they come: hard links to one file
/// share an index.
class FileNumbers {
 public:
  /// The index of a file, and whether it was new. Throws kNotFound or kIo for one that is not here,
  /// kMismatch for one of another size than `n_bytes`, where that is known.
  std::pair<std::uint32_t, bool> number(const std::filesystem::path& path, std::string name,
                                        std::optional<std::uint64_t> n_bytes, std::uint32_t holder);
  [[nodiscard]] std::vector<formats::WeightsFile> take_files() { return std::move(files_); }
  [[nodiscard]] std::vector<std::uint32_t> take_holders() { return std::move(holders_); }

 private:
  std::map<std::pair<std::uint64_t, std::uint64_t>, std::uint32_t> by_inode_;
  std::vector<formats::WeightsFile> files_;
  std::vector<std::uint32_t> holders_;
};

}  // namespace ingot::shard
