#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "convert/plan/plan.h"

namespace ingot::cli {

class FlagTable;

/// The words of --layout, --tp and their kin, as given.
struct SlicingWords {
  std::string layout, expert_map, stages;
  std::optional<std::string> shared, fit, links;  ///< tp, refuse, yes
  std::optional<std::uint32_t> tp, ep, etp, pp, mp;
  bool redundant_experts = false, uneven_experts = false;
};

void declare_slicing(FlagTable& table, SlicingWords& words);

/// Puts what they mean into the options. Throws kInvalidArgument for words that contradict one
/// another, and what make_topology says of the numbers.
void read_slicing(const SlicingWords& words, convert::PlanOptions& options);

}  // namespace ingot::cli
