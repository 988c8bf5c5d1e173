#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>

#include "check/stored_hashes.h"
#include "formats/base/hash.h"
#include "formats/checkpoint/checkpoint.h"
#include "verify/structure/structure_findings.h"

namespace ingot::verify {

/// The side files of the source (tokenizer, chat template, generation_config.json, ...), read once
/// however many directories they are compared with.
class SourceSideFiles {
 public:
  SourceSideFiles(const formats::Checkpoint& source, formats::HashingOptions hashing);

  /// Finds ("structure.side-file") those that a directory lacks or has with other bytes, and those
  /// that the source does not have. Papers (a readme, a licence, pictures) and further files that
  /// no loader looks for are warnings. `label` stands before the names, e.g.
  /// `rank-00001-of-00004/`.
  void compare(const std::filesystem::path& directory, const std::string& label,
               StructureFindings& found);

 private:
  [[nodiscard]] const Hash128& hash_of(const std::string& path);

  std::filesystem::path directory_;
  formats::HashingOptions hashing_;
  std::map<std::string, std::uint64_t> sizes_;
  std::map<std::string, Hash128> hashes_;
};

}  // namespace ingot::verify
