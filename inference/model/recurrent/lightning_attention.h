#pragma once

#include <vector>

#include "inference/base/matrix.h"
#include "inference/model/spec/mixer_specs.h"
#include "inference/model/step/step.h"
#include "inference/weights/block_weights.h"
#include "inference/weights/linear.h"

namespace ingot::inference {

/// Lightning attention (arXiv 2501.08313; transformers 5.24, minimax). One product gives query, key
/// and value of each head, head by head; silu of all:
///   S_h <- e^-slope_h S_h + k_h v_h^T     o_h = S_h^T q_h
///   y   = out [norm over all heads of o x sigmoid(gate x)]
/// Slopes are in the checkpoint, or those of head and layer:
///   slope_h = 2^(-8 (h + 1) / heads) (1 - layer / (layers - 1 + 1e-5) + 1e-5)
/// A checkpoint that transformers saved may have these decays rounded, for the places i of a block
/// of tokens: with S that of the block's start, and as its end makes it,
///   o_h = query_decay_i S_h^T q_h + sum over j <= i of diagonal_decay_ij (q_h . k_hj) v_hj
///   S_h <- e^(-slope_h block) S_h + sum over j of key_decay_j k_hj v_hj^T
/// The norm has an epsilon of its own, 1e-6. The state of a sequence is each head's matrix, in
/// FP32. Unless the profile is kF32, products, silu, heads' outputs, norm and gate are each rounded
/// to BF16; the recurrence is in FP32.
class LightningAttention {
 public:
  /// kUnsupported on more than one rank of a tensor group.
  LightningAttention(const BlockWeights& weights, const StepContext& context,
                     const LightningSpec& spec);

  Matrix partial(const LayerStep& step, const Matrix& x) const;

 private:
  void read_constants(const BlockWeights& weights);
  /// The rows of a run in the form with constants; `mixed` has those of all runs.
  void attend_in_blocks(const LayerStep& step, const SequenceRun& run, const Matrix& mixed,
                        Matrix& out) const;

  LightningSpec spec_;
  Linear qkv_, gate_, out_;
  std::vector<float> decay_, norm_;
  /// [heads, block], [heads, block] and [heads, block, block]; empty: none are stored.
  std::vector<float> query_decay_, key_decay_, diagonal_decay_;
  std::vector<float> block_decay_;  ///< e^(-slope block)
};

}  // namespace ingot::inference
