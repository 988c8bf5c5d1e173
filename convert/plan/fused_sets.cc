#include <algorithm>
#include <map>

#include <fmt/format.h>

#include "convert/plan/decide.h"

namespace ingot::convert {

using formats::Fuse;
using formats::LogicalTensor;

namespace {

std::string_view scheme_name(formats::SchemeId id) {
  return formats::scheme_facts(id).name;
}

bool has_global(const PlannedTensor& planned) {
  const quantize::Scheme* scheme = quantize::find_scheme(planned.to);
  return scheme != nullptr && scheme->global != nullptr;
}

void require_alike(const Plan& plan, const std::vector<std::uint32_t>& fused, Refusals& refusals) {
  const PlannedTensor& first = plan.tensors[fused.front()];
  const std::string& first_name = plan.tensor_of(first).name;
  const auto is_quantized = [](const PlannedTensor& planned) {
    return formats::scheme_facts(planned.to).quantized;
  };
  for (const std::uint32_t index : fused) {
    const PlannedTensor& other = plan.tensors[index];
    const std::string& name = plan.tensor_of(other).name;
    if (other.to != first.to && (is_quantized(other) || is_quantized(first))) {
      refusals.add(ErrorCode::kInvalidArgument,
                   fmt::format("loaders fuse it with {}, which becomes {} (give both one scheme)",
                               first_name, scheme_name(first.to)),
                   name);
    } else if (has_global(first) && other.action != first.action) {
      refusals.add(ErrorCode::kInvalidArgument,
                   fmt::format("loaders fuse it with {}, and the two would have different global "
                               "scales (cast the source to bf16 first)",
                               first_name),
                   name);
    }
  }
}

}  // namespace

FusedKey fused_key(const LogicalTensor& tensor) {
  const std::string_view module = formats::module_name(tensor.name);
  const Fuse fuse = tensor.rule != nullptr ? tensor.rule->fuse : Fuse::kNone;
  // The indexer's wk is joined after decoding, so it shares nothing.
  if (fuse == Fuse::kNone || fuse == Fuse::kIndexerK || tensor.shape.size() < 2)
    return {std::string(module), Fuse::kNone};
  return {std::string(module.substr(0, module.rfind('.'))), fuse};
}

void join_fused_tensors(Plan& plan, Refusals& refusals) {
  std::map<FusedKey, std::vector<std::uint32_t>> by_key;
  for (std::uint32_t i = 0; i < plan.tensors.size(); ++i) {
    if (plan.tensors[i].action == Action::kDrop) continue;
    by_key[fused_key(plan.tensor_of(plan.tensors[i]))].push_back(i);
  }
  for (auto& [key, fused] : by_key) {
    require_alike(plan, fused, refusals);
    const PlannedTensor& first = plan.tensors[fused.front()];
    if (first.action == Action::kQuantize && has_global(first))
      plan.fused_sets.push_back(std::move(fused));
  }
  std::sort(plan.fused_sets.begin(), plan.fused_sets.end());
  for (std::uint32_t set = 0; set < plan.fused_sets.size(); ++set) {
    for (const std::uint32_t index : plan.fused_sets[set]) plan.tensors[index].fused_set = set;
  }
}

}  // namespace ingot::convert
