#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace ingot::verify {

/// How closely two checkpoints are compared. Each level can be asked for by itself.
enum class Level : std::uint8_t {
  kStructure,  ///< names, shapes, schemes, scales, config, lists, side files, hashes, loader rules
  kWeights,    ///< every value, decoded
  kLayers,     ///< hidden states after every layer, routing, logits
  kGreedy,     ///< the tokens that both generate
  kDraft,      ///< the drafts of their MTP layers, against the likeliest token of each
};

/// A row per level.
struct LevelFacts {
  Level level;
  std::string_view name;     ///< word of --levels
  std::string_view summary;  ///< one line for --help and docs
  bool runs_model = false;
};

std::span<const LevelFacts> levels();
std::string_view level_name(Level level);
bool runs_model(Level level);
/// `structure,weights`; "all" means every level (draft where both sides have an MTP layer).
/// kInvalidArgument for an unknown or empty word. Ascending, without repetition.
std::vector<Level> parse_levels(std::string_view text);

}  // namespace ingot::verify
