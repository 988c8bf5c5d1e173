#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "formats/base/error.h"
#include "formats/json/json.h"
#include "shard/cut/expert_map.h"

namespace ingot::shard {

/// A map as its file says it.
struct MapText {
  const formats::Json* slots = nullptr;   ///< of every layer
  const formats::Json* layers = nullptr;  ///< object of lists
  const formats::Json* slots_per_rank = nullptr;
};

/// Reads the JSON of an expert map and deals its slots to ranks. Faults of single lists are
/// collected; what makes the file useless is thrown.
class MapReader {
 public:
  using ByRank = std::vector<std::vector<std::uint32_t>>;

  /// `limits` must outlive it.
  MapReader(std::string_view where, const ExpertMapLimits& limits)
      : where_(where), limits_(limits) {}

  [[nodiscard]] MapText read_top(const formats::Json& json) const;
  /// Null: ranks share evenly.
  void read_slots_per_rank(const formats::Json* list);
  /// The slots of each rank; empty after a fault. `layer` is nothing for all layers together.
  ByRank read_slots(const formats::Json& list, std::optional<std::uint32_t> layer);

  [[nodiscard]] Error refusal(std::string fact) const;
  void fault(std::string fact) { faults_.add(refusal(std::move(fact))); }
  [[nodiscard]] const ErrorList& faults() const { return faults_; }

 private:
  void list_fault(std::string_view fact);
  void check_counts(const std::vector<std::uint32_t>& n_slots_of);
  ByRank deal(const std::vector<std::uint32_t>& slots);

  std::string where_;
  const ExpertMapLimits& limits_;
  std::vector<std::uint32_t> slots_per_rank_;
  std::optional<std::uint32_t> layer_;  // of the list that is being read
  ErrorList faults_;
};

}  // namespace ingot::shard
