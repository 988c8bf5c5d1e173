#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "inference/model/step/norm.h"
#include "inference/model/step/step.h"
#include "inference/weights/block_weights.h"
#include "inference/weights/linear.h"

namespace ingot::inference {

/// Choice of the blocks of past tokens that the heads of grouped-query attention read: per index
/// head the blocks that contain the best tokens, by the product of an index query and the one index
/// key of each token, and always the last blocks. All ranks compute all index heads. Source:
/// transformers 5.23, minimax_m3_vl.
class BlockChooser {
 public:
  /// Index heads have a norm and the layer's rope.
  BlockChooser(const BlockWeights& weights, const StepContext& context, const BlockIndexSpec& spec,
               const RopeSpec& rope);

  /// Positions that a row reads, ascending; empty where it reads all that it sees.
  using Chosen = std::vector<std::vector<std::uint32_t>>;
  /// Writes the rows' index keys to the cache. Returns an entry per row and index head,
  /// [rows x heads]. Of blocks of the same score the first is taken.
  [[nodiscard]] Chosen choose(const LayerStep& step, const Matrix& x) const;

 private:
  void finish(const StepContext& context, const std::vector<float>& norm, const RopeAngles& angles,
              Matrix& heads) const;
  [[nodiscard]] std::vector<std::uint32_t> choose_for(std::span<const float> query,
                                                      const Matrix& keys, std::size_t n_tokens,
                                                      bool& is_near) const;

  BlockIndexSpec spec_;
  RopeSpec rope_;
  Linear queries_, keys_;
  std::vector<float> query_norm_, key_norm_;
};

}  // namespace ingot::inference
