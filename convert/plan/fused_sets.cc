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

void require_alike(const formats::TensorSource& source, const Plan& plan,
                   const std::vector<std::uint32_t>& members, Refusals& refusals) {
  const PlannedTensor& first = plan.tensors[members.front()];
  const std::string& first_name = source.tensors()[first.tensor].name;
  const auto is_quantized = [](const PlannedTensor& planned) {
    return formats::scheme_facts(planned.to).quantized;
  };
  for (const std::uint32_t member : members) {
    const PlannedTensor& other = plan.tensors[member];
    const std::string& name = source.tensors()[other.tensor].name;
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

void join_fused_tensors(const formats::TensorSource& source, Plan& plan, Refusals& refusals) {
  std::map<FusedKey, std::vector<std::uint32_t>> fused;
  for (std::uint32_t i = 0; i < plan.tensors.size(); ++i) {
    if (plan.tensors[i].action == Action::kDrop) continue;
    fused[fused_key(source.tensors()[plan.tensors[i].tensor])].push_back(i);
  }
  for (auto& [key, members] : fused) {
    require_alike(source, plan, members, refusals);
    const PlannedTensor& first = plan.tensors[members.front()];
    if (first.action == Action::kQuantize && has_global(first))
      plan.fused_sets.push_back(std::move(members));
  }
  std::sort(plan.fused_sets.begin(), plan.fused_sets.end());
  for (std::uint32_t set = 0; set < plan.fused_sets.size(); ++set) {
    for (const std::uint32_t index : plan.fused_sets[set]) plan.tensors[index].fused_set = set;
  }
}

}  // namespace ingot::convert
