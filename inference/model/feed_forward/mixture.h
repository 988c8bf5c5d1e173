#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "inference/base/matrix.h"
#include "inference/model/feed_forward/expert_exchange.h"
#include "inference/model/feed_forward/router.h"
#include "inference/model/step/step.h"
#include "inference/weights/block_weights.h"
#include "inference/weights/expert_store.h"
#include "inference/weights/linear.h"

namespace ingot::inference {

/// down(silu(gate x) * up x), or a tensor-parallel part of it: some rows of gate and up, the same
/// columns of down. Without a gate it is down(relu(up x)^2); without an up its rows stand in turn
/// with the gate's, in `gate`. GateForm says what else may become of gate and up.
struct Mlp {
  Linear gate, up, down;
  GateForm form = {};
  std::span<const float> gate_bias = {}, up_bias = {}, down_bias = {};
  float scale = 1.0F;  ///< of its output, which partial() leaves to whoever adds it up

  /// Those of a layer's tensors with these roles; `spec` of the whole, of which the inner values
  /// `mine` are read.
  struct Roles {
    formats::Role gate, up, down;
  };
  static constexpr Roles kDense = {formats::Role::kDenseGate, formats::Role::kDenseUp,
                                   formats::Role::kDenseDown};
  static constexpr Roles kShared = {formats::Role::kSharedGate, formats::Role::kSharedUp,
                                    formats::Role::kSharedDown};
  /// Which of how many MLPs whose tensors are stacked.
  struct InStack {
    std::size_t matrix = 0, count = 0;
  };
  static Mlp load(const BlockWeights& weights, const StepContext& context, const Roles& roles,
                  const MlpSpec& spec, Range mine, std::optional<InStack> stack = {});

  /// FP32 sums of down's columns: the whole once added up over the ranks that have the others.
  [[nodiscard]] Matrix partial(const StepContext& context, const Matrix& x) const;
};

/// Routed experts and the shared one (model reference, 6). Each expert runs once per step over all
/// tokens that chose it; outputs are added in FP32 in ascending expert id, so that a token's result
/// does not depend on the others. Experts nobody chose are not touched.
class Mixture {
 public:
  /// `experts` must outlive this.
  Mixture(const BlockWeights& weights, const StepContext& context, const MixtureSpec& spec,
          ExpertStore& experts);

  /// The layer's output for normalized input `x`, reduced. Where the ranks that share out the
  /// experts are those that share the tokens, every rank runs its experts on all of them and one
  /// sum joins the results (model reference, 12.1); else tokens travel to their experts and back
  /// (12.3), and shared experts are computed meanwhile.
  /// `tokens` are those of the rows.
  Matrix forward(const StepContext& context, const Matrix& x, std::span<const std::int32_t> tokens,
                 const Taps& taps) const;

 private:
  /// Where shared experts are.
  enum class Shared : std::uint8_t {
    kNone,
    kSlices,  ///< cut over the tensor group
    kWhole,   ///< on every rank
    kSlot,    ///< in slots of the expert map
  };

  Routing choose(const StepContext& context, const Matrix& x,
                 std::span<const std::int32_t> tokens) const;
  [[nodiscard]] Routing with_shared(const Routing& chosen) const;
  void load_shared(const BlockWeights& weights, const StepContext& context);
  /// FP32 sums of what this rank has of the shared experts; `shared_weights` [rows, experts] of
  /// those that the router weighs, else empty.
  [[nodiscard]] Matrix shared_output(const StepContext& context, const Matrix& x,
                                     std::span<const float> shared_weights = {}) const;
  /// Sums over this rank's experts alone.
  ExpertSums own_experts(const StepContext& context, const Matrix& x, const Routing& routing,
                         const Taps& taps) const;
  /// FP32 sums of one expert for some rows, of an expert in slices this rank's share.
  Matrix run_expert(const StepContext& context, std::uint32_t expert, const Matrix& rows,
                    const Taps& taps) const;
  [[nodiscard]] bool is_identity(std::uint32_t expert) const;
  void add_identity_experts(const Matrix& x, const Routing& routing, Matrix& sums) const;
  void prefetch(std::span<const std::uint32_t> experts) const;

  std::uint32_t layer_ = 0;
  MixtureSpec spec_;
  ExpertPlaces places_;
  Linear router_;
  float router_scale_ = 1.0F;  ///< of all weights
  std::vector<float> bias_, logit_bias_;
  std::vector<std::uint32_t> token_experts_;  ///< [vocab, topk], of layers that have the table
  Shared shared_in_ = Shared::kNone;
  std::vector<Mlp> shared_;  ///< what this rank has of it; one each where the router weighs them
  Linear shared_gate_;       ///< its output times sigmoid of this product; may be empty
  ExpertStore* experts_ = nullptr;
};

}  // namespace ingot::inference
