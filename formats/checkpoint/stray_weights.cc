#include "formats/checkpoint/stray_weights.h"

#include <algorithm>
#include <set>

#include <fmt/format.h>

#include "formats/base/fault_lines.h"
#include "formats/checkpoint/checkpoint_listing.h"
#include "formats/checkpoint/weights_headers.h"

namespace ingot::formats {
namespace {

/// None where the header cannot be read: such a file is no part of anything.
std::vector<StoredTensor> tensors_of(const std::filesystem::path& directory,
                                     const std::string& file) {
  std::vector<WeightsFile> located = locate_files({file}, directory, {});
  ErrorList ignored;
  return read_headers(located, 1, ignored);
}

std::string refusal(const StrayCheck& check, const std::string& tensor) {
  if (!check.index_name.empty()) {
    return fmt::format(
        "is not named by {}, nor is its tensor '{}' (fetch the index again, or move the file away)",
        check.index_name, tensor);
  }
  return fmt::format(
      "stands beside the weights without an index, and holds '{}' (fetch {}, or move the file "
      "away)",
      tensor, kIndexName);
}

}  // namespace

void settle_strays(const StrayCheck& check, const std::vector<std::string>& files,
                   std::vector<LeftOut>& left_out, ErrorList& faults) {
  if (files.empty()) return;
  std::set<std::string> kinds;
  for (const StoredTensor& tensor : check.stored) kinds.insert(name_kind(tensor.name));
  const NameGrammar grammar(check.family, check.config);
  for (const std::string& file : files) {
    const std::vector<StoredTensor> tensors = tensors_of(check.directory, file);
    const auto ours = std::find_if(tensors.begin(), tensors.end(), [&](const auto& tensor) {
      return !check.names.find(tensor.name) &&
             (kinds.contains(name_kind(tensor.name)) || grammar.match(tensor.name).has_value());
    });
    if (ours == tensors.end()) {
      left_out.push_back({.path = file, .reason = kUnlistedWeights});
    } else {
      faults.add(Error(ErrorCode::kMissingTensor, refusal(check, ours->name)).in_file(file));
    }
  }
}

}  // namespace ingot::formats
