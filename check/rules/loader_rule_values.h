#pragma once

#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "check/rules/loader_rule_bodies.h"

// How rules read numbers: in bounded pieces, of many tensors at once.

namespace ingot::formats::rule_bodies {

/// Whether the numbers of a stored tensor can be read as scales: a dtype that widen_scales knows
/// (I64 too: Ascend's F32 bits), and data that are here.
bool can_read_scales(const Checkpoint& checkpoint, const StoredTensor& tensor);

/// Those among `scales` of which that holds.
std::vector<const StoredTensor*> readable_scales(const Checkpoint& checkpoint,
                                                 std::span<const StoredTensor* const> scales);

/// Numbers that are not as they should be.
struct OddValues {
  std::uint64_t n = 0;      ///< how many
  std::uint64_t total = 0;  ///< of how many
  std::uint64_t first = 0;  ///< element of the first
  float value = 0;          ///< the first
};

/// Looks at a run of a tensor's bytes that cuts no number; elements are counted from its beginning.
using Look = std::function<OddValues(const StoredTensor&, std::span<const std::byte>)>;

/// Looks for the scales for which `is_odd` holds. Needs can_read_scales().
Look odd_scales(bool (*is_odd)(float));

/// Looks at the whole of every tensor, in chunks on all threads, and reports what `tell` says of
/// those where something is odd, in their order.
void report_odd(const Checkpoint& checkpoint, std::span<const StoredTensor* const> tensors,
                const RuleOptions& options, const Look& look,
                const std::function<Finding(const StoredTensor&, const OddValues&)>& tell,
                const Report& report);

/// The first number of a stored scale; nothing when there is none to be read.
std::optional<float> first_scale(const Checkpoint& checkpoint, const StoredTensor& tensor);

/// Not finite or not above zero.
bool is_bad_scale(float scale);

/// Reports the scales among `scales` that hold a number which is not finite or not above zero.
void report_bad_scales(const Checkpoint& checkpoint, std::span<const StoredTensor* const> scales,
                       const RuleOptions& options, const Report& report);

}  // namespace ingot::formats::rule_bodies
