#include <array>
#include <numeric>

#include "convert/plan/layout_functions.h"
#include "convert/plan/passes.h"

namespace ingot::convert {

const LayoutFunctions& functions_of(const formats::Layout& layout) {
  // In the order of formats::LayoutId.
  static constexpr std::array kRows = {&kHubLayout, &kRanksLayout, &kDeepseekMpLayout};
  return *kRows.at(static_cast<std::size_t>(layout.id));
}

void set_places(Plan& plan, PlannedPart& part, std::span<const PlannedPlace> places) {
  part.first_place = static_cast<std::uint32_t>(plan.places.size());
  part.n_places = static_cast<std::uint32_t>(places.size());
  plan.places.insert(plan.places.end(), places.begin(), places.end());
}

PlannedFile& add_file(Plan& plan, std::string name) {
  PlannedFile& file = plan.files.emplace_back();
  file.members.push_back({.path = name, .ranks = {}});
  file.name = std::move(name);
  return file;
}

std::vector<std::uint32_t> ep_ranks_of(const Plan& plan, const PlannedTensor& planned) {
  const shard::Slicing& slicing = *plan.slicing;
  const formats::LogicalTensor& tensor = plan.tensor_of(planned);
  if (planned.cut.owner != shard::Owner::kExpert || slicing.topology.ep == 1) return {};
  const std::uint32_t layer = tensor.layer.value_or(0);
  if (tensor.expert) return slicing.experts.ranks_of(layer, *tensor.expert);
  const bool is_stack = tensor.shape.size() == 3;
  if (!is_stack) {  // the shared one, in a slot
    const auto n_experts = static_cast<std::uint32_t>(plan.source.config().n_routed_experts);
    return slicing.experts.ranks_of(layer, n_experts);
  }
  std::vector<std::uint32_t> all(slicing.topology.ep);
  std::iota(all.begin(), all.end(), 0U);
  return all;
}

void assign_files(Plan& plan) {
  functions_of(*plan.options.layout).assign_files(plan);
  for (PlannedFile& file : plan.files) {
    file.first_member = plan.n_members;
    plan.n_members += static_cast<std::uint32_t>(file.members.size());
  }
}

}  // namespace ingot::convert
