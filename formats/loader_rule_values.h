#pragma once

#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "formats/loader_rule_bodies.h"

// How rules read numbers: in bounded pieces, and of many tensors at once.

namespace ingot::formats::rule_bodies {

/// Calls `look(bytes, offset)` over the whole of a stored tensor, piece by piece; a piece is a
/// multiple of 8 bytes, so no number is cut.
void scan_bytes(const Checkpoint& checkpoint, const StoredTensor& tensor,
                const std::function<void(std::span<const std::byte>, std::uint64_t)>& look);

/// Whether the numbers of a stored tensor can be read as scales: a dtype that widen_scales knows
/// (I64 too: Ascend's F32 bits), and data that are here.
bool can_read_scales(const Checkpoint& checkpoint, const StoredTensor& tensor);

/// The numbers of a stored scale that are not as they should be.
struct OddValues {
  std::uint64_t n = 0;      ///< how many
  std::uint64_t total = 0;  ///< of how many
  std::uint64_t first = 0;  ///< element of the first
  float value = 0;          ///< the first
};

/// Counts the scales for which `is_odd` holds; nothing when there are none. Needs
/// can_read_scales().
std::optional<OddValues> find_odd_scales(const Checkpoint& checkpoint, const StoredTensor& tensor,
                                         bool (*is_odd)(float));

/// The first number of a stored scale; nothing when there is none to be read.
std::optional<float> first_scale(const Checkpoint& checkpoint, const StoredTensor& tensor);

/// Not finite or not above zero.
bool is_bad_scale(float scale);

/// Reports the scales among `scales` that hold a number which is not finite or not above zero.
void report_bad_scales(const Checkpoint& checkpoint, std::span<const StoredTensor* const> scales,
                       const RuleOptions& options, const Report& report);

/// Runs `look` on every tensor by several threads, and reports what it found in their order.
void report_in_order(std::span<const StoredTensor* const> tensors, std::size_t threads,
                     const Report& report,
                     const std::function<std::optional<Finding>(const StoredTensor&)>& look);

}  // namespace ingot::formats::rule_bodies
