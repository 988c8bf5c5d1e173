#include "formats/encoding.h"

#include <array>

#include "formats/base/checked.h"
#include "formats/base/error.h"

namespace ingot::formats {
namespace {

constexpr std::array kSchemes = {
    SchemeFacts{.id = SchemeId::kBf16,
                .name = "bf16",
                .to_word = "bf16",
                .n_parts = 1,
                .quantized = false,
                .summary = "BF16, unscaled"},
    SchemeFacts{.id = SchemeId::kF16,
                .name = "f16",
                .to_word = "f16",
                .n_parts = 1,
                .quantized = false,
                .summary = "IEEE half precision, unscaled"},
    SchemeFacts{.id = SchemeId::kF32,
                .name = "f32",
                .to_word = "f32",
                .n_parts = 1,
                .quantized = false,
                .summary = "IEEE single precision, unscaled"},
    SchemeFacts{.id = SchemeId::kFp8Block,
                .name = "fp8-block",
                .to_word = "fp8",
                .n_parts = 2,
                .quantized = true,
                .summary = "E4M3 codes with a scale per block, 128x128 in released models"},
    SchemeFacts{.id = SchemeId::kRaw,
                .name = "raw",
                .to_word = "",
                .n_parts = 1,
                .quantized = false,
                .summary = "any other dtype: copied, never computed with"},
};

constexpr bool rows_match_enum() {
  for (std::size_t i = 0; i < kSchemes.size(); ++i) {
    if (kSchemes[i].id != static_cast<SchemeId>(i) || kSchemes[i].n_parts > kMaxParts) return false;
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

}  // namespace ingot::formats
