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
/// their least step: E2M1 codes go down to 2^-1, E4M3 codes to 2^-9, BF16 to 2^-133.
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

/// "a block", for the values that share a scale of a scheme.
std::string_view group_text(const SchemeFacts& facts) {
  if (facts.group_rows > 1) return "a block";
  return facts.group_rows == 1 ? "a row" : "weights that are fused";
}

/// MXFP4 in NVFP4 keeps its codes (docs/formats.md, "MXFP4 to NVFP4"). E4M3 holds every E2M1 code:
/// one scale for several of the source's holds them if the largest code is at most 448 of it, and
/// the smallest a multiple of 2^-9. 6 x 2^e gives the scale 2^(e - 6), and 0.5 x 2^(e - 14) is 2^-9
/// of that. INT8 takes a scale that all values are multiples of, if there is one.
Exactness of_encoding(const Plan& plan, const LogicalTensor& tensor, const PlannedTensor& planned) {
  const SchemeFacts& from = formats::scheme_facts(tensor.encoding.scheme);
  const SchemeFacts& to = formats::scheme_facts(planned.to);
  // Scales that are given serve other values.
  if (planned.scales != PlannedTensor::kNone) return {.kind = Kind::kRounded, .condition = {}};
  const bool is_mxfp4 = from.id == SchemeId::kMxfp4;
  const auto is_mx_of_e4m3 = [](const SchemeFacts& facts) {
    return facts.code == CodeKind::kE4m3 && facts.scale_dtype == DType::kF8E8M0;
  };
  if (is_mxfp4 && is_mx_of_e4m3(to)) return {};
  if (is_mxfp4 && to.id == SchemeId::kNvfp4)
    return where("scales of weights that are fused differ by at most 2^17, and all are mxfp4");
  const bool has_power_of_two_groups = to.code == CodeKind::kE4m3 &&
                                       to.scale_dtype == DType::kF32 &&
                                       plan.target.encode.fp8_grid == quantize::Fp8Grid::kUe8m0;
  if (has_power_of_two_groups && is_mxfp4)
    return where(fmt::format("scales of {} differ by at most 2^14", group_text(to)));
  if (has_power_of_two_groups && is_mx_of_e4m3(from))
    return where(fmt::format("scales of {} are equal", group_text(to)));
  if (from.code == CodeKind::kE4m3 && (has_power_of_two_groups || is_mx_of_e4m3(to))) {
    return where("scales are powers of two, and E4M3 has the values under those of their groups");
  }
  if (to.code == CodeKind::kInt8 && from.quantized && from.code != CodeKind::kE4m3) {
    return where(
        fmt::format("values of {} are multiples of one number, at most 127 of it", group_text(to)));
  }
  return {.kind = Kind::kRounded, .condition = {}};
}

/// Exactness after `--via bf16` as the first step.
Exactness after(const Exactness& first, Exactness then) {
  if (first.kind == Kind::kAlways || then.kind == Kind::kRounded) return then;
  if (then.kind == Kind::kAlways) return first;
  return where(fmt::format("{}, and {}", first.condition, then.condition));
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
  const Exactness via =
      plan.target.via == Via::kBf16 ? of_cast(plan, tensor, SchemeId::kBf16) : Exactness{};
  switch (planned.action) {
    case Action::kCast:
      return after(via, of_cast(plan, tensor, planned.to));
    case Action::kQuantize:
      return after(via, of_encoding(plan, tensor, planned));
    case Action::kRepackage:
      if (turns_global(tensor, planned)) return where("reciprocals of global scales are exact");
      return planned.find(formats::Part::kDeqScale) != nullptr
                 ? where("products of scales with the input's turn back")
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
