#pragma once

#include <optional>
#include <span>
#include <string_view>

#include "formats/dialect/dialect.h"

namespace ingot::formats {

/// A word by which msmodelslim's description says how a tensor is held.
struct DescribedType {
  std::string_view name;
  /// The scheme of such a weight, kBf16 for every plain one; nullopt when this version reads none.
  std::optional<SchemeId> scheme;
  Activations activations{};            ///< treatment, for quantized weights
  std::span<const PartRow> needs = {};  ///< parts without which loaders cannot compute
};

/// Null for a word that no loader knows.
const DescribedType* find_described_type(std::string_view name);

}  // namespace ingot::formats
