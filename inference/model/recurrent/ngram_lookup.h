#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "inference/base/matrix.h"
#include "inference/model/spec/mixer_specs.h"
#include "inference/model/step/step.h"
#include "inference/weights/block_weights.h"
#include "inference/weights/linear.h"

namespace ingot::inference {

/// The values that a layer adds to its streams before its first block, made of embeddings of the
/// n-grams that end with each token. Source: transformers 5.24, qwen4_exp.
///
///   e    = rows of the table, one for each head: of the hash of its n-gram
///   s    = norm(keys e)[i] . norm(x)[i] / sqrt(hidden)         x: the row, i: a stream
///   y[i] = sigmoid(sign(s) sqrt(max(|s|, 1e-6))) (values e)
///   adds y + silu(convolution over norm(y) of the tokens before, `tokens` apart)
///
/// Rows of the table are read from the source when they are looked up, and not kept.
class NgramLookup {
 public:
  NgramLookup(const BlockWeights& weights, const StepContext& context, const NgramSpec& spec);

  /// `states` has what is kept of each run's sequence (state_of), and is moved on.
  [[nodiscard]] Matrix forward(const LayerStep& step, const Matrix& streams,
                               std::span<const std::span<float>> states) const;

 private:
  void read_constants(const BlockWeights& weights);
  [[nodiscard]] Matrix embeddings(const LayerStep& step, const SequenceRun& run,
                                  std::span<float> recent) const;

  NgramSpec spec_;
  const WeightStore* store_;
  std::vector<std::uint64_t> offsets_;  ///< offsets of the rows of each head
  std::vector<std::string> parts_;      ///< names of the tensors with the table's rows
  Linear keys_, values_;
  std::vector<float> key_norm_, state_norm_, output_norm_, convolution_;
};

}  // namespace ingot::inference
