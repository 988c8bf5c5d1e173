#pragma once

#include <cstdint>
#include <vector>

#include "convert/plan/plan.h"
#include "formats/base/stop_scope.h"

namespace ingot::convert {

/// Values under one scale of the source that the output would not hold.
struct BlockLoss {
  /// Of the scale, in the grid of all scales of the tensor; of the value, where the source has
  /// none.
  std::uint64_t block_row = 0, block_col = 0;
  float scale = 0;  ///< effective; 0: the source has none
  // The first of the values, in the flattened tensor; of a scale that is stored otherwise, that
  // scale.
  std::uint64_t row = 0, col = 0;
  float value = 0, becomes = 0;
};

/// A tensor of which the output would not hold every value.
struct TensorLoss {
  std::uint32_t index = 0;  ///< into Plan::tensors
  std::uint64_t n_blocks = 0;
  /// False: values are rounded to codes of the target, and the first that was changed ended it.
  bool is_counted = true;
  std::vector<BlockLoss> blocks;  ///< the first kBlocksNamed
};
inline constexpr std::size_t kBlocksNamed = 3;

/// Whether the output of a plan will hold every value of the source exactly.
struct LosslessProof {
  /// Tensors that it does, by what says so: headers; their scales; their codes.
  std::uint64_t by_headers = 0, by_scales = 0, by_codes = 0;
  std::vector<TensorLoss> losses;  ///< in plan order

  [[nodiscard]] bool holds() const { return losses.empty(); }
};

/// Proves it before a byte is written, of the tensors that this run would write. Scales are read
/// where headers do not decide, and codes where scales do not: these are decoded, encoded as they
/// would be written, and compared, band by band, in the memory that the conversion has for the
/// same. Throws what the conversion would throw of a tensor's scales and codes, naming file and
/// tensor; kInterrupted when stopped.
LosslessProof prove_lossless(const Plan& plan, const JobThreads& threads);

}  // namespace ingot::convert
