#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "convert/plan/passes.h"
#include "convert/plan/repair.h"
#include "convert/recipe/composition.h"
#include "formats/composed.h"

namespace ingot::convert {

using formats::Activations;
using formats::GlobalScale;

namespace {

/// A member of a fused set, and its global scale as the output has it.
struct Member {
  PlannedTensor* planned = nullptr;
  GlobalScale written;
  bool is_turned = false;  ///< the output has the reciprocal

  [[nodiscard]] float factor() const { return written.divides ? 1 / written.value : written.value; }
};

Member member_of(PlannedTensor& planned, const GlobalScale& stored) {
  const bool divides =
      planned.action == Action::kRewrap ? planned.storage->global_divides : stored.divides;
  const bool is_turned = divides != stored.divides;
  return {.planned = &planned,
          .written = {.value = is_turned ? 1 / stored.value : stored.value, .divides = divides},
          .is_turned = is_turned};
}

/// Gives a set the largest of its scales, as it multiplies, so that no block scale grows.
void join(const Plan& plan, std::vector<Member>& set, ErrorList& refusals) {
  const auto [least, most] = std::ranges::minmax_element(set, {}, &Member::factor);
  const std::string& name = plan.tensor_of(*least->planned).name;
  if (most->factor() / least->factor() > kFarthestGlobals) {
    return refusals.add(ErrorCode::kBadScale, name,
                        "has a global scale of {}, and '{}', with which loaders fuse it, one of "
                        "{}: farther apart than block scales can make up for (take both from one "
                        "source, or give both a scheme)",
                        least->written.value, plan.tensor_of(*most->planned).name,
                        most->written.value);
  }
  for (Member& member : set) {
    if (member.written.value == most->written.value) continue;
    if (member.is_turned) {
      return refusals.add(ErrorCode::kUnsupported, plan.tensor_of(*member.planned).name,
                          "has a global scale that dialect {} turns over, and another one than "
                          "'{}' (compose in the dialect of its source, and convert that)",
                          plan.target.dialect->name, plan.tensor_of(*most->planned).name);
    }
    member.planned->joint_global = most->written.value;
  }
}

}  // namespace

void agree_on_globals(Plan& plan, ErrorList& refusals) {
  const ComposedFacts* facts = plan.recipe.choices.composed.get();
  if (facts == nullptr || facts->globals.empty()) return;
  std::map<std::string, std::vector<Member>> sets;
  for (PlannedTensor& planned : plan.tensors) {
    const formats::LogicalTensor& tensor = plan.tensor_of(planned);
    const auto global = facts->globals.find(tensor.name);
    const bool keeps_codes = planned.action == Action::kCopy || planned.action == Action::kRewrap;
    if (global == facts->globals.end() || !keeps_codes || planned.to != tensor.encoding.scheme)
      continue;
    if (planned.action == Action::kRewrap && planned.storage == nullptr) continue;  // was refused
    sets[fused_module(tensor)].push_back(member_of(planned, global->second));
  }
  for (auto& [key, set] : sets) {
    const auto other = std::ranges::find_if(set, [&](const Member& member) {
      return member.written.value != set.front().written.value;
    });
    if (other == set.end()) continue;
    if (facts->rescales) {
      join(plan, set, refusals);
      continue;
    }
    refusals.add(ErrorCode::kMismatch, plan.tensor_of(*other->planned).name,
                 "has a global scale of {}, and '{}', with which loaders fuse it, one of {}: they "
                 "take one for both (`fused: rescale` in the recipe computes block scales again "
                 "for one, and keeps codes; or take both from one source)",
                 other->written.value, plan.tensor_of(*set.front().planned).name,
                 set.front().written.value);
  }
}

void require_used_inputs(const Plan& plan, ErrorList& refusals) {
  const ComposedFacts* facts = plan.recipe.choices.composed.get();
  if (facts == nullptr || facts->inputs.empty()) return;
  const formats::StoredActivations said(plan.source);
  for (const PlannedTensor& planned : plan.tensors) {
    const formats::LogicalTensor& tensor = plan.tensor_of(planned);
    if (!facts->inputs.contains(tensor.name) || planned.action == Action::kDrop) continue;
    const Activations activations = planned.action == Action::kCopy ? said.of(tensor)
                                    : planned.storage != nullptr    ? planned.storage->activations
                                                                    : Activations::kWeightOnly;
    if (activations == Activations::kStatic) continue;
    refusals.add(ErrorCode::kMismatch, tensor.name,
                 "gets a scale of its activations from an overlay, and the output's config says "
                 "{} of them: no engine would use it (`activations: static` in the recipe)",
                 activations_name(activations));
  }
}

}  // namespace ingot::convert
