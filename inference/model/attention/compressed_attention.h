#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include "inference/base/matrix.h"
#include "inference/model/attention/compressor.h"
#include "inference/model/spec/mixer_specs.h"
#include "inference/model/step/norm.h"
#include "inference/model/step/step.h"
#include "inference/weights/block_weights.h"
#include "inference/weights/linear.h"

namespace ingot::inference {

/// Attention of DeepSeek-V4 (its paper, 2.3; transformers 5.23). Queries come through a latent,
/// have a norm without weight per head, and share one key head, whose keys are its values:
///   q_h = rope(n(wq_b norm(wq_a x))_h)     k = rope(norm(wkv x))
///   out_h = rope^-1(sum over what the row sees of softmax_h(q_h . k / sqrt(head_dim)) k)
///   y = wo_b [wo_a,g (outputs of the heads of group g)]_g
/// A row sees the last `window` tokens and then, in ascending number, entries of a compressed cache
/// whose windows ended before or with it: all of them, or the topk best of the indexer,
///   score = sum over heads of weights_h relu(q^I_h . e^I),
/// e^I being entries of a compressor of the indexer's own. Each head has a sink: one logit more,
/// that takes a share of the softmax and gives nothing. Rope is on the last values of a head;
/// layers without compressor have frequencies of their own. A rank has groups of heads.
class CompressedAttention {
 public:
  CompressedAttention(const BlockWeights& weights, const StepContext& context,
                      const CompressedSpec& spec);

  Matrix partial(const LayerStep& step, const Matrix& x) const;

 private:
  /// Entries a row sees, or nothing where it sees all of them.
  using Chosen = std::vector<std::vector<std::uint32_t>>;

  Matrix queries(const StepContext& context, const Matrix& latent, const RopeAngles& angles) const;
  Matrix keys(const LayerStep& step, const Matrix& x, const RopeAngles& angles) const;
  /// Caches the entries that the run completes.
  void compress(const LayerStep& step, const SequenceRun& run, const Matrix& projected,
                const Matrix& index_projected, std::span<float> state) const;
  Chosen choose(const LayerStep& step, const Matrix& x, const Matrix& latent,
                const RopeAngles& angles) const;
  void attend_run(const LayerStep& step, const SequenceRun& run, const Matrix& queries,
                  const Matrix& window, const Chosen& chosen, Matrix& out) const;
  [[nodiscard]] std::size_t seen_entries(std::size_t position) const;

  CompressedSpec spec_;
  std::size_t heads_ = 0, groups_ = 0;  ///< of this rank
  Linear q_a_, q_b_, kv_, o_a_, o_b_;
  std::vector<float> q_norm_, kv_norm_, sinks_;
  std::optional<Compressor> compressor_, index_compressor_;
  Linear index_queries_, index_weights_;
};

}  // namespace ingot::inference
