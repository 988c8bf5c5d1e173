#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <vector>

#include "formats/base/error.h"

namespace ingot::check {

/// The facts about tokenizer.json that need no tree of its 100,000 entries.
struct Vocabulary {
  std::optional<Error> fault;  ///< reason why it cannot be read
  bool has_model = false, has_entries = false;
  std::vector<std::uint64_t> added_ids;  ///< ids in `added_tokens`
};

/// Reads a tokenizer.json of at most 256 MiB. `bare` names it in the fault.
Vocabulary read_vocabulary(const std::filesystem::path& path, std::string_view bare);

}  // namespace ingot::check
