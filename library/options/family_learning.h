#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "convert/recipe/recipe.h"
#include "formats/checkpoint/checkpoint.h"
#include "formats/family/proposal/family_proposal.h"
#include "library/options/flag_table.h"

// A family made for a model that no family of the program describes: `ingot family learn`, and
// `--family auto`.

namespace ingot::library {

inline constexpr const char* kAutoFamily = "auto";
inline constexpr const char* kAutoFamilyHelp =
    "model family instead of config.json's; generic accepts any names, auto makes a family";

/// Opens the checkpoint in question under a family.
using OpenUnder = std::function<formats::Checkpoint(const std::string& family)>;

/// --accept-family, which belongs to `--family auto`.
Flag accept_flag(bool& accept, const std::string& family);

/// A small random model that another program has made of a model's class, and has computed.
struct ClassModel {
  std::filesystem::path checkpoint, recorded;  ///< its folder, and what verify --reference reads
};

/// Makes `learned` the family under which ingot computes the tokens and states of the class's
/// model, by the forward pass of a family of the program, the nearest first. Returns the name of
/// that one, and no reason; or the reason why none of them does.
struct ComputedFamily {
  std::string forward, reason;
};
ComputedFamily compute_family(const OpenUnder& open, const formats::FamilyEvidence& evidence,
                              const ClassModel& model, formats::LearnedFamily& learned);

/// The family of a checkpoint (formats::learn_family), with what values of its stacks of experts
/// tell: they are read, and put into `evidence`, where nothing else tells the order of their sides,
/// or of gates and ups.
formats::LearnedFamily learned_family(const OpenUnder& open, formats::FamilyEvidence& evidence);

/// The words of a proof without a computation; for formats::with_proof().
std::string structure_proof(const formats::LearnedFamily& learned);
/// Open questions, and faults, a line each, with the option that settles a question.
std::string open_text(const formats::LearnedFamily& learned);

/// The family under which a conversion with `--family auto` reads its source: the one made for it
/// where that is proven, or accepted; else `generic`. Throws kUnsupported, with the remedy, for a
/// recipe that quantizes and a family that is neither.
std::string settle_family(const OpenUnder& open, bool accept, const convert::Recipe& recipe);

}  // namespace ingot::library
