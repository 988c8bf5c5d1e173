#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "formats/base/error.h"
#include "formats/recognition/encoding_recognition.h"
#include "formats/recognition/part_names.h"

namespace ingot::formats {

/// The parts of one weight as they were found by name.
struct FoundParts {
  StoredParts stored;
  ScaleReach reach = ScaleReach::kAny;
  bool global_divides = false;
};

/// Parts and weights of a checkpoint, brought together by their names. By stored tensor.
struct PairedParts {
  std::vector<FoundParts> found;  ///< parts of weights; `stored` has the weight itself
  std::vector<bool> is_part;      ///< belongs to a weight, or should
};

/// Reports a part that is there twice (kDuplicate), and a part of a plain weight or of no weight
/// (kMissingTensor).
PairedParts pair_parts(const RecognitionInput& input, ErrorList& faults);

/// True if the tensor is of a weight in a form that is not read.
bool is_unread(const RecognitionInput& input, std::uint32_t stored);

/// Adds a fault of a stored tensor, with its file and name.
void add_fault(const RecognitionInput& input, std::uint32_t stored, ErrorCode code,
               std::string message, ErrorList& faults);

}  // namespace ingot::formats
