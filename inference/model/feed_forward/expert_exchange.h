#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "inference/base/matrix.h"
#include "inference/model/feed_forward/router.h"
#include "inference/model/step/step.h"
#include "inference/parallel/comm.h"
#include "inference/parallel/rank_view.h"

namespace ingot::inference {

/// Which expert ranks hold the experts of one layer. Where the shared expert stands in a slot, its
/// id is the number of routed ones.
class ExpertPlaces {
 public:
  ExpertPlaces() = default;
  ExpertPlaces(const RankView& rank, std::size_t n_experts, std::uint32_t layer);

  [[nodiscard]] bool places_shared() const { return holders_.size() > n_routed_; }
  [[nodiscard]] bool is_routed(std::uint32_t expert) const { return expert < n_routed_; }
  /// Whether a rank holds an expert.
  [[nodiscard]] bool holds(std::uint32_t ep_rank, std::uint32_t expert) const;
  /// The expert rank that each of these uses of an expert goes to: of its holders the one with the
  /// fewest so far, of equal ones the first.
  [[nodiscard]] std::vector<std::uint32_t> assign(std::span<const std::uint32_t> experts) const;

 private:
  std::size_t n_routed_ = 0;
  std::vector<std::vector<std::uint32_t>> holders_;  // ascending, by expert
};

/// Sums over experts of weight x output, one row per token: of the routed ones, and of a shared one
/// that stands in a slot (else empty).
struct ExpertSums {
  ExpertSums() = default;
  ExpertSums(const ExpertPlaces& places, std::size_t rows, std::size_t cols)
      : routed(rows, cols),
        shared(places.places_shared() ? Matrix(rows, cols) : Matrix()),
        places_(&places) {}

  void add(std::size_t row, std::uint32_t expert, float weight, std::span<const float> output);

  Matrix routed, shared;

 private:
  const ExpertPlaces* places_ = nullptr;
};

/// Tokens of one layer and step travel to the ranks of their experts and the outputs back (model
/// reference, 12.3), within the expert group. Ranks of one tensor group hold the same tokens, so
/// each sends its share of them, and in the end they gather the sums. A rank gets a token once,
/// however many of its experts the token has chosen, and of an expert in slices every slice gets
/// it. Ranks and experts without tokens take part like the others.
class ExpertExchange {
 public:
  /// Begins to send the tokens of `x`. All arguments must outlive this.
  ExpertExchange(const StepContext& context, std::size_t layer, const ExpertPlaces& places,
                 const Matrix& x, const Routing& routing);

  /// Waits for the tokens of other ranks; returns the experts they are for, ascending.
  std::vector<std::uint32_t> receive();
  /// Runs each of those experts once, over all of its tokens, and begins to send the outputs back.
  /// `run` gives FP32 sums, of an expert in slices this rank's share.
  void answer(const std::function<Matrix(std::uint32_t expert, const Matrix& rows)>& run);
  /// Waits for the outputs. Slices are added in rank order and rounded as a linear's output; then
  /// weighted outputs are added in ascending expert id, so that a token's sum does not depend on
  /// the others.
  ExpertSums finish();

 private:
  /// Where a token waits for its expert, or an output for its token: rank of the group (of the
  /// first slice), and place among the uses in its letter.
  struct Place {
    std::size_t rank = 0, use = 0;
  };
  /// A use of an expert by a token of a letter.
  struct Use {
    std::uint32_t token = 0, expert = 0;
  };
  struct Arrived {
    std::vector<Use> uses;
    Matrix tokens;
  };

  [[nodiscard]] Bytes letter(std::span<const Use> uses, std::span<const std::size_t> tokens) const;
  [[nodiscard]] Arrived opened(const Bytes& letter) const;
  [[nodiscard]] Matrix gathered(const char* name, const Matrix& mine) const;

  const StepContext& context_;
  std::size_t layer_;
  const ExpertPlaces& places_;
  const Matrix& x_;
  const Routing& routing_;
  Range rows_;  // of x, those that this rank sends
  Collective tokens_, outputs_;
  std::vector<Place> went_to_;  // by use of the own rows
  std::vector<Arrived> arrived_;
  std::vector<std::pair<std::uint32_t, std::vector<Place>>> by_expert_;  // ascending
};

}  // namespace ingot::inference
