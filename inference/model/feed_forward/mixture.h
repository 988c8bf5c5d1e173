#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "inference/base/matrix.h"
#include "inference/model/feed_forward/expert_exchange.h"
#include "inference/model/feed_forward/router.h"
#include "inference/model/step/step.h"
#include "inference/weights/expert_store.h"
#include "inference/weights/linear.h"
#include "inference/weights/weight_store.h"

namespace ingot::inference {

/// down(silu(gate x) * up x), or a tensor-parallel part of it: some rows of gate and up, the same
/// columns of down.
struct Mlp {
  Linear gate, up, down;

  /// `prefix` as in `model.layers.0.mlp.`; `intermediate` of the whole, of which `mine` is read.
  static Mlp load(const WeightStore& weights, const StepContext& context, const std::string& prefix,
                  std::size_t intermediate, Range mine);

  /// FP32 sums of down's columns: the whole once added up over the ranks that have the others.
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

  /// The layer's output for normalized input `x`, reduced. Where the ranks that share out the
  /// experts are those that share the tokens, every rank runs its experts on all of them and one
  /// sum joins the results (model reference, 12.1); else tokens travel to their experts and back
  /// (12.3), and shared experts are computed meanwhile.
  Matrix forward(const StepContext& context, const Matrix& x, const Taps& taps) const;

 private:
  /// Where shared experts are.
  enum class Shared : std::uint8_t {
    kNone,
    kSlices,  ///< cut over the tensor group
    kWhole,   ///< on every rank
    kSlot,    ///< in slots of the expert map
  };

  Routing choose(const StepContext& context, const Matrix& x) const;
  [[nodiscard]] Routing with_shared(const Routing& chosen) const;
  /// Sums over this rank's experts alone.
  ExpertSums own_experts(const StepContext& context, const Matrix& x, const Routing& routing,
                         const Taps& taps) const;
  /// FP32 sums of one expert for some rows, of an expert in slices this rank's share.
  Matrix run_expert(const StepContext& context, std::uint32_t expert, const Matrix& rows,
                    const Taps& taps) const;
  void prefetch(std::span<const std::uint32_t> experts) const;

  std::uint32_t layer_ = 0;
  ExpertPlaces places_;
  Linear router_;
  std::vector<float> bias_;
  Shared shared_in_ = Shared::kNone;
  std::optional<Mlp> shared_;  ///< what this rank has of it
  ExpertStore* experts_ = nullptr;
};

}  // namespace ingot::inference
