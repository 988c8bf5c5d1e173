#include <array>
#include <numeric>

#include <fmt/format.h>

#include "formats/base/checked.h"
#include "formats/base/error.h"
#include "shard/fit/fit_modes.h"

namespace ingot::shard {

using formats::Dim;

namespace {

constexpr std::uint64_t kMaxWidth = std::uint64_t{1} << 32;

/// One width of the model over all tensors that have it.
struct WidthNeed {
  bool is_padded = false;
  std::uint64_t step = 1;  ///< the padded width is a multiple of it
};

/// What the width must be a multiple of for this tensor alone.
std::uint64_t step_of(const TensorToFit& tensor, const PaddableSide& side) {
  const bool is_cut = tensor.cut.axis == (side.is_rows ? Axis::kRows : Axis::kCols);
  const std::uint64_t n = is_cut ? tensor.cut.n : 1;
  const std::uint64_t unit = indivisible(tensor.scheme, tensor.group)[side.is_rows ? 0 : 1];
  const std::uint64_t step = n * unit;
  return step / std::gcd(step, side.times);
}

void require_multiple(WidthNeed& need, std::uint64_t step) {
  const auto multiple = checked_mul(need.step / std::gcd(need.step, step), step);
  if (!multiple || *multiple > kMaxWidth) {
    throw Error(ErrorCode::kLimit,
                fmt::format("a width padded to multiples of both {} and {} is beyond {} (choose "
                            "numbers of ranks that divide each other)",
                            need.step, step, kMaxWidth));
  }
  need.step = *multiple;
}

}  // namespace

void fit_by_padding(std::span<const TensorToFit> tensors, const formats::ModelConfig& config,
                    Fits& fits, FitRefusals& refusals) {
  std::array<WidthNeed, kPaddableWidths> needs;
  for (const TensorToFit& tensor : tensors) {
    const CutNeed need = need_of(tensor);
    const auto side = paddable_side(tensor, config);
    if (!need.fits()) {
      if (!side || side->is_rows != need.along_rows) {
        refusals.add(tensor);
        continue;
      }
      needs[static_cast<std::size_t>(side->width)].is_padded = true;
    }
    if (side)
      require_multiple(needs[static_cast<std::size_t>(side->width)], step_of(tensor, *side));
  }

  const std::array<std::uint64_t, kPaddableWidths> widths = {
      formats::dim_size(Dim::kVocab, config), formats::dim_size(Dim::kIntermediate, config),
      formats::dim_size(Dim::kMoeIntermediate, config)};
  std::array<std::uint64_t, kPaddableWidths> padded = {};
  for (std::size_t i = 0; i < kPaddableWidths; ++i)
    padded[i] = needs[i].is_padded ? round_up(widths[i], needs[i].step) : widths[i];

  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const auto side = paddable_side(tensors[i], config);
    if (!side) continue;
    const auto width = static_cast<std::size_t>(side->width);
    if (padded[width] == widths[width]) continue;
    if (block_joins_sections(tensors[i], *side)) {
      refusals.add_joined(tensors[i]);
    } else {
      fits.tensors[i].padded[side->is_rows ? 0 : 1] = padded[width] * side->times;
    }
  }
  const auto stated = [&](PaddableWidth width) {
    const auto i = static_cast<std::size_t>(width);
    return padded[i] == widths[i] ? 0 : padded[i];
  };
  fits.widths = {.vocab = stated(PaddableWidth::kVocab),
                 .intermediate = stated(PaddableWidth::kIntermediate),
                 .moe_intermediate = stated(PaddableWidth::kMoeIntermediate)};
}

}  // namespace ingot::shard
