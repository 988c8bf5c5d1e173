#include "formats/recognition/decoded_encoding.h"

#include <algorithm>

#include <fmt/format.h>

namespace ingot::formats {
namespace {

constexpr DTypeSet kScales = {DType::kF32, DType::kBf16, DType::kF16, DType::kF8E8M0, DType::kU8};

/// Rows and columns that share a scale, which may be whole rows and whole matrices.
std::optional<Block> block_of(const DecodedParts& weight) {
  const Shape &shape = weight.codes.shape, &scale = weight.scale.shape;
  const std::uint64_t rows = std::max<std::uint64_t>(shape[shape.size() - 2], 1);
  const std::uint64_t cols = std::max<std::uint64_t>(shape.back(), 1);
  if (is_per_matrix(scale, shape)) return Block{rows, cols};
  if (is_per_row(scale, shape)) return Block{1, cols};
  const auto fitting = std::ranges::find_if(
      weight.blocks, [&](const Block& block) { return is_grid_of(block, shape, scale); });
  return fitting == weight.blocks.end() ? std::nullopt : std::optional(*fitting);
}

}  // namespace

std::optional<Encoding> decoded_encoding(
    const DecodedParts& weight, const std::function<void(ErrorCode, std::string)>& refuse) {
  if (!kScales.has(weight.scale.dtype)) {
    refuse(ErrorCode::kDtypeMismatch, fmt::format("is a scale in {}, must be {}",
                                                  dtype_name(weight.scale.dtype), kScales.text()));
    return std::nullopt;
  }
  const std::optional<Block> block = block_of(weight);
  if (!block) {
    refuse(ErrorCode::kShapeMismatch,
           fmt::format("is a scale of shape {}, a weight of shape {} needs one value, one per row "
                       "or one per block",
                       shape_text(weight.scale.shape), shape_text(weight.codes.shape)));
    return std::nullopt;
  }
  return Encoding{.scheme = SchemeId::kF32,
                  .stored = weight.parts,
                  .block_rows = (*block)[0],
                  .block_cols = (*block)[1]};
}

}  // namespace ingot::formats
