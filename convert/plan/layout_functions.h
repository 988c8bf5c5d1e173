#pragma once

#include <span>
#include <string>
#include <vector>

#include "convert/plan/plan.h"

namespace ingot::convert {

/// What a conversion does for a layout: the functions of its row, by formats::LayoutId.
struct LayoutFunctions {
  /// Throws, collected, for tensors that the layout cannot hold; null: it holds all.
  void (*require_holdable)(const Plan& plan) = nullptr;
  /// The same for what --tp-fit has made of them.
  void (*require_fits)(const Plan& plan) = nullptr;
  /// Assigns parts to files and names these.
  void (*assign_files)(Plan& plan);
  /// The name of a stored tensor, from that of the hub; null: the same.
  std::string (*stored_name)(const std::string& hub_name,
                             const formats::ModelConfig& config) = nullptr;
  /// Fills the JSON that only this layout has; null: none.
  void (*derive_json)(Plan& plan) = nullptr;
};
const LayoutFunctions& functions_of(const formats::Layout& layout);

extern const LayoutFunctions kHubLayout, kRanksLayout, kDeepseekMpLayout;

/// Ranks load several files at once, and a hub file is no larger.
inline constexpr std::uint64_t kRankFileBytes = 5'000'000'000;

/// Appends the places of a part to Plan::places.
void set_places(Plan& plan, PlannedPart& part, std::span<const PlannedPlace> places);
/// Appends a file that is not one of a row.
PlannedFile& add_file(Plan& plan, std::string name);
/// EP ranks that hold a tensor; empty: it is not an expert's, or every rank has all experts.
std::vector<std::uint32_t> ep_ranks_of(const Plan& plan, const PlannedTensor& planned);

}  // namespace ingot::convert
