#pragma once

#include <cstdint>
#include <optional>

#include "formats/family/family.h"
#include "formats/records/slicing_record.h"

namespace ingot::formats {

/// The claim of a rank on a tensor of the model, whole or a slice of it.
enum class Holding : std::uint8_t {
  kPromised,  ///< tensor that must be here
  kOptional,  ///< the facts known about this rank do not decide it
  kElsewhere  ///< tensor that belongs to other ranks
};

/// The tensors of a model that belong to one rank.
class RankHoldings {
 public:
  /// `slicing.rank` must be there; `slicing` and `config` must outlive this.
  RankHoldings(const SlicingRecord& slicing, const ModelConfig& config);

  /// Tells if the rank holds a row's tensor; `expert` is nullopt for stacked and for shared
  /// experts.
  [[nodiscard]] Holding of(const TensorRule& rule, std::optional<std::uint32_t> layer,
                           std::optional<std::uint32_t> expert) const;
  /// True if shared experts have slots in the expert map, and are placed and cut like routed ones.
  [[nodiscard]] bool places_shared() const { return places_shared_; }
  /// How many ways tensor parallelism cuts tensors of this role, and which slice this rank has.
  struct Share {
    std::uint32_t n = 1, index = 0;
  };
  [[nodiscard]] Share share_of(Role role) const;

 private:
  [[nodiscard]] Holding in_layer(const TensorRule& rule, std::uint32_t layer,
                                 std::optional<std::uint32_t> expert) const;

  const SlicingRecord& slicing_;
  const RankRecord& rank_;
  const ModelConfig& config_;
  bool places_shared_;
};

}  // namespace ingot::formats
