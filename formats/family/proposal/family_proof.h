#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "formats/config/model_config.h"
#include "formats/family/proposal/family_proposal.h"

// The proof that a family describes a checkpoint.

namespace ingot::formats {

/// A family's text whose rows that parse_family() refuses are comments, with the reason: names of
/// one checkpoint may contradict each other in the meaning of their numbers.
std::string without_refused_rows(std::string yaml);

/// The gaps of the family of this text as a description of these weights: a row and a shape for
/// every tensor, each tensor that it promises, and fused sets that are whole and of one scheme, as
/// engines load them. Empty: nothing. A fault of each kind of tensors.
std::vector<std::string> faults_of(std::string_view yaml, const ModelConfig& config,
                                   std::span<const UnknownWeight> weights);

/// A family's text with a last line that says how it was proven.
std::string with_proof(std::string yaml, std::string_view proof);
/// The words of that line; empty where there is none, or where the text before it is another one
/// than was proven.
std::string proof_in(std::string_view yaml);

}  // namespace ingot::formats
