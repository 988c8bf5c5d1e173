#pragma once

#include <optional>
#include <span>
#include <vector>

#include "formats/family/roles.h"
#include "inference/base/matrix.h"
#include "inference/model/step/hyper_connection.h"
#include "inference/model/step/step.h"
#include "inference/weights/block_weights.h"
#include "inference/weights/linear.h"

namespace ingot::inference {

/// Hyper-connections of low rank (HyperSpec::rank), which take the place of the norm of what a
/// block reads. Source: transformers 5.24, qwen4_exp.
///
///   u    = the row, each of its n streams through an RMS norm with weights of its own
///   g    = sigmoid(up silu(down u / n))                         n x hidden values
///   in   = sum over streams i of g[i] u[i] / n
///   post = 2 sigmoid(inject u / n)                              n
///   x'[j] = post[j] block(in) + x[j]
class GatedStreams {
 public:
  struct Roles {
    formats::FineRole norm, down, up;
    /// Role of the weights of a block's output; nullopt: no output goes back.
    std::optional<formats::FineRole> inject = {};
  };

  GatedStreams() = default;
  GatedStreams(const BlockWeights& weights, const StepContext& context, const Roles& roles);

  [[nodiscard]] bool empty() const { return norm_.empty(); }
  /// Collapses `streams`, [rows, n x hidden], for a block. For the head `post` has no columns.
  [[nodiscard]] HyperInput input(const StepContext& context, const Matrix& streams) const;

 private:
  std::vector<float> norm_;
  Linear down_, up_, inject_;
};

/// The RMS norm of each stream of every row; `weights` has those of all streams.
Matrix normed_streams(const StepContext& context, std::span<const float> weights,
                      const Matrix& streams);

}  // namespace ingot::inference
