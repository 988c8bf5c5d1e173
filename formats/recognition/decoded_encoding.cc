#include "formats/recognition/decoded_encoding.h"

#include <algorithm>
#include <functional>
#include <numeric>

#include <fmt/format.h>

#include "formats/base/checked.h"

namespace ingot::formats {
namespace {

constexpr DTypeSet kScales = {DType::kF32, DType::kBf16, DType::kF16, DType::kF8E8M0, DType::kU8};

// Zero points of four rows to a word, as packed codes have them.
constexpr std::uint64_t kByteZerosPerWord = 4;

/// Rows and columns that share a scale, which may be whole rows and whole matrices.
std::optional<Block> block_of(const DecodedParts& weight) {
  const Shape& shape = weight.stored[weight.parts.weight()].shape;
  const Shape& scale = weight.stored[weight.parts[Part::kScale]].shape;
  const std::uint64_t rows = std::max<std::uint64_t>(shape[shape.size() - 2], 1);
  const std::uint64_t cols = std::max<std::uint64_t>(shape.back(), 1);
  if (is_per_matrix(scale, shape)) return Block{rows, cols};
  if (is_per_row(scale, shape)) return Block{1, cols};
  const auto fitting = std::ranges::find_if(
      weight.blocks, [&](const Block& block) { return is_grid_of(block, shape, scale); });
  return fitting == weight.blocks.end() ? std::nullopt : std::optional(*fitting);
}

std::uint64_t numbers_in(const Shape& shape) {
  return std::accumulate(shape.begin(), shape.end(), std::uint64_t{1}, std::multiplies<>());
}

/// The dtype of a part. Zero points are packed where codes are, whose dimensions are stored.
DType wanted_dtype(Part part, const StoredParts& parts) {
  return part == Part::kZeroPoint && !parts.has(Part::kDimensions) ? DType::kI8 : DType::kI32;
}

/// How many numbers of this dtype a part must have.
std::uint64_t wanted_numbers(Part part, DType dtype, const Shape& codes, std::uint64_t n_scales,
                             std::uint64_t block_cols) {
  if (dtype == DType::kI8) return n_scales;
  if (part == Part::kGroupOrder) return codes.back();
  const std::uint64_t across = ceil_div(std::max<std::uint64_t>(codes.back(), 1), block_cols);
  return ceil_div(n_scales / across, kByteZerosPerWord) * across;
}

}  // namespace

std::optional<Encoding> decoded_encoding(
    const DecodedParts& weight,
    const std::function<void(std::uint32_t, ErrorCode, std::string)>& refuse) {
  const Shape& codes = weight.stored[weight.parts.weight()].shape;
  const std::uint32_t scale_index = weight.parts[Part::kScale];
  const StoredTensor& scale = weight.stored[scale_index];
  if (!kScales.has(scale.dtype)) {
    refuse(scale_index, ErrorCode::kDtypeMismatch,
           fmt::format("is a scale in {}, must be {}", dtype_name(scale.dtype), kScales.text()));
    return std::nullopt;
  }
  const std::optional<Block> block = block_of(weight);
  if (!block) {
    refuse(scale_index, ErrorCode::kShapeMismatch,
           fmt::format("is a scale of shape {}, a weight of shape {} needs one value, one per row "
                       "or one per block",
                       shape_text(scale.shape), shape_text(codes)));
    return std::nullopt;
  }
  bool fits = true;
  for (const Part which : {Part::kZeroPoint, Part::kGroupOrder}) {
    if (!weight.parts.has(which)) continue;
    const std::uint32_t index = weight.parts[which];
    const StoredTensor& part = weight.stored[index];
    const std::string_view meaning = part_facts(which).meaning;
    const DType dtype = wanted_dtype(which, weight.parts);
    if (part.dtype != dtype) {
      fits = false;
      refuse(index, ErrorCode::kDtypeMismatch,
             fmt::format("is {} in {}, must be {}", meaning, dtype_name(part.dtype),
                         dtype_name(dtype)));
      continue;
    }
    const std::uint64_t wanted =
        wanted_numbers(which, dtype, codes, numbers_in(scale.shape), (*block)[1]);
    if (wanted == numbers_in(part.shape)) continue;
    fits = false;
    refuse(index, ErrorCode::kShapeMismatch,
           fmt::format("is {} of shape {}, a weight of shape {} with scales of shape {} needs {} "
                       "numbers",
                       meaning, shape_text(part.shape), shape_text(codes), shape_text(scale.shape),
                       wanted));
  }
  if (!fits) return std::nullopt;
  return Encoding{.scheme = SchemeId::kF32,
                  .stored = weight.parts,
                  .block_rows = (*block)[0],
                  .block_cols = (*block)[1]};
}

}  // namespace ingot::formats
