#pragma once

#include <span>
#include <vector>

#include "formats/base/error.h"
#include "formats/base/pattern.h"
#include "formats/storage/tensor_source.h"

namespace ingot::formats {

/// What logical tensors are compared with.
struct FamilyMatch {
  const Family& family;
  const ModelConfig& config;
  std::span<const StoredTensor> stored;
  std::span<const SourceFile> files;
  const std::vector<Pattern>* allow_unknown = nullptr;  ///< these may be outside the grammar
  bool are_slices = false;  ///< of a rank: their shapes are match_slices' matter
};

/// Gives every logical tensor its row, layer and expert. Reports tensors that have no row
/// (kUnknownTensor, the list in one error), a shape that contradicts the config (kShapeMismatch),
/// numbers that are no floating point (kDtypeMismatch). A family without rows knows no names and
/// finds no fault.
void match_family(const FamilyMatch& with, std::vector<LogicalTensor>& tensors, ErrorList& faults);

}  // namespace ingot::formats
