#include <numeric>

#include "shard/fit/fit_modes.h"

namespace ingot::shard {
namespace {

/// What divides the blocks of all FP8 tensors: the block of a released model, unless it has
/// several.
std::array<std::uint64_t, 2> common_block(std::span<const TensorToFit> tensors) {
  std::array<std::uint64_t, 2> block = {0, 0};
  for (const TensorToFit& tensor : tensors) {
    if (tensor.scheme != formats::SchemeId::kFp8Block) continue;
    block = {std::gcd(block[0], tensor.group[0]), std::gcd(block[1], tensor.group[1])};
  }
  return block;
}

}  // namespace

void fit_by_retiling(std::span<const TensorToFit> tensors, Fits& fits, FitRefusals& refusals) {
  std::array<std::uint64_t, 2> block = common_block(tensors);
  bool is_needed = false;
  for (const TensorToFit& tensor : tensors) {
    const CutNeed need = need_of(tensor);
    if (need.fits()) continue;
    std::uint64_t& side = block[need.along_rows ? 0 : 1];
    const std::uint64_t halved = tensor.scheme == formats::SchemeId::kFp8Block && need.divides()
                                     ? halved_to_fit(side, need.width / need.n)
                                     : 0;
    if (halved == 0) {
      refusals.add(tensor);
      continue;
    }
    // It still divides what was halved for earlier tensors.
    side = halved;
    is_needed = true;
  }
  if (!is_needed) return;
  fits.block = block;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i].scheme == formats::SchemeId::kFp8Block) fits.tensors[i].block = block;
  }
}

}  // namespace ingot::shard
