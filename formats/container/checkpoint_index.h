#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "formats/json/json_form.h"

namespace ingot::formats {

inline constexpr std::string_view kIndexName = "model.safetensors.index.json";

/// Entries of an index other than its map, and the form of its text.
struct IndexFrame {
  /// `total_size`, `total_parameters`, ...: an object of scalars, in the order of the file; null
  /// without any.
  JsonValue metadata;
  JsonForm form;
};

/// model.safetensors.index.json, or the index of another writer. Tensors in the order of the file.
struct CheckpointIndex {
  std::string name;                                             ///< name of the index file
  std::vector<std::pair<std::string, std::string>> weight_map;  ///< tensor name to bare file name
  IndexFrame frame = {};
};

/// Parses an index. File names must be bare (no '/', no '..'), names unique, values strings.
/// `total_size` is not judged: published files have it wrong. Lists and objects of the metadata are
/// left out, and all of it where it has more than 64 entries. Its file is `name`. Throws kCorrupt
/// or kDuplicate.
CheckpointIndex parse_checkpoint_index(std::string_view text, std::string_view name);

/// The index text in the form of its frame: metadata.total_size is the sum of tensor bytes, other
/// metadata are the frame's, names are sorted.
std::string checkpoint_index_text(const CheckpointIndex& index, std::uint64_t total_bytes);

/// `model-00003-of-00163.safetensors`; `model.safetensors` when there is one file. 1-based.
std::string shard_file_name(std::uint64_t number, std::uint64_t total);

}  // namespace ingot::formats
