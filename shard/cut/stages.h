#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "formats/storage/tensor_source.h"

namespace ingot::shard {

/// The layers of each pipeline stage: contiguous ranges over the main layers; MTP layers belong to
/// the last stage.
struct Stages {
  /// First layer of each stage, then the number of main layers: stage s has [first[s],
  /// first[s+1]). {0, n} for one stage.
  std::vector<std::uint32_t> first;

  [[nodiscard]] std::uint32_t count() const {
    return first.empty() ? 1 : static_cast<std::uint32_t>(first.size()) - 1;
  }
  [[nodiscard]] std::uint32_t stage_of(std::uint32_t layer) const;
};

/// Balances the stages by bytes: the largest stage is as small as contiguous ranges allow,
/// embedding counted with the first stage, norm, head and MTP layers with the last; ties give
/// earlier stages more layers. `n_bytes` is parallel to source.tensors(): the bytes of each tensor
/// in the output. Throws kInvalidArgument for more stages than layers.
Stages balanced_stages(const formats::TensorSource& source, std::span<const std::uint64_t> n_bytes,
                       std::uint32_t pp);

/// `0-30,31-60`: inclusive ranges, in order, covering every main layer once. Throws
/// kInvalidArgument naming the fault.
Stages parse_stages(std::string_view text, std::uint32_t n_layers, std::uint32_t pp);

}  // namespace ingot::shard
