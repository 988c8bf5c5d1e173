#include <algorithm>
#include <bit>
#include <cmath>

#include <fmt/format.h>

#include "check/rules/loader_rule_values.h"
#include "formats/checkpoint/part_names.h"
#include "formats/container/float8.h"
#include "formats/storage/stored_names.h"

// FP8 codes and the scales beside them: one per block, row, tensor or 32 columns.

namespace ingot::formats::rule_bodies {
namespace {

constexpr std::uint64_t kMxColumns = 32;

bool is_float8(DType dtype) {
  return dtype == DType::kF8E4M3 || dtype == DType::kF8E5M2 || dtype == DType::kF8E4M3Fnuz ||
         dtype == DType::kF8E5M2Fnuz;
}

// An FP8 weight as stored, with the tensor that is named as its scale, if there is one.
struct Fp8Weight {
  const StoredTensor* weight = nullptr;
  const StoredTensor* scale = nullptr;
  ScaleReach reach = ScaleReach::kAny;
};

std::string_view stem_of(std::string_view weight) {
  constexpr std::string_view kWeight = ".weight";
  if (weight.ends_with(kWeight)) weight.remove_suffix(kWeight.size());
  return weight;
}

// `.weight_scale` of NVFP4 is F8_E4M3 too, and is no weight.
bool is_scale_name(std::string_view name) {
  const auto namings = part_namings();
  return std::any_of(namings.begin(), namings.end(), [&](const PartNaming& naming) {
    return naming.part != Part::kWeight && naming.is_distinct && name.ends_with(naming.suffix);
  });
}

// By name, not by encoding: what the checkpoint could not understand is looked at too.
std::vector<Fp8Weight> fp8_weights(const Checkpoint& checkpoint) {
  const auto stored = checkpoint.stored();
  const StoredNames by_name(stored);
  std::vector<Fp8Weight> weights;
  for (const StoredTensor& tensor : stored) {
    if (!is_float8(tensor.dtype) || is_scale_name(tensor.name)) continue;
    Fp8Weight weight;
    weight.weight = &tensor;
    const bool is_stacked = !tensor.name.ends_with(".weight");
    for (const PartNaming& naming : part_namings()) {
      if (naming.part != Part::kScale || naming.is_stacked != is_stacked) continue;
      const auto found = by_name.find(fmt::format("{}{}", stem_of(tensor.name), naming.suffix));
      if (!found) continue;
      weight.scale = &stored[*found];
      weight.reach = naming.reach;
      break;
    }
    weights.push_back(weight);
  }
  return weights;
}

std::vector<const StoredTensor*> scales_of(const std::vector<Fp8Weight>& weights) {
  std::vector<const StoredTensor*> scales;
  for (const Fp8Weight& weight : weights) {
    if (weight.scale != nullptr) scales.push_back(weight.scale);
  }
  return scales;
}

// Shapes that a scale may have, the usual one first.
std::vector<Shape> scale_shapes(const Fp8Weight& weight, std::array<std::uint64_t, 2> block) {
  const Shape& codes = weight.weight->shape;
  const Shape grid = block_scale_shape(codes, block[0], block[1]);
  const Shape groups = block_scale_shape(codes, 1, kMxColumns);
  const DType dtype = weight.scale->dtype;
  if (dtype == DType::kU8) return {groups};
  if (dtype == DType::kF8E8M0) return {grid, groups};
  if (weight.reach == ScaleReach::kBlock) return {grid};
  Shape column = codes;
  column.back() = 1;
  Shape per_row = codes;
  per_row.pop_back();
  Shape per_matrix = column;
  per_matrix[per_matrix.size() - 2] = 1;
  if (codes.size() > 2) return {grid, column, per_row, per_matrix};
  return {grid, column, per_row, {1}, {}};
}

bool has_scale_dtype(const Fp8Weight& weight, std::array<std::uint64_t, 2> block) {
  switch (weight.scale->dtype) {
    case DType::kF32:
    case DType::kBf16:
    case DType::kF8E8M0:
      return true;
    case DType::kF16:  // of rows and tensors; no loader copies a block's from it
      return weight.reach == ScaleReach::kAny && weight.weight->shape.size() > 1 &&
             weight.scale->shape != block_scale_shape(weight.weight->shape, block[0], block[1]);
    case DType::kU8:  // exponents, where a writer had no name for them
      return weight.reach == ScaleReach::kAny;
    default:
      return false;
  }
}

bool is_nan_code(std::byte code) {
  return (code & std::byte{0x7F}) == std::byte{kE4m3Nan};
}

OddValues nan_codes(const StoredTensor& /*tensor*/, std::span<const std::byte> bytes) {
  OddValues odd{.total = bytes.size()};
  std::byte any{};
  for (const std::byte code : bytes) any |= is_nan_code(code) ? std::byte{1} : std::byte{0};
  if (any == std::byte{}) return odd;
  odd.n = static_cast<std::uint64_t>(std::count_if(bytes.begin(), bytes.end(), is_nan_code));
  odd.first = static_cast<std::uint64_t>(std::find_if(bytes.begin(), bytes.end(), is_nan_code) -
                                         bytes.begin());
  return odd;
}

}  // namespace

void fp8_block_of_128(const Checkpoint& checkpoint, const RuleOptions&, const Report& report) {
  FindingsByKind found;
  for (const LogicalTensor& tensor : checkpoint.tensors()) {
    const Encoding& encoding = tensor.encoding;
    if (encoding.scheme != SchemeId::kFp8Block && encoding.scheme != SchemeId::kInt8Block) continue;
    if (encoding.block_rows == 128 && encoding.block_cols == 128) continue;
    // The config says it of all of them.
    found.add(nullptr, in_config(ErrorCode::kUnsupported,
                                 fmt::format("has weights in blocks of {} x {}, kernels are built "
                                             "for 128 x 128",
                                             encoding.block_rows, encoding.block_cols)));
  }
  found.report(report);
}

void fp8_weight_dtype(const Checkpoint& checkpoint, const RuleOptions&, const Report& report) {
  for (const StoredTensor& tensor : checkpoint.stored()) {
    if (!is_float8(tensor.dtype) || tensor.dtype == DType::kF8E4M3) continue;
    report(at(checkpoint, tensor, ErrorCode::kUnsupported,
              fmt::format("is {}, FP8 weights must be F8_E4M3", dtype_name(tensor.dtype))));
  }
}

void fp8_scale_present(const Checkpoint& checkpoint, const RuleOptions&, const Report& report) {
  // A scale goes by the name that the checkpoint's dialect gives it.
  const SchemeSpelling* spelling = find_spelling(checkpoint.dialect(), SchemeId::kFp8Block);
  if (spelling == nullptr) spelling = find_spelling(checkpoint.dialect(), SchemeId::kFp8Tensor);
  for (const Fp8Weight& weight : fp8_weights(checkpoint)) {
    if (weight.scale != nullptr) continue;
    const std::string name = spelling == nullptr
                                 ? fmt::format("{}.weight_scale", stem_of(weight.weight->name))
                                 : part_name(spelling->parts[1], weight.weight->name);
    report(at(checkpoint, *weight.weight, ErrorCode::kMissingTensor,
              fmt::format("has no scale '{}'", name)));
  }
}

void fp8_scale_dtype(const Checkpoint& checkpoint, const RuleOptions&, const Report& report) {
  const auto block = block_of(checkpoint);
  for (const Fp8Weight& weight : fp8_weights(checkpoint)) {
    if (weight.scale == nullptr || has_scale_dtype(weight, block)) continue;
    report(at(checkpoint, *weight.scale, ErrorCode::kDtypeMismatch,
              fmt::format("is {}, a block scale is F32, BF16 or F8_E8M0",
                          dtype_name(weight.scale->dtype))));
  }
}

void fp8_scale_shape(const Checkpoint& checkpoint, const RuleOptions&, const Report& report) {
  const auto block = block_of(checkpoint);
  for (const Fp8Weight& weight : fp8_weights(checkpoint)) {
    if (weight.scale == nullptr || weight.weight->shape.size() < 2) continue;
    const std::vector<Shape> allowed = scale_shapes(weight, block);
    if (std::find(allowed.begin(), allowed.end(), weight.scale->shape) != allowed.end()) continue;
    std::string wanted;
    for (const Shape& shape : allowed) wanted += (wanted.empty() ? "" : " or ") + shape_text(shape);
    report(
        at(checkpoint, *weight.scale, ErrorCode::kShapeMismatch,
           fmt::format("has shape {}, a weight of shape {} needs {}",
                       shape_text(weight.scale->shape), shape_text(weight.weight->shape), wanted)));
  }
}

void fp8_scale_values(const Checkpoint& checkpoint, const RuleOptions& options,
                      const Report& report) {
  const auto block = block_of(checkpoint);
  std::vector<const StoredTensor*> scales;
  for (const Fp8Weight& weight : fp8_weights(checkpoint)) {
    // MX exponents have a row of their own.
    const bool is_mx =
        weight.scale != nullptr && weight.weight->shape.size() > 1 &&
        weight.scale->shape == block_scale_shape(weight.weight->shape, 1, kMxColumns);
    if (weight.scale == nullptr || !has_scale_dtype(weight, block)) continue;
    const bool is_exponent =
        weight.scale->dtype == DType::kU8 || weight.scale->dtype == DType::kF8E8M0;
    if (!is_exponent || !is_mx) scales.push_back(weight.scale);
  }
  report_bad_scales(checkpoint, scales, options, report);
}

void fp8_ue8m0_claim(const Checkpoint& checkpoint, const RuleOptions& options,
                     const Report& report) {
  const auto& quantization = checkpoint.config().quantization;
  if (!quantization || quantization->scale_fmt != "ue8m0") return;
  // Zero and infinity are the business of fp8.scale-values.
  const auto is_odd = [](float scale) {
    return scale > 0 && std::isfinite(scale) && !is_e8m0_value(scale);
  };
  const std::vector<const StoredTensor*> scales =
      readable_scales(checkpoint, scales_of(fp8_weights(checkpoint)));
  report_odd(
      checkpoint, scales, options, odd_scales(is_odd),
      [&](const StoredTensor& scale, const OddValues& odd) {
        return at(checkpoint, scale, ErrorCode::kMismatch,
                  fmt::format("{} of {} scales are not powers of two, the first is {} at "
                              "element {}, but config.json says scale_fmt ue8m0 (remove it)",
                              odd.n, odd.total, odd.value, odd.first));
      },
      report);
}

void fp8_nan_code(const Checkpoint& checkpoint, const RuleOptions& options, const Report& report) {
  if (!options.deep) return;
  // E4M3 scales are read in any case, by nvfp4.scale-values.
  std::vector<const StoredTensor*> codes;
  for (const Fp8Weight& weight : fp8_weights(checkpoint)) {
    if (weight.weight->dtype == DType::kF8E4M3 && checkpoint.has_data(weight.weight->file))
      codes.push_back(weight.weight);
  }
  report_odd(
      checkpoint, codes, options, nan_codes,
      [&](const StoredTensor& tensor, const OddValues& odd) {
        return at(checkpoint, tensor, ErrorCode::kNonFinite,
                  fmt::format("holds {} NaN codes, the first at element {}", odd.n, odd.first));
      },
      report);
}

void fp8_merged_partition(const Checkpoint& checkpoint, const RuleOptions&, const Report& report) {
  FindingsByKind found;
  for (const LogicalTensor& tensor : checkpoint.tensors()) {
    if (tensor.encoding.scheme != SchemeId::kFp8Block || tensor.rule == nullptr) continue;
    std::uint64_t rows = tensor.shape.size() < 2 ? 0 : tensor.shape[tensor.shape.size() - 2];
    switch (tensor.rule->role) {
      case Role::kExpertsGateUp:
        rows /= 2;
        break;
      case Role::kQaProj:
      case Role::kQProj:
      case Role::kKProj:
      case Role::kDenseGate:
      case Role::kSharedGate:
      case Role::kExpertGate:
        break;
      default:
        continue;
    }
    // Without LoRA, MLA has a q_proj that nothing is merged with.
    if (tensor.rule->role == Role::kQProj && checkpoint.config().kv_lora_rank != 0) continue;
    const std::uint64_t step = tensor.encoding.block_rows;
    if (step == 0 || rows % step == 0) continue;
    found.add(tensor.rule, at(checkpoint, codes_of(checkpoint, tensor), ErrorCode::kShapeMismatch,
                              fmt::format("gives {} rows to a merged module, not a multiple of {}",
                                          rows, step)));
  }
  found.report(report);
}

}  // namespace ingot::formats::rule_bodies
