#include "formats/storage/encoding.h"

#include <algorithm>
#include <array>

#include "formats/base/checked.h"
#include "formats/base/error.h"

namespace ingot::formats {
namespace {

constexpr std::array kSchemes = {
    SchemeFacts{.id = SchemeId::kBf16,
                .name = "bf16",
                .to_word = "bf16",
                .quantized = false,
                .code = CodeKind::kPlain,
                .code_bits = 16,
                .group_rows = 0,
                .group_cols = 0,
                .scale_dtype = DType::kF32,
                .summary = "BF16, unscaled"},
    SchemeFacts{.id = SchemeId::kF16,
                .name = "f16",
                .to_word = "f16",
                .quantized = false,
                .code = CodeKind::kPlain,
                .code_bits = 16,
                .group_rows = 0,
                .group_cols = 0,
                .scale_dtype = DType::kF32,
                .summary = "IEEE half precision, unscaled"},
    SchemeFacts{.id = SchemeId::kF32,
                .name = "f32",
                .to_word = "f32",
                .quantized = false,
                .code = CodeKind::kPlain,
                .code_bits = 32,
                .group_rows = 0,
                .group_cols = 0,
                .scale_dtype = DType::kF32,
                .summary = "IEEE single precision, unscaled"},
    SchemeFacts{.id = SchemeId::kFp8Block,
                .name = "fp8-block",
                .to_word = "fp8",
                .quantized = true,
                .code = CodeKind::kE4m3,
                .code_bits = 8,
                .group_rows = 128,
                .group_cols = 128,
                .scale_dtype = DType::kF32,
                .summary = "E4M3 codes with a scale per block, 128x128 in released models"},
    SchemeFacts{.id = SchemeId::kFp8Channel,
                .name = "fp8-channel",
                .to_word = "fp8-channel",
                .quantized = true,
                .code = CodeKind::kE4m3,
                .code_bits = 8,
                .group_rows = 1,
                .group_cols = 0,
                .scale_dtype = DType::kF32,
                .summary = "E4M3 codes with a scale per row"},
    SchemeFacts{.id = SchemeId::kFp8Tensor,
                .name = "fp8-tensor",
                .to_word = "fp8-tensor",
                .quantized = true,
                .code = CodeKind::kE4m3,
                .code_bits = 8,
                .group_rows = 0,
                .group_cols = 0,
                .scale_dtype = DType::kF32,
                .summary = "E4M3 codes with one scale, shared by fused weights"},
    SchemeFacts{.id = SchemeId::kInt8Channel,
                .name = "int8-channel",
                .to_word = "int8",
                .quantized = true,
                .code = CodeKind::kInt8,
                .code_bits = 8,
                .group_rows = 1,
                .group_cols = 0,
                .scale_dtype = DType::kF32,
                .summary = "INT8 codes -127 to 127 with a scale per row"},
    SchemeFacts{.id = SchemeId::kInt8Block,
                .name = "int8-block",
                .to_word = "int8-block",
                .quantized = true,
                .code = CodeKind::kInt8,
                .code_bits = 8,
                .group_rows = 128,
                .group_cols = 128,
                .scale_dtype = DType::kF32,
                .summary = "INT8 codes with a scale per 128x128 block"},
    SchemeFacts{
        .id = SchemeId::kNvfp4,
        .name = "nvfp4",
        .to_word = "nvfp4",
        .quantized = true,
        .code = CodeKind::kE2m1,
        .code_bits = 4,
        .group_rows = 1,
        .group_cols = 16,
        .scale_dtype = DType::kF8E4M3,
        .summary =
            "E2M1 codes, an E4M3 scale per 16 columns, one F32 scale shared by fused weights"},
    SchemeFacts{.id = SchemeId::kMxfp4,
                .name = "mxfp4",
                .to_word = "mxfp4",
                .quantized = true,
                .code = CodeKind::kE2m1,
                .code_bits = 4,
                .group_rows = 1,
                .group_cols = 32,
                .scale_dtype = DType::kF8E8M0,
                .summary = "E2M1 codes with a power-of-two scale per 32 columns"},
    SchemeFacts{.id = SchemeId::kMxfp8,
                .name = "mxfp8",
                .to_word = "mxfp8",
                .quantized = true,
                .code = CodeKind::kE4m3,
                .code_bits = 8,
                .group_rows = 1,
                .group_cols = 32,
                .scale_dtype = DType::kF8E8M0,
                .summary = "E4M3 codes with a power-of-two scale per 32 columns"},
    SchemeFacts{.id = SchemeId::kRaw,
                .name = "raw",
                .to_word = "",
                .quantized = false,
                .code = CodeKind::kPlain,
                .code_bits = 0,
                .group_rows = 0,
                .group_cols = 0,
                .scale_dtype = DType::kF32,
                .summary = "any other dtype: copied, never computed with"},
};

constexpr bool rows_match_enum() {
  for (std::size_t i = 0; i < kSchemes.size(); ++i) {
    if (kSchemes[i].id != static_cast<SchemeId>(i)) return false;
  }
  return kSchemes.size() == static_cast<std::size_t>(SchemeId::kRaw) + 1;
}
static_assert(rows_match_enum());

}  // namespace

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
  if (!facts.quantized) return {0, 0};
  INGOT_CHECK(weight.size() >= 2);
  if (facts.group_rows > 1) return block;
  // A side of 0 still needs a block of at least 1, or nothing could be divided by it.
  const std::uint64_t rows = std::max<std::uint64_t>(weight[weight.size() - 2], 1);
  const std::uint64_t cols = std::max<std::uint64_t>(weight.back(), 1);
  return {facts.group_rows == 0 ? rows : facts.group_rows,
          facts.group_cols == 0 ? cols : facts.group_cols};
}

}  // namespace ingot::formats
