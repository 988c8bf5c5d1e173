#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace ingot::formats {

/// model.safetensors.index.json, or what another writer calls it. Tensors in the order of the file.
struct CheckpointIndex {
  std::string name;                                             ///< of its file
  std::vector<std::pair<std::string, std::string>> weight_map;  ///< tensor name to bare file name
};

/// Parses an index. File names must be bare (no '/', no '..'), names unique, values strings.
/// `total_size` is ignored: published files have it wrong. Its file is `name`. Throws kCorrupt or
/// kDuplicate.
CheckpointIndex parse_checkpoint_index(std::string_view text, std::string_view name);

/// The index text: metadata.total_size is the sum of tensor bytes, keys sorted, indented by two.
std::string checkpoint_index_text(const CheckpointIndex& index, std::uint64_t total_bytes);

/// `model-00003-of-00163.safetensors`; `model.safetensors` when there is one file. 1-based.
std::string shard_file_name(std::uint64_t number, std::uint64_t total);

}  // namespace ingot::formats
