#pragma once

#include <vector>

#include "formats/checkpoint/encoding_recognition.h"
#include "formats/checkpoint/part_names.h"

namespace ingot::formats {

/// The parts of one weight as they were found by name.
struct FoundParts {
  StoredParts stored;
  ScaleReach reach = ScaleReach::kAny;
  bool global_divides = false;
};

/// By stored tensor.
struct PairedParts {
  std::vector<FoundParts> found;  ///< of weights; `stored` has the weight itself
  std::vector<bool> is_part;      ///< belongs to a weight, or should
};

/// Brings parts and weights together by their names. Reports a part twice (kDuplicate), a part
/// beside a plain weight or beside none (kMissingTensor).
PairedParts pair_parts(const RecognitionInput& input, ErrorList& faults);

}  // namespace ingot::formats
