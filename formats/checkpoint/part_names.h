#pragma once

#include <span>
#include <string>

#include "formats/storage/encoding.h"

namespace ingot::formats {

/// The values that share one scale, by the name of the part.
enum class ScaleReach : std::uint8_t {
  kAny,    ///< a block, a row, a group of columns or the whole tensor: the shape says which
  kBlock,  ///< a block or a group of columns where the shape lets it, or the config claims blocks
};

/// A way to name a part: `stem + suffix` belongs to the weight `stem + ".weight"` (stacked experts:
/// to the weight `stem`). The suffixes of all dialects, and DeepSeek's own `.scale`.
struct PartNaming {
  std::string suffix;
  Part part{};
  /// Suffixes of stacked experts: their weights have no `.weight`.
  bool is_stacked = false;
  /// Names of this form mean parts and nothing else, so one without a weight is a fault.
  bool is_distinct = true;
  ScaleReach reach = ScaleReach::kAny;
  bool global_divides = false;  ///< true: Part::kGlobal divides the scales
};

/// Every naming of a part other than the codes, the longest suffix first, so that the first match
/// wins.
std::span<const PartNaming> part_namings();

/// A suffix that some dialect gives to codes, in place of `.weight` or after the name of stacked
/// experts.
struct PackedNaming {
  std::string suffix;       ///< `.weight_packed`, `_blocks`
  bool is_stacked = false;  ///< true: stacks [experts, rows, blocks of a row, bytes of a block]
};
std::span<const PackedNaming> packed_namings();
/// The row whose suffix a stored tensor's name has; null for any other tensor.
const PackedNaming* find_packed(const StoredTensor& stored);

/// The shape of stored codes as rows: [..., rows, elements], blocks put together.
Shape rows_of_codes(const StoredTensor& stored);

/// True if some dialect stores weights of this scheme with such a part.
bool is_part_of(SchemeId scheme, Part part);

/// `X.weight` for the codes `X.weight_packed`, `X` for those in `X_blocks`; any other name as it
/// is.
std::string weight_name(const StoredTensor& stored);

}  // namespace ingot::formats
