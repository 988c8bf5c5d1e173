#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "inference/base/matrix.h"
#include "inference/model/spec/mixer_specs.h"
#include "inference/model/step/step.h"
#include "inference/weights/block_weights.h"
#include "inference/weights/linear.h"

namespace ingot::inference {

/// Entries that stand for the tokens of a window each (DeepSeek-V4's paper, 2.3). Token t of a
/// sequence gives values kv_t = wkv x_t and logits z_t = wgate x_t + ape[t % ratio]; entry w is
///   rope(norm(pool_window(tokens of the window)), position w x ratio)
/// over tokens [w ratio, (w + 1) ratio). With overlap values and logits are two halves side by
/// side: the entry is over the first halves of the tokens of window w - 1, where there is one, and
/// the second halves of those of window w. The last values of an entry are rotated.
class Compressor {
 public:
  /// Reads the weights of the attention's compressor, or of its indexer's; entries have `width`
  /// values.
  Compressor(const BlockWeights& weights, const StepContext& context, bool is_of_indexer,
             const CompressorSpec& spec, std::size_t width);

  /// Computes values and logits of every row, side by side. Unless the profile is kF32 both
  /// products are rounded to BF16; ape is added without rounding.
  [[nodiscard]] Matrix project(const StepContext& context, const StepRows& rows,
                               const Matrix& x) const;

  /// Computes the entries of the windows that the rows of a run complete, [n, width], the first of
  /// them number first_position / ratio. `projected` is project()'s of the whole step; `state` is
  /// moved on. Unless the profile is kF32 the pooled window is rounded to BF16 once, and norm and
  /// rope round.
  [[nodiscard]] Matrix entries(const StepContext& context, const RopeSpec& rope,
                               const SequenceRun& run, const Matrix& projected,
                               std::span<float> state) const;

 private:
  CompressorSpec spec_;
  std::size_t width_, series_;
  Linear values_, logits_;
  std::vector<float> position_logits_, norm_;
};

}  // namespace ingot::inference
