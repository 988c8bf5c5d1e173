#include <algorithm>
#include <optional>

#include <fmt/format.h>

#include "check/rules/loader_rule_bodies.h"

// Tensor parallelism cuts rows or columns into equal parts, and a part must not begin inside of a
// group that shares a scale.

namespace ingot::formats::rule_bodies {
namespace {

/// What a rank's share of a dimension must be a multiple of, and the size of the dimension.
struct CutDimension {
  std::uint64_t size = 0, step = 1;
  std::string_view word;
};

std::optional<CutDimension> cut_dimension(const LogicalTensor& tensor) {
  if (tensor.rule == nullptr || tensor.shape.size() < 2) return std::nullopt;
  const SchemeId scheme = tensor.encoding.scheme;
  const bool has_blocks = scheme == SchemeId::kFp8Block || scheme == SchemeId::kInt8Block;
  const bool has_groups =
      scheme == SchemeId::kNvfp4 || scheme == SchemeId::kMxfp4 || scheme == SchemeId::kMxfp8;
  switch (tensor.rule->cut) {
    case Cut::kColumn: {
      // Groups of columns do not mind where rows are cut.
      std::uint64_t rows = tensor.shape[tensor.shape.size() - 2];
      if (tensor.rule->role == Role::kExpertsGateUp) rows /= 2;
      return CutDimension{
          .size = rows, .step = has_blocks ? tensor.encoding.block_rows : 1, .word = "rows"};
    }
    case Cut::kRow:
      return CutDimension{.size = tensor.shape.back(),
                          .step = has_blocks || has_groups ? tensor.encoding.block_cols : 1,
                          .word = "columns"};
    default:
      return std::nullopt;
  }
}

bool can_be_cut(const CutDimension& dimension, std::uint64_t ranks) {
  return dimension.size % ranks == 0 && dimension.size / ranks % dimension.step == 0;
}

}  // namespace

void cut_at_group_edge(const Checkpoint& checkpoint, const RuleOptions& options,
                       const Report& report) {
  const std::uint64_t ranks = options.tensor_parallel;
  // A rank's weights have been cut already.
  if (ranks < 2 || checkpoint.slicing() != nullptr) return;
  FindingsByKind found;
  for (const LogicalTensor& tensor : checkpoint.tensors()) {
    const std::optional<CutDimension> dimension = cut_dimension(tensor);
    if (!is_quantized(tensor) || !dimension || dimension->step == 0) continue;
    if (can_be_cut(*dimension, ranks)) continue;
    std::uint64_t largest = std::min(ranks - 1, std::max<std::uint64_t>(dimension->size, 1));
    while (largest > 1 && !can_be_cut(*dimension, largest)) --largest;
    found.add(tensor.rule,
              at(checkpoint, codes_of(checkpoint, tensor), ErrorCode::kShapeMismatch,
                 fmt::format("has {} {}, which {} ranks cannot cut at multiples of {} (at most {}; "
                             "experts are not cut under expert parallelism)",
                             dimension->size, dimension->word, ranks, dimension->step, largest)));
  }
  found.report(report);
}

}  // namespace ingot::formats::rule_bodies
