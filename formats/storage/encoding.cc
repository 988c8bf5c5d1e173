#include "formats/storage/encoding.h"

#include <algorithm>
#include <array>
#include <numeric>

#include "formats/base/checked.h"
#include "formats/base/error.h"

namespace ingot::formats {
namespace {

constexpr DTypeSet kReal = {DType::kF32, DType::kBf16, DType::kF16};
constexpr DTypeSet kExponents = {DType::kF8E8M0,
                                 DType::kU8};  // U8 where a writer had no name for it

constexpr std::array kPartFacts = {
    PartFacts{Part::kWeight, "a weight", {}, PartExtent::kOne},
    PartFacts{Part::kScale, "a scale", {}, PartExtent::kOne},
    PartFacts{Part::kGlobal, "a global scale", {DType::kF32}, PartExtent::kOne},
    PartFacts{Part::kOffset, "a weight offset", kReal | DTypeSet{DType::kI8}, PartExtent::kPerRow},
    PartFacts{Part::kInputScale, "an input scale", kReal, PartExtent::kOne},
    PartFacts{Part::kInputOffset, "an input offset", kReal | DTypeSet{DType::kI8},
              PartExtent::kOne},
    PartFacts{Part::kQuantBias, "a quantization bias", {DType::kI32}, PartExtent::kPerRow},
    PartFacts{
        Part::kDeqScale, "a dequantization scale", {DType::kF32, DType::kI64}, PartExtent::kPerRow},
    PartFacts{Part::kZeroPoint, "a zero point", {DType::kI32}, PartExtent::kPerGroup},
    PartFacts{Part::kGroupOrder, "an order of groups", {DType::kI32}, PartExtent::kPerColumn},
    PartFacts{
        Part::kDimensions, "a weight shape", {DType::kI32, DType::kI64}, PartExtent::kDimensions},
    PartFacts{Part::kOutputScale, "an output scale", kReal, PartExtent::kOne},
    PartFacts{Part::kColumnFactor, "a factor of columns", kReal, PartExtent::kPerColumn},
};

constexpr DTypeSet kAnyScales = kReal | kExponents;

constexpr SchemeFacts read_only_row(SchemeId id, std::string_view name, std::string_view summary,
                                    CodeKind code, DType codes) {
  return {.id = id,
          .name = name,
          .to_word = "",
          .summary = summary,
          .code = code,
          .code_bits = 8,
          .is_read_only = true,
          .group_rows = 128,
          .group_cols = 128,
          .codes = {codes},
          .scales = kAnyScales,
          .has_signed_scales = codes == DType::kI8};
}

constexpr std::array kSchemes = {
    SchemeFacts{.id = SchemeId::kBf16,
                .name = "bf16",
                .to_word = "bf16",
                .summary = "BF16, unscaled",
                .code_bits = 16},
    SchemeFacts{.id = SchemeId::kF16,
                .name = "f16",
                .to_word = "f16",
                .summary = "IEEE half precision, unscaled",
                .code_bits = 16},
    SchemeFacts{.id = SchemeId::kF32,
                .name = "f32",
                .to_word = "f32",
                .summary = "IEEE single precision, unscaled",
                .code_bits = 32},
    SchemeFacts{.id = SchemeId::kFp8Block,
                .name = "fp8-block",
                .to_word = "fp8",
                .summary = "E4M3 codes with a scale per block, 128x128 in released models",
                .code = CodeKind::kE4m3,
                .code_bits = 8,
                .quantized = true,
                .group_rows = 128,
                .group_cols = 128,
                .codes = {DType::kF8E4M3},
                .scales = {DType::kF32, DType::kBf16, DType::kF8E8M0}},
    SchemeFacts{.id = SchemeId::kFp8Channel,
                .name = "fp8-channel",
                .to_word = "fp8-channel",
                .summary = "E4M3 codes with a scale per row",
                .code = CodeKind::kE4m3,
                .code_bits = 8,
                .quantized = true,
                .group_rows = 1,
                .codes = {DType::kF8E4M3},
                .scales = kReal | DTypeSet{DType::kF8E8M0}},
    SchemeFacts{.id = SchemeId::kFp8Tensor,
                .name = "fp8-tensor",
                .to_word = "fp8-tensor",
                .summary = "E4M3 codes with one scale, shared by fused weights",
                .code = CodeKind::kE4m3,
                .code_bits = 8,
                .quantized = true,
                .codes = {DType::kF8E4M3},
                .scales = kReal | DTypeSet{DType::kF8E8M0}},
    SchemeFacts{.id = SchemeId::kInt8Channel,
                .name = "int8-channel",
                .to_word = "int8",
                .summary = "INT8 codes -127 to 127 with a scale per row",
                .code = CodeKind::kInt8,
                .code_bits = 8,
                .quantized = true,
                .group_rows = 1,
                .codes = {DType::kI8},
                .scales = kReal,
                .has_signed_scales = true},
    SchemeFacts{.id = SchemeId::kInt8Block,
                .name = "int8-block",
                .to_word = "int8-block",
                .summary = "INT8 codes with a scale per 128x128 block",
                .code = CodeKind::kInt8,
                .code_bits = 8,
                .quantized = true,
                .group_rows = 128,
                .group_cols = 128,
                .codes = {DType::kI8},
                .scales = kReal,
                .has_signed_scales = true},
    SchemeFacts{
        .id = SchemeId::kNvfp4,
        .name = "nvfp4",
        .to_word = "nvfp4",
        .summary =
            "E2M1 codes, an E4M3 scale per 16 columns, one F32 scale shared by fused weights",
        .code = CodeKind::kE2m1,
        .code_bits = 4,
        .quantized = true,
        .group_rows = 1,
        .group_cols = 16,
        .scale_dtype = DType::kF8E4M3,
        .codes = {DType::kU8},
        .scales = {DType::kF8E4M3},
        .has_global = true},
    // Some writers have no U8: two codes in a byte that would be garbage if it were INT8.
    SchemeFacts{.id = SchemeId::kMxfp4,
                .name = "mxfp4",
                .to_word = "mxfp4",
                .summary = "E2M1 codes with a power-of-two scale per 32 columns",
                .code = CodeKind::kE2m1,
                .code_bits = 4,
                .quantized = true,
                .group_rows = 1,
                .group_cols = 32,
                .scale_dtype = DType::kF8E8M0,
                .codes = {DType::kU8, DType::kI8},
                .scales = kExponents},
    SchemeFacts{.id = SchemeId::kMxfp8,
                .name = "mxfp8",
                .to_word = "mxfp8",
                .summary = "E4M3 codes with a power-of-two scale per 32 columns",
                .code = CodeKind::kE4m3,
                .code_bits = 8,
                .quantized = true,
                .group_rows = 1,
                .group_cols = 32,
                .scale_dtype = DType::kF8E8M0,
                .codes = {DType::kF8E4M3},
                .scales = kExponents},
    SchemeFacts{.id = SchemeId::kInt4Group,
                .name = "int4-group",
                .to_word = "int4",
                .summary = "4-bit integers with a scale per group of columns, 32, 64, 128 or a row",
                .code = CodeKind::kInt4,
                .code_bits = 4,
                .quantized = true,
                .group_rows = 1,
                .group_cols = 128,
                .chooses_cols = true,
                .scale_dtype = DType::kBf16,
                .codes = {DType::kI32},
                .scales = kReal,
                .has_dimensions = true,
                .has_signed_scales = true},
    read_only_row(SchemeId::kFp8E5m2, "fp8-e5m2",
                  "E5M2 codes with one scale, or one per row or block: read, never written",
                  CodeKind::kE5m2, DType::kF8E5M2),
    read_only_row(SchemeId::kFp8E4m3Fnuz, "fp8-e4m3fnuz",
                  "E4M3FNUZ codes with such scales: read, never written", CodeKind::kE4m3Fnuz,
                  DType::kF8E4M3Fnuz),
    read_only_row(SchemeId::kFp8E5m2Fnuz, "fp8-e5m2fnuz",
                  "E5M2FNUZ codes with such scales: read, never written", CodeKind::kE5m2Fnuz,
                  DType::kF8E5M2Fnuz),
    read_only_row(SchemeId::kInt8Group, "int8-group",
                  "INT8 codes with zero points or an order of columns: read, never written",
                  CodeKind::kInt8Zero, DType::kI8),
    SchemeFacts{.id = SchemeId::kRaw,
                .name = "raw",
                .to_word = "",
                .summary = "any other dtype: copied, never computed with"},
};

static_assert(rows_match_enum(kSchemes, &SchemeFacts::id, SchemeId::kRaw));
static_assert(rows_match_enum(kPartFacts, &PartFacts::part, Part::kColumnFactor) &&
              kPartFacts.size() == kMaxParts);

}  // namespace

const PartFacts& part_facts(Part part) {
  return kPartFacts[static_cast<std::size_t>(part)];
}

std::span<const SchemeFacts> schemes() {
  return kSchemes;
}

const SchemeFacts& scheme_facts(SchemeId id) {
  return kSchemes[static_cast<std::size_t>(id)];
}

std::optional<SchemeId> find_scheme(std::string_view name) {
  if (name.empty()) return std::nullopt;
  for (const SchemeFacts& row : kSchemes) {
    if (row.name == name || row.to_word == name) return row.id;
  }
  return std::nullopt;
}

SchemeId plain_scheme(DType dtype) {
  switch (dtype) {
    case DType::kBf16:
      return SchemeId::kBf16;
    case DType::kF16:
      return SchemeId::kF16;
    case DType::kF32:
      return SchemeId::kF32;
    default:
      return SchemeId::kRaw;
  }
}

DType plain_dtype(SchemeId id) {
  INGOT_CHECK(id == SchemeId::kBf16 || id == SchemeId::kF16 || id == SchemeId::kF32);
  if (id == SchemeId::kBf16) return DType::kBf16;
  return id == SchemeId::kF16 ? DType::kF16 : DType::kF32;
}

Packing packing(SchemeId scheme, DType dtype) {
  const SchemeFacts& facts = scheme_facts(scheme);
  const std::uint32_t bits = dtype_bits(dtype);
  if (!is_coded(scheme) || bits < facts.code_bits) return {};
  const std::uint32_t shared = std::gcd(bits, facts.code_bits);
  return {.codes = bits / shared, .elements = facts.code_bits / shared};
}

Shape block_scale_shape(const Shape& weight, std::uint64_t block_rows, std::uint64_t block_cols) {
  INGOT_CHECK(weight.size() >= 2 && block_rows > 0 && block_cols > 0);
  Shape scale = weight;
  scale[scale.size() - 2] = ceil_div(weight[weight.size() - 2], block_rows);
  scale.back() = ceil_div(weight.back(), block_cols);
  return scale;
}

std::array<std::uint64_t, 2> scale_group(SchemeId scheme, const Shape& weight,
                                         std::array<std::uint64_t, 2> block) {
  const SchemeFacts& facts = scheme_facts(scheme);
  if (!is_coded(scheme)) return {0, 0};
  INGOT_CHECK(weight.size() >= 2);
  if (facts.group_rows > 1) return block;
  // A side of 0 still needs a block of at least 1, since sides are divided by it.
  const std::uint64_t rows = std::max<std::uint64_t>(weight[weight.size() - 2], 1);
  const std::uint64_t cols = std::max<std::uint64_t>(weight.back(), 1);
  const std::uint64_t group_cols = facts.chooses_cols ? block[1] : facts.group_cols;
  return {facts.group_rows == 0 ? rows : facts.group_rows, group_cols == 0 ? cols : group_cols};
}

std::uint64_t stated_group_cols(std::uint64_t block_cols, std::uint64_t cols) {
  const bool is_usual = block_cols == 32 || block_cols == 64 || block_cols == 128;
  return block_cols >= cols && !is_usual ? 0 : block_cols;
}

}  // namespace ingot::formats
