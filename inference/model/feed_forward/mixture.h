#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "inference/base/matrix.h"
#include "inference/model/feed_forward/expert_group.h"
#include "inference/model/feed_forward/router_mlp.h"
#include "inference/model/step/norm.h"
#include "inference/model/step/router.h"
#include "inference/model/step/step.h"
#include "inference/weights/block_weights.h"
#include "inference/weights/expert_store.h"
#include "inference/weights/linear.h"

namespace ingot::inference {

/// down(silu(gate x) * up x), or a tensor-parallel part of it: some rows of gate and up, the same
/// columns of down. Without a gate it is down(relu(up x)^2), or with the function that GateForm
/// names; without an up its rows stand in turn with the gate's, in `gate`. GateForm says what else
/// may become of gate and up.
struct Mlp {
  Linear gate, up, down;
  GateForm form = {};
  std::span<const float> gate_bias = {}, up_bias = {}, down_bias = {};
  /// Factor of the output; partial() leaves it to the caller that adds up the parts.
  float scale = 1.0F;
  /// x > 0: positive x^2 + slope x; else (e^min(x, least) - 1 - x) negative + slope x.
  struct Xielu {
    float positive = 0, negative = 0, slope = 0, least = 0;
  } xielu = {};
  /// Values that the spans of biases view.
  std::shared_ptr<const std::vector<float>> own_biases = {};

  /// Roles of the tensors of an MLP.
  struct Roles {
    formats::Role gate, up, down;
    std::optional<formats::FineRole> gate_up;  ///< role of a tensor with the rows of gate and up
    /// Roles of biases, where it may have some.
    std::optional<formats::FineRole> gate_bias, up_bias, down_bias;
  };
  static constexpr Roles kDense = {
      formats::Role::kDenseGate,         formats::Role::kDenseUp,
      formats::Role::kDenseDown,         formats::FineRole::kDenseGateUp,
      formats::FineRole::kDenseGateBias, formats::FineRole::kDenseUpBias,
      formats::FineRole::kDenseDownBias};
  /// Biases have the roles of a dense MLP's, which a layer with a mixture has not.
  static constexpr Roles kShared = {
      formats::Role::kSharedGate,        formats::Role::kSharedUp,
      formats::Role::kSharedDown,        formats::FineRole::kSharedGateUp,
      formats::FineRole::kDenseGateBias, formats::FineRole::kDenseUpBias,
      formats::FineRole::kDenseDownBias};
  /// Number of an MLP among `count` MLPs whose tensors are stacked.
  struct InStack {
    std::size_t matrix = 0, count = 0;
  };
  /// Reads the tensors of these roles in a layer. `spec` is of the whole MLP, of which the inner
  /// values `mine` are read.
  static Mlp load(const BlockWeights& weights, const StepContext& context, const Roles& roles,
                  const MlpSpec& spec, Range mine, std::optional<InStack> stack = {});
  /// Reads the biases that are there; the bias of down only with the first part, which adds it to
  /// the sum of all.
  void load_biases(const BlockWeights& weights, const StepContext& context, const Roles& roles,
                   std::size_t width, Range mine);

  /// Reads the numbers of xIELU (arXiv 2411.13010) as transformers stores them.
  void load_xielu(const BlockWeights& weights);

  /// FP32 sums of down's columns: the whole once added up over the ranks that have the others.
  [[nodiscard]] Matrix partial(const StepContext& context, const Matrix& x) const;
};

/// Routed experts and the shared ones (model reference, 6), wherever ExpertGroup has them.
class Mixture {
 public:
  /// `experts` must outlive this.
  Mixture(const BlockWeights& weights, const StepContext& context, const MixtureSpec& spec,
          ExpertStore& experts);

  /// The layer's output for normalized input `x`.
  Matrix forward(const LayerStep& step, const Matrix& x) const;

 private:
  void load_shared(const BlockWeights& weights, const StepContext& context);
  void load_dense(const BlockWeights& weights, const StepContext& context);
  void load_pool(const BlockWeights& weights, const StepContext& context);
  /// The output of MixtureSpec::dense for the layer's state, normed.
  [[nodiscard]] Matrix dense_output(const StepContext& context, const Matrix& x) const;
  Routing choose(const LayerStep& step, const Matrix& x) const;
  [[nodiscard]] Matrix routed_output(const StepContext& context, const Expert& expert,
                                     const Matrix& rows) const;
  /// FP32 sums of this rank's part of the shared experts, weighed where the router weighs them.
  [[nodiscard]] Matrix shared_output(const StepContext& context, const Matrix& x,
                                     const Routing& routing) const;
  void add_identity_experts(const Matrix& x, const Routing& routing, Matrix& sums) const;

  std::uint32_t layer_ = 0;
  MixtureSpec spec_;
  ExpertGroup group_;
  Linear router_;
  std::optional<RouterMlp> router_mlp_;  ///< makes the input of `router_`; null: it is x
  Linear pool_, unpool_;                 ///< projections around MixtureSpec::pool; may be empty
  HiddenNorm pool_norm_, expert_norm_;
  float router_scale_ = 1.0F;  ///< factor of all weights
  std::vector<float> bias_, logit_bias_;
  std::vector<std::uint32_t> token_experts_;  ///< [vocab, topk], of layers that have the table
  std::vector<Mlp> shared_;  ///< this rank's part of them; one each where the router weighs them
  Linear shared_gate_;       ///< its output times sigmoid of this product; may be empty
  std::vector<float> output_bias_;  ///< bias of the sum; may be empty
  std::optional<Mlp> dense_;        ///< dense MLP of this rank; without it the rest is empty
  HiddenNorm dense_norm_, dense_output_norm_, norm_, output_norm_;
  HiddenNorm router_norm_;           ///< norm of the router's input
  std::vector<float> expert_scale_;  ///< factor of the weights of each expert
};

}  // namespace ingot::inference
