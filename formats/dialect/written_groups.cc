#include "formats/dialect/written_groups.h"

#include <algorithm>

#include "formats/dialect/dialect_table.h"
#include "formats/family/norm_roles.h"

namespace ingot::formats {

QuantizationGroup group_of(const WrittenTensor& tensor, const ModelConfig& source) {
  QuantizationGroup group{.scheme = tensor.scheme, .activations = tensor.activations};
  if (scheme_facts(tensor.scheme).group_rows > 1) {
    const bool is_known = tensor.block[0] != 0 && tensor.block[1] != 0;
    group.block = is_known ? tensor.block : fp8_block_size(source);
  }
  return group;
}

namespace {

bool is_plain_matrix(const WrittenTensor& tensor) {
  if (tensor.fp8_by_default()) return true;
  const bool may_be_matrix = tensor.rank == 0 || tensor.rank == 2;
  if (!may_be_matrix || !tensor.name.ends_with(".weight")) return false;
  if (tensor.rule != nullptr && is_norm(tensor.rule->role)) return false;
  return !module_name(tensor.name).ends_with("norm");
}

}  // namespace

WrittenGroups written_groups(const WrittenModel& model) {
  WrittenGroups result;
  for (const WrittenTensor& tensor : model.tensors) {
    if (scheme_facts(tensor.scheme).quantized)
      result.groups.push_back(group_of(tensor, model.source));
    // 46,000 tensors of a few groups: keep the list short.
    if (result.groups.size() > 64) {
      std::sort(result.groups.begin(), result.groups.end());
      result.groups.erase(std::unique(result.groups.begin(), result.groups.end()),
                          result.groups.end());
    }
  }
  std::sort(result.groups.begin(), result.groups.end());
  result.groups.erase(std::unique(result.groups.begin(), result.groups.end()), result.groups.end());
  for (const WrittenTensor& tensor : model.tensors) {
    std::uint32_t cls = 0;
    if (scheme_facts(tensor.scheme).quantized) {
      const auto at = std::lower_bound(result.groups.begin(), result.groups.end(),
                                       group_of(tensor, model.source));
      cls = static_cast<std::uint32_t>(at - result.groups.begin()) + 1;
    } else if (!is_plain_matrix(tensor)) {
      continue;
    }
    result.modules.push_back({.name = std::string(module_name(tensor.name)), .cls = cls});
  }
  return result;
}

}  // namespace ingot::formats
