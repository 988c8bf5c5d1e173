#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "convert/plan/plan.h"

namespace ingot {

struct FlagTable;

/// The flags --layout, --tp and their kin, as given.
struct SlicingFlags {
  std::string layout, expert_map, stages;
  std::optional<std::string> shared, fit, links;  ///< tp, refuse, yes
  std::optional<std::uint32_t> tp, ep, etp, pp, mp;
  bool redundant_experts = false, uneven_experts = false;
};

void declare_slicing(FlagTable& table, SlicingFlags& flags);

/// Puts the flags into the options. Throws kInvalidArgument for flags that contradict one another,
/// and as make_topology does.
void read_slicing(const SlicingFlags& flags, convert::PlanOptions& options);

}  // namespace ingot
