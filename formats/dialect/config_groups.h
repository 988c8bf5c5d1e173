#pragma once

#include <optional>
#include <string>
#include <vector>

#include "formats/dialect/written_groups.h"
#include "formats/modules/module_list.h"

namespace ingot::formats {

/// The `format` of a scheme in compressed-tensors, e.g. "nvfp4-pack-quantized". kUnsupported for
/// one that it does not hold.
std::string_view compressed_format(SchemeId scheme);

/// An entry of `config_groups`. Keys that say nothing are left out: older readers refuse a key that
/// they do not know, even a null.
Json config_group(const QuantizationGroup& group, const std::vector<std::string>& targets);

/// The `config_groups` and `ignore` of a compressed-tensors block, as engines read them: what is
/// ignored is plain, else the first group with a matching target counts.
class ConfigGroups {
 public:
  /// Throws kCorrupt when a list is none, or holds an expression that does not compile.
  explicit ConfigGroups(const Json& block);

  /// What the block says of a module; nothing when it is plain, or in a group that no scheme of
  /// ours fits.
  [[nodiscard]] std::optional<QuantizationGroup> group_of(std::string_view module) const;
  [[nodiscard]] bool is_ignored(std::string_view module) const;

 private:
  struct Group {
    bool is_for_all = false;  ///< target "Linear"
    ModuleList targets;
    std::optional<QuantizationGroup> meaning;
  };
  std::vector<Group> groups_;
  ModuleList ignored_;
};

}  // namespace ingot::formats
