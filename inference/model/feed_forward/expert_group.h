#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "inference/base/matrix.h"
#include "inference/model/step/router.h"
#include "inference/model/step/step.h"
#include "inference/parallel/rank_view.h"
#include "inference/weights/expert_store.h"

namespace ingot::inference {

/// Places of one layer's experts: the expert ranks that hold each. Where the shared expert has a
/// slot, its id is the number of routed ones.
class ExpertPlaces {
 public:
  ExpertPlaces(const RankView& rank, const MixtureSpec& spec, std::uint32_t layer);

  /// A token's use of an expert that has tensors, the weight of its output, and the expert rank
  /// that it goes to.
  struct Use {
    std::size_t row = 0;
    std::uint32_t expert = 0, ep_rank = 0;
    float weight = 1;
  };

  [[nodiscard]] bool places_shared() const { return holders_.size() > n_routed_; }
  [[nodiscard]] std::uint32_t slot_of_shared() const {
    return static_cast<std::uint32_t>(n_routed_);
  }
  [[nodiscard]] bool is_routed(std::uint32_t expert) const { return expert < n_routed_; }
  /// True if a rank holds an expert.
  [[nodiscard]] bool holds(std::uint32_t ep_rank, std::uint32_t expert) const;
  /// The uses by some rows, in their order, of a row by ascending expert. A shared expert in a slot
  /// is used by every row, with weight 1. A use goes to the holder with the fewest so far, of equal
  /// ones to the first.
  [[nodiscard]] std::vector<Use> uses(const Routing& routing, Range rows) const;

 private:
  std::size_t n_routed_ = 0;
  std::vector<std::vector<std::uint32_t>> holders_;  // ascending, by expert
};

/// The experts of one layer wherever they are: on which ranks, and in memory or not. A mixture says
/// how an expert computes, this class where, and how the outputs come together.
class ExpertGroup {
 public:
  /// FP32 sums for some rows, of an expert in slices this rank's share.
  struct Parts {
    std::function<Matrix(const Expert& expert, const Matrix& rows)> routed;
    std::function<Matrix(const Matrix& rows)> shared;  ///< all shared experts
    std::uint64_t* n_tokens = nullptr;  ///< counts rows that experts of this rank are given
    /// Shown what a routed expert of this rank gives its tokens, and the weight of each; may be
    /// empty. Only where experts meet in the tensor group.
    std::function<void(std::uint32_t expert, std::span<const float> weights, const Matrix& outputs)>
        seen = {};
  };
  /// Sums over experts of weight x output, one row per token. `shared` is empty where there are no
  /// shared experts, or where `routed` has them.
  struct Sums {
    Matrix routed, shared;
  };

  /// `experts` must outlive this. Throws kUnsupported for a mixture that these ranks do not
  /// compute.
  ExpertGroup(const RankView& rank, std::uint32_t layer, const MixtureSpec& spec,
              ExpertStore& experts);

  /// The inner features of a shared expert with `width` of them that this rank holds; nullopt where
  /// others have the expert.
  [[nodiscard]] std::optional<Range> shared_part(const RankView& rank, std::size_t width) const;

  /// Each expert runs once, over all rows that use it; outputs are added in FP32 in ascending
  /// expert id, so that a token's result does not depend on the others. Experts that no row uses
  /// are not touched. Where the ranks that share out the experts are those that share the tokens,
  /// every rank runs its experts on all of them and one sum joins the results (model
  /// reference, 12.1); else tokens travel to their experts and back (12.3), and shared experts are
  /// computed meanwhile.
  Sums run(const StepContext& context, const Matrix& x, const Routing& routing,
           const Parts& parts) const;

 private:
  /// Sums over this rank's experts.
  Sums run_own(const StepContext& context, const Matrix& x, const Routing& routing,
               const Parts& parts) const;
  Matrix run_one(std::uint32_t expert, const Matrix& rows, const Parts& parts) const;
  void prefetch(std::vector<std::uint32_t> experts) const;
  void reduce(const StepContext& context, const char* name, Matrix& sums) const;

  std::uint32_t layer_;
  ExpertPlaces places_;
  bool has_shared_, scales_input_;
  ExpertStore* experts_;
};

}  // namespace ingot::inference
