#include "convert/plan/exactness.h"

namespace ingot::convert {

using formats::CodeKind;
using formats::DType;
using formats::LogicalTensor;
using formats::Part;
using formats::SchemeFacts;
using formats::SchemeId;

namespace {

bool has_power_of_two_scales(const Plan& plan, const LogicalTensor& tensor) {
  if (formats::scheme_facts(tensor.encoding.scheme).scale_dtype == DType::kF8E8M0) return true;
  return tensor.encoding.stored.has(Part::kScale) &&
         plan.source.stored()[tensor.encoding.stored[Part::kScale]].dtype == DType::kF8E8M0;
}

// Decoded values are F32. BF16 holds a code times a power of two unless the product is below what
// it counts in, 2^-133: E2M1 codes go down to 2^-1, which no scale makes so small.
bool is_exact_cast(const Plan& plan, const LogicalTensor& tensor, SchemeId to) {
  const SchemeFacts& from = formats::scheme_facts(tensor.encoding.scheme);
  return to == SchemeId::kF32 || to == from.id ||
         (to == SchemeId::kBf16 && from.code == CodeKind::kE2m1 &&
          has_power_of_two_scales(plan, tensor));
}

// E4M3 holds every E2M1 code, and both have a power of two for 32 values. Scales that are given
// serve other values.
bool is_exact_encoding(const LogicalTensor& tensor, const PlannedTensor& planned) {
  const SchemeFacts& to = formats::scheme_facts(planned.to);
  return planned.scales == PlannedTensor::kNone && tensor.encoding.scheme == SchemeId::kMxfp4 &&
         to.code == CodeKind::kE4m3 && to.scale_dtype == DType::kF8E8M0;
}

// A global scale that divides in one dialect and multiplies in the other becomes its reciprocal.
bool turns_global(const LogicalTensor& tensor, const PlannedTensor& planned) {
  return tensor.encoding.stored.has(Part::kGlobal) && planned.storage != nullptr &&
         tensor.encoding.global_divides != planned.storage->global_divides;
}

}  // namespace

bool is_exact_by_rule(const Plan& plan, const PlannedTensor& planned) {
  const LogicalTensor& tensor = plan.tensor_of(planned);
  const bool is_exact_before =
      plan.target.via != Via::kBf16 || is_exact_cast(plan, tensor, SchemeId::kBf16);
  switch (planned.action) {
    case Action::kCast:
      return is_exact_before && is_exact_cast(plan, tensor, planned.to);
    case Action::kQuantize:
      return is_exact_before && is_exact_encoding(tensor, planned);
    case Action::kRewrap:
      return !turns_global(tensor, planned) && planned.find(Part::kDeqScale) == nullptr;
    default:
      return !planned.joint_global;
  }
}

RolesByExactness roles_by_exactness(const Plan& plan) {
  RolesByExactness roles;
  for (const PlannedTensor& planned : plan.tensors) {
    if (planned.action == Action::kDrop) continue;
    const LogicalTensor& tensor = plan.tensor_of(planned);
    roles[{is_exact_by_rule(plan, planned), tensor.encoding.scheme, planned.to}].insert(
        formats::role_name(role_of(tensor)));
  }
  return roles;
}

}  // namespace ingot::convert
