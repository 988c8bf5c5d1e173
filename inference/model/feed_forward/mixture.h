#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "formats/container/tensor.h"
#include "inference/base/matrix.h"
#include "inference/model/step/step.h"
#include "inference/weights/expert_store.h"
#include "inference/weights/linear.h"
#include "inference/weights/weight_store.h"

namespace ingot::inference {

/// Experts of every token, `topk` each, ascending, with the weights of their outputs.
struct Routing {
  std::size_t topk = 0;
  std::vector<std::uint32_t> experts;  ///< [tokens, topk]
  std::vector<float> weights;          ///< [tokens, topk]
};

/// Chooses experts from router logits [tokens, experts]: scores by `spec.score`; selection by score
/// + `bias` (empty: none) within the best `topk_groups` groups, judged by their two best with a
/// bias and by their best without; ties go to the lower index. Weights are scores without bias,
/// normalized if `spec.normalize` (sum over ascending experts + 1e-20), then scaled. All in FP32.
/// Throws kNonFinite for a logit that is NaN.
Routing route(const RouterSpec& spec, formats::MatrixView<const float> logits,
              std::span<const float> bias);

/// down(silu(gate x) * up x), or a tensor-parallel part of it: some rows of gate and up, the same
/// columns of down.
struct Mlp {
  Linear gate, up, down;

  /// `prefix` as in `model.layers.0.mlp.`; `intermediate` of the whole.
  static Mlp load(const WeightStore& weights, const StepContext& context, const std::string& prefix,
                  std::size_t intermediate);

  /// FP32 sums of down's columns: the whole once reduced over the tensor group.
  [[nodiscard]] Matrix partial(const StepContext& context, const Matrix& x) const;
};

/// Routed experts and the shared one (model reference, 6). Each expert runs once per step over all
/// tokens that chose it; outputs are added in FP32 in ascending expert id, so that a token's result
/// does not depend on the others. Experts nobody chose are not touched.
class Mixture {
 public:
  /// `prefix` as in `model.layers.3.mlp.`. `experts` must outlive this.
  Mixture(const WeightStore& weights, const StepContext& context, const std::string& prefix,
          std::uint32_t layer, ExpertStore& experts);

  /// The layer's output for normalized input `x`, reduced. Where as many ranks share the experts as
  /// share the tokens, every rank runs its experts on all of them and one sum joins the results
  /// (model reference, 12.1); where more do, tokens travel to their experts and back (12.3).
  Matrix forward(const StepContext& context, const Matrix& x, const Taps& taps) const;

 private:
  Routing choose(const StepContext& context, const Matrix& x) const;
  /// Sum over this rank's experts of weight x output.
  Matrix own_experts(const StepContext& context, const Matrix& x, const Routing& routing) const;
  /// The same over all ranks' experts by all-to-all.
  Matrix exchanged_experts(const StepContext& context, const Matrix& x,
                           const Routing& routing) const;
  /// Output of one expert for some rows, rounded as a linear's.
  Matrix run_expert(const StepContext& context, std::uint32_t expert, const Matrix& rows) const;

  std::uint32_t layer_ = 0;
  Range mine_;  ///< experts of this rank
  Linear router_;
  std::vector<float> bias_;
  std::optional<Mlp> shared_;
  ExpertStore* experts_ = nullptr;
};

}  // namespace ingot::inference
