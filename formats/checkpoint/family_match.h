#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "formats/base/error.h"
#include "formats/base/pattern.h"
#include "formats/container/tensor.h"
#include "formats/family/family.h"
#include "formats/storage/tensor_source.h"

// Logical tensors held against the grammar of a family, under a config.

namespace ingot::formats {

/// The family, config and names that logical tensors are compared with.
struct FamilyMatch {
  const Family& family;
  const ModelConfig& config;
  std::span<const StoredTensor> stored;
  std::span<const SourceFile> files;
  const std::vector<Pattern>* allow_unknown = nullptr;  ///< names that need no explanation
  bool are_slices = false;  ///< true for a rank's slices, whose shapes match_slices checks
};

/// Gives every logical tensor its row, layer and expert, or marks it as unknown, which is judged by
/// judge_unknown(). Reports a shape that contradicts the config (kShapeMismatch), numbers that are
/// no floating point (kDtypeMismatch). A stack is taken in the order that its shape has. A family
/// without rows knows only the names of shared_rule() and finds no fault. An MTP layer with experts
/// of its own number may be left out of an output: those tensors get their layer and no row, and
/// loader rules tell of them. Returns false where names have another prefix than the family's,
/// which is one fault: all others would follow from it.
bool match_family(const FamilyMatch& with, std::vector<LogicalTensor>& tensors, ErrorList& faults);

/// The shape that the config promises for a tensor with a row, in the order of its stack.
Shape promised_shape(const LogicalTensor& tensor, const ModelConfig& config);

/// Layers whose experts and router agree on another number than config.json has for all layers, and
/// that number: of a model whose experts were pruned in some of its layers.
std::map<std::uint32_t, std::uint64_t> uneven_experts(const Family& family,
                                                      const ModelConfig& config,
                                                      std::span<const StoredTensor> stored);

/// The fault of such a layer, and the remedy if it is an MTP layer.
std::string uneven_text(std::uint32_t layer, std::uint64_t n_experts, const ModelConfig& config);

/// Gives tensors whose names begin as an alias of the family says the names that are meant, unless
/// another tensor has that name; `lost` likewise. Returns a remark per alias that was met.
std::vector<std::string> rename_aliases(const Family& family, std::vector<StoredTensor>& stored,
                                        std::vector<std::string>& lost);

/// Gives plain stacks that are stored as one matrix (TensorRule::is_flat) a side for the experts:
/// [experts, rows, columns], by the rows and columns of the config.
void see_flat_stacks(const Family& family, const ModelConfig& config,
                     std::vector<StoredTensor>& stored);

}  // namespace ingot::formats
