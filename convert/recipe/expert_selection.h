#pragma once

#include <array>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "convert/recipe/recipe.h"
#include "formats/kept_experts.h"

// The choice of the routed experts that stay (`ingot prune`).

namespace ingot::convert {

/// Statistics of `ingot calibrate` that rank experts.
enum class ExpertScore : std::uint8_t { kSaliency, kTokens };
inline constexpr std::array<std::string_view, 2> kExpertScores = {"saliency", "tokens"};

/// A choice as asked for: a number of experts with statistics to rank them by, or lists.
struct ExpertSelection {
  /// A share of the experts of a layer, below 1, or their number, from 2 on.
  std::optional<double> keep;
  ExpertScore by = ExpertScore::kSaliency;
  std::filesystem::path statistics;  ///< directory of `ingot calibrate`, or one of its files
  std::filesystem::path keep_map;    ///< JSON, as parse_kept_experts() reads it
  std::optional<formats::KeptExperts> list = {};  ///< lists of a manifest, in place of all others
};

/// Lists, and what a user should know about them.
struct SelectedExperts {
  formats::KeptExperts kept;
  std::vector<std::string> remarks;
};

/// Chooses the experts of each layer of `model`, which may be the first layers of `source`, of which
/// statistics must be made: those with the highest scores, in each group of the router as many; of
/// equal ones the first. A share that is no whole number of experts is rounded up. Throws
/// kInvalidArgument for a choice that contradicts itself, as complete_list() does, kMismatch for
/// statistics of another model, kMissingTensor, collected, for main layers without scores,
/// kCorrupt for scores that are not finite.
SelectedExperts select_experts(const formats::Checkpoint& source, const formats::Checkpoint& model,
                               const ExpertSelection& selection);

/// Gives the inputs of a recipe that have numbers of experts those of a model with fewer: what was
/// measured of `whole`, and the scales of a release with as many experts.
void keep_experts(Choices& choices, const formats::Checkpoint& whole,
                  const formats::KeptExperts& kept);

}  // namespace ingot::convert
