#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "inference/tokenizer/split_pattern.h"

namespace ingot::inference {

/// A text on its way to the model and the pieces that it is cut into so far: in order, apart, none
/// empty. Bytes between pieces are dropped.
struct SplitText {
  std::string text;
  std::vector<Span> pieces;
  /// Whether the first piece starts where the user's text starts.
  bool is_start = false;
};

/// What becomes of the matches of a pattern; named as in tokenizer.json.
enum class SplitBehavior : std::uint8_t {
  kIsolated,            ///< every match is a piece of its own
  kRemoved,             ///< matches are dropped
  kMergedWithPrevious,  ///< a match ends the piece before it
  kMergedWithNext,      ///< a match starts the piece after it
  kContiguous,          ///< matches that touch are one piece
};

/// Cuts every piece at the matches of a pattern, which sees one piece at a time. With `invert` what
/// lies between the matches counts as matches and the other way round.
void split_pieces(SplitText& split, const SplitPattern& pattern, SplitBehavior behavior,
                  bool invert);

}  // namespace ingot::inference
