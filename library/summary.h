#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "formats/checkpoint/checkpoint.h"
#include "formats/json/json.h"
#include "library/as_stored.h"

// The contents of a checkpoint, only from headers and config.

namespace ingot::library {

/// Tensors, the parameters that they hold, and their stored bytes (of a quantized weight, scales
/// included).
struct Tally {
  std::uint64_t n_tensors = 0, n_parameters = 0, n_bytes = 0;
  friend bool operator==(const Tally&, const Tally&) = default;
};

/// The contents of one layer.
struct LayerSummary {
  std::uint32_t layer = 0;
  std::string_view kind;  ///< "dense", "moe" or "mtp"
  Tally tally;
  std::map<formats::SchemeId, std::uint64_t> tensors_by_scheme;
};

/// One way in which weights are quantized.
struct QuantizationFound {
  formats::SchemeId scheme{};
  std::uint64_t block_rows = 0, block_cols = 0;
  formats::DType scale_dtype{};
  auto operator<=>(const QuantizationFound&) const = default;
};

/// Sums of stored tensors or weights by one of their properties, in the order of its values.
struct Breakdown {
  const char* property;
  const char* counted;  ///< the unit of n_parameters
  std::map<int, std::pair<std::string_view, Tally>> rows;

  template <typename Value>
  Tally& operator()(Value value, std::string_view name) {
    auto& [row_name, tally] = rows[static_cast<int>(value)];
    row_name = name;
    return tally;
  }
};

/// The contents of a checkpoint, only from headers and config.
struct Summary {
  Tally all;
  /// Without MTP layers, tables of n-grams and other modalities, which are counted apart.
  std::uint64_t main_parameters = 0;
  std::uint64_t mtp_parameters = 0, table_parameters = 0, modality_parameters = 0;
  std::uint64_t n_cache_scales = 0;  ///< tensors, no parameters either
  /// The part of main_parameters that one token meets: everything but the routed experts, of which
  /// num_experts_per_tok count. Nullopt when the family's roles are unknown.
  std::optional<std::uint64_t> active_parameters;
  Breakdown by_dtype = {"dtype", "elements", {}};  ///< stored tensors: scales are no parameters
  Breakdown by_scheme = {"scheme", "parameters", {}}, by_role = {"role", "parameters", {}};
  std::vector<LayerSummary> layers;
  std::map<QuantizationFound, Tally> quantization;
};

Summary summarize(const formats::Checkpoint& source, const AsStored& as_stored);

// Rows of the summary as JSON.
formats::Json breakdown_rows(const Breakdown& breakdown);
formats::Json row_of(const LayerSummary& layer);
formats::Json file_rows(const formats::Checkpoint& checkpoint, const AsStored& as_stored);
formats::Json side_file_rows(const formats::Checkpoint& checkpoint);

/// All of it.
formats::Json summary_json(const formats::Checkpoint& checkpoint);

}  // namespace ingot::library
