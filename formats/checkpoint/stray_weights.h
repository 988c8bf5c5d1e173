#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "formats/base/error.h"
#include "formats/base/foreign_files.h"
#include "formats/family/family.h"
#include "formats/storage/stored_names.h"

namespace ingot::formats {

/// A checkpoint as its index has it, for judging the weights files beside it.
struct StrayCheck {
  const std::filesystem::path& directory;
  const Family& family;
  const ModelConfig& config;
  std::span<const StoredTensor> stored;
  const StoredNames& names;
  std::string_view index_name;  ///< empty without an index
};

/// Decides about weights files that belong to no file list. One that holds a tensor of this model
/// which is nowhere else tells of an index that is out of date: kMissingTensor. Any other (the
/// weights once more, under other names, of an adapter, or nothing that can be read) is left out.
void settle_strays(const StrayCheck& check, const std::vector<std::string>& files,
                   std::vector<LeftOut>& left_out, ErrorList& faults);

}  // namespace ingot::formats
