#pragma once

#include <cstdint>
#include <set>
#include <string>

#include "formats/config/model_config.h"

// The layers that a row of a proposal is in.

namespace ingot::formats {

/// The key `layers` of a row, and how far it is a guess.
struct RowLayers {
  std::string text;          ///< `, layers: moe`, or empty
  std::string guess;         ///< reason why it is a guess; empty: it is none
  bool is_optional = false;  ///< true: no key says in which layers the row is
  bool is_in_mtp = false;    ///< true: there is the same row once more, with `layers: mtp`
};

/// Finds the key for a row whose tensors are in these layers: a word that families have, else a
/// list of the config with an entry per layer that has one set of values there and others
/// elsewhere. Whole words are no such list, however many letters they have. MTP layers that no such
/// word has with the main ones get a row of their own.
RowLayers row_layers(const std::set<std::uint32_t>& layers, const ModelConfig& config);

}  // namespace ingot::formats
