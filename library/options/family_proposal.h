#pragma once

#include <string>
#include <vector>

#include "convert/recipe/recipe.h"
#include "formats/checkpoint/checkpoint.h"
#include "library/options/flag_table.h"

// `--family auto`: a family proposed for an unknown model.

namespace ingot {

inline constexpr const char* kAutoFamily = "auto";
inline constexpr const char* kAutoFamilyHelp =
    "model family instead of config.json's; generic accepts any names, auto proposes a family";

/// The use of the proposal.
struct ProposalFlags {
  std::string file;     ///< --write-family
  bool accept = false;  ///< --accept-family
};
/// Flags that belong to `--family auto`.
std::vector<Flag> proposal_flags(ProposalFlags& flags, const std::string& family);

/// The YAML proposed for a checkpoint, and formats::other_share().
struct ProposedFamily {
  std::string yaml, share;
};
/// For a checkpoint, opened under the family `generic`. Written to --write-family where that is
/// given; kExists for a file that is there.
ProposedFamily proposed_family(const formats::Checkpoint& source, const ProposalFlags& flags);

/// The family under which a conversion with `--family auto` reads its source: the proposal where it
/// is accepted, else `generic`. Throws kUnsupported, with the remedy, for a recipe that quantizes
/// and a proposal that was not accepted.
std::string settle_family(const formats::Checkpoint& source, const ProposalFlags& flags,
                          const convert::Recipe& recipe);

}  // namespace ingot
