#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "formats/json/json_fwd.h"
#include "formats/kept_experts.h"
#include "formats/storage/tensor_source.h"

namespace ingot::shard {

/// Layers of which some routed expert has a weight here, MTP layers included.
std::set<std::uint32_t> layers_with_experts(const formats::TensorSource& model);

/// Facts that a map is checked against, and the user's allowances.
struct ExpertMapLimits {
  std::uint32_t n_experts = 0;  ///< number of routed experts
  bool has_shared = false;      ///< true: id n_experts is the shared expert
  std::uint32_t ep = 1;
  /// Layers that may have a list of their own, and must where one has; nullopt: as the map says,
  /// which was checked when it was made.
  std::optional<std::set<std::uint32_t>> layers = std::nullopt;
  bool allow_redundant = false;  ///< an expert in several slots
  bool allow_uneven = false;     ///< ranks with different numbers of slots
};

/// The experts that each EP rank holds: physical slots to logical experts. A logical expert is
/// stored once per rank, however many of the rank's slots hold it.
class ExpertMap {
 public:
  /// Experts in contiguous blocks of n_experts / ep. Throws kInvalidArgument, with the remedy
  /// (--expert-map), when ep does not divide n_experts, and for ep > 1 without experts.
  static ExpertMap contiguous(std::uint32_t n_experts, std::uint32_t ep);

  /// JSON: a list of logical experts by physical slot, for every layer; or an object
  /// {"slots": [...]} or {"layers": {"3": [...], ...}}, with an optional "slots_per_rank": [...].
  /// Slots are dealt to ranks in order, evenly unless slots_per_rank says otherwise (with
  /// allow_uneven the first ranks may have one more); every rank has at least one. Throws
  /// kInvalidArgument naming layer and expert: a logical expert in no slot, in several without
  /// allow_redundant, out of range, uneven without allow_uneven, a layer without a list, a list for
  /// a layer without experts, a shared expert with slots in some layers only.
  static ExpertMap parse(std::string_view text, std::string_view where,
                         const ExpertMapLimits& limits);

  [[nodiscard]] std::uint32_t ep() const { return ep_; }
  /// True if every layer has the same slots.
  [[nodiscard]] bool is_uniform() const { return layers_.empty(); }
  /// True if the shared expert has a slot, so it is placed like a routed one.
  [[nodiscard]] bool places_shared() const { return places_shared_; }
  /// Logical experts of a rank in a layer, ascending, each once (the shared one included, as
  /// n_experts). Empty, as the others are, for a layer without experts in a map by layers.
  [[nodiscard]] std::span<const std::uint32_t> experts_of(std::uint32_t layer,
                                                          std::uint32_t ep_rank) const;
  /// EP ranks that hold an expert in a layer, ascending; never empty for valid ids.
  [[nodiscard]] std::vector<std::uint32_t> ranks_of(std::uint32_t layer,
                                                    std::uint32_t expert) const;
  /// Logical experts by physical slot of one rank.
  [[nodiscard]] std::span<const std::uint32_t> slots_of(std::uint32_t layer,
                                                        std::uint32_t ep_rank) const;
  /// The map as parse() reads it; null for contiguous blocks.
  [[nodiscard]] formats::JsonValue to_json() const;

 private:
  struct Slots {
    std::vector<std::vector<std::uint32_t>> by_rank;  ///< slots of each rank
    std::vector<std::vector<std::uint32_t>> experts;  ///< experts of each rank, ascending, unique
  };
  /// Null for a layer without a list, where others have one.
  [[nodiscard]] const Slots* of(std::uint32_t layer) const;

  std::uint32_t ep_ = 1;
  bool is_contiguous_ = false;
  bool places_shared_ = false;
  Slots all_;
  std::map<std::uint32_t, Slots> layers_;
};

/// The text of a map for the model with only these experts, in their new numbers: slots of others
/// are left out, and ranks share the rest evenly, in order. The shared expert has the number behind
/// the others. A text that is no map stays as it is: parse() says why.
std::string map_of_kept(std::string_view text, std::string_view where,
                        const formats::KeptExperts& kept);

}  // namespace ingot::shard
