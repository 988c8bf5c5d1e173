#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string_view>
#include <tuple>
#include <vector>

#include "formats/storage/tensor_source.h"

namespace ingot::cli {

/// Tensors, the parameters that they hold, and their stored bytes (of a quantized weight, scales
/// included).
struct Tally {
  std::uint64_t n_tensors = 0, n_parameters = 0, n_bytes = 0;
  friend bool operator==(const Tally&, const Tally&) = default;
};

/// What one layer holds.
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

/// What a checkpoint holds, from headers and config alone.
struct Summary {
  Tally all;
  std::uint64_t main_parameters = 0;  ///< without MTP layers
  std::uint64_t mtp_parameters = 0;
  /// The part of main_parameters that one token meets: everything but the routed experts, of which
  /// num_experts_per_tok count. Nothing when the family's roles are unknown.
  std::optional<std::uint64_t> active_parameters;
  std::map<formats::DType, Tally> by_dtype;  ///< stored tensors; n_parameters counts their elements
  std::map<formats::SchemeId, Tally> by_scheme;
  std::map<formats::Role, Tally> by_role;
  std::vector<LayerSummary> layers;
  std::map<QuantizationFound, Tally> quantization;
};

formats::Role role_of(const formats::LogicalTensor& tensor);
/// Stored bytes of a logical tensor, all parts.
std::uint64_t stored_bytes(const formats::TensorSource& source,
                           const formats::LogicalTensor& tensor);

Summary summarize(const formats::TensorSource& source);

}  // namespace ingot::cli
