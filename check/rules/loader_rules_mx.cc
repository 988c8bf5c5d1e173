#include <fmt/format.h>

#include "check/rules/loader_rule_values.h"
#include "formats/container/float8.h"

// MXFP4 and MXFP8: one exponent per 32 columns.

namespace ingot::formats::rule_bodies {
namespace {

constexpr std::uint64_t kGroupColumns = 32;

bool is_mx(const LogicalTensor& tensor) {
  return tensor.encoding.scheme == SchemeId::kMxfp4 || tensor.encoding.scheme == SchemeId::kMxfp8;
}

}  // namespace

void mx_columns(const Checkpoint& checkpoint, const RuleOptions&, const Report& report) {
  FindingsByKind found;
  for (const LogicalTensor& tensor : checkpoint.tensors()) {
    if (!is_mx(tensor) || tensor.shape.empty() || tensor.shape.back() % kGroupColumns == 0)
      continue;
    found.add(tensor.rule,
              at(checkpoint, codes_of(checkpoint, tensor), ErrorCode::kShapeMismatch,
                 fmt::format("has {} columns, not a multiple of {} (leave it unquantized)",
                             tensor.shape.back(), kGroupColumns)));
  }
  found.report(report);
}

void mx_scale_dtype(const Checkpoint& checkpoint, const RuleOptions&, const Report& report) {
  FindingsByKind found;
  for (const LogicalTensor& tensor : checkpoint.tensors()) {
    if (!is_mx(tensor)) continue;
    const StoredTensor* scale = part_of(checkpoint, tensor, Part::kScale);
    if (scale == nullptr || scale->dtype == DType::kU8) continue;
    found.add(tensor.rule,
              at(checkpoint, *scale, ErrorCode::kDtypeMismatch,
                 fmt::format("is {}, loaders copy it by value into U8 (write its bytes as U8)",
                             dtype_name(scale->dtype))));
  }
  found.report(report);
}

void mx_scale_values(const Checkpoint& checkpoint, const RuleOptions& options,
                     const Report& report) {
  std::vector<const StoredTensor*> scales;
  for (const LogicalTensor& tensor : checkpoint.tensors()) {
    const StoredTensor* scale = part_of(checkpoint, tensor, Part::kScale);
    if (is_mx(tensor) && scale != nullptr) scales.push_back(scale);
  }
  report_bad_scales(checkpoint, scales, options, report);
}

}  // namespace ingot::formats::rule_bodies
