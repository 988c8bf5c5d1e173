#include "convert/plan/exactness.h"

#include <fmt/format.h>

namespace ingot::convert {

using formats::CodeKind;
using formats::DType;
using formats::LogicalTensor;
using formats::SchemeFacts;
using formats::SchemeId;
using Kind = Exactness::Kind;

namespace {

Exactness where(std::string condition) {
  return {.kind = Kind::kWhere, .condition = std::move(condition)};
}

/// Significant bits of a number of a plain scheme.
unsigned significant_bits(SchemeId scheme) {
  switch (scheme) {
    case SchemeId::kBf16:
      return 8;
    case SchemeId::kF16:
      return 11;
    default:
      return 24;
  }
}

bool has_power_of_two_scales(const Plan& plan, const LogicalTensor& tensor) {
  if (formats::scheme_facts(tensor.encoding.scheme).scale_dtype == DType::kF8E8M0) return true;
  return tensor.encoding.stored.has(formats::Part::kScale) &&
         plan.source.stored()[tensor.encoding.stored[formats::Part::kScale]].dtype ==
             DType::kF8E8M0;
}

/// Decoded values are F32. Fewer bits hold a code times a power of two unless the product is below
/// what they count in: E2M1 codes go down to 2^-1, E4M3 codes to 2^-9, BF16 to 2^-133.
Exactness of_cast(const Plan& plan, const LogicalTensor& tensor, SchemeId to) {
  const SchemeFacts& from = formats::scheme_facts(tensor.encoding.scheme);
  if (to == SchemeId::kF32 || from.id == to) return {};
  if (!from.quantized) {
    return where(
        fmt::format("values have at most {} significant bits, in its range", significant_bits(to)));
  }
  if (!has_power_of_two_scales(plan, tensor)) {
    return where(
        fmt::format("code times scale has at most {} significant bits", significant_bits(to)));
  }
  if (to == SchemeId::kF16) return where("values are in the range of F16");
  return from.code == CodeKind::kE2m1 ? Exactness{} : where("scales are at least 2^-124");
}

/// MXFP4 in NVFP4 keeps its codes (docs/formats.md, "MXFP4 to NVFP4"). E4M3 holds every E2M1 code:
/// one scale for several of the source's holds them if the largest code is at most 448 of it, and
/// the smallest a multiple of 2^-9. 6 x 2^e gives the scale 2^(e - 6), and 0.5 x 2^(e - 14) is 2^-9
/// of that.
Exactness of_encoding(const Plan& plan, const LogicalTensor& tensor, const PlannedTensor& planned) {
  const SchemeId from = tensor.encoding.scheme, to = planned.to;
  // Scales that are given serve other values.
  if (planned.scales != PlannedTensor::kNone) return {.kind = Kind::kRounded, .condition = {}};
  const bool is_mxfp4 = from == SchemeId::kMxfp4;
  if (is_mxfp4 && to == SchemeId::kMxfp8) return {};
  if (is_mxfp4 && to == SchemeId::kNvfp4)
    return where("scales of weights that are fused differ by at most 2^17, and all are mxfp4");
  const bool has_power_of_two_blocks =
      to == SchemeId::kFp8Block && plan.target.encode.fp8_grid == quantize::Fp8Grid::kUe8m0;
  if (has_power_of_two_blocks && is_mxfp4) return where("scales of a block differ by at most 2^14");
  if (has_power_of_two_blocks && from == SchemeId::kMxfp8)
    return where("scales of a block are equal");
  return {.kind = Kind::kRounded, .condition = {}};
}

/// Whether codes are kept under a global scale that divides in one dialect and multiplies in the
/// other.
bool turns_global(const LogicalTensor& tensor, const PlannedTensor& planned) {
  return tensor.encoding.stored.has(formats::Part::kGlobal) && planned.storage != nullptr &&
         tensor.encoding.global_divides != planned.storage->global_divides;
}

}  // namespace

std::string exactness_text(const Exactness& exactness) {
  switch (exactness.kind) {
    case Kind::kAlways:
      return "yes";
    case Kind::kWhere:
      return fmt::format("where {}", exactness.condition);
    case Kind::kRounded:
      return "no, rounded to codes";
  }
  return {};
}

Exactness exactness_of(const Plan& plan, const PlannedTensor& planned) {
  const LogicalTensor& tensor = plan.tensor_of(planned);
  switch (planned.action) {
    case Action::kCast:
      return of_cast(plan, tensor, planned.to);
    case Action::kQuantize:
      return of_encoding(plan, tensor, planned);
    case Action::kRepackage:
      return turns_global(tensor, planned) ? where("reciprocals of global scales are exact")
                                           : Exactness{};
    default:
      return {};
  }
}

RolesByExactness roles_by_exactness(const Plan& plan) {
  RolesByExactness roles;
  for (const PlannedTensor& planned : plan.tensors) {
    if (planned.action == Action::kDrop) continue;
    const LogicalTensor& tensor = plan.tensor_of(planned);
    const formats::Role role = tensor.rule == nullptr ? formats::Role::kOther : tensor.rule->role;
    roles[{exactness_of(plan, planned), tensor.encoding.scheme, planned.to}].insert(
        formats::role_name(role));
  }
  return roles;
}

}  // namespace ingot::convert
