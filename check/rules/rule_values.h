#pragma once

#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "check/rules/rule_input.h"

// How rules read numbers: in bounded pieces, of many tensors at once.

namespace ingot::formats {

/// Whether the numbers of a stored tensor can be read as scales: a dtype that widen_scales knows
/// (I64 too: Ascend's F32 bits), and data that are here.
bool can_read_scales(const Checkpoint& checkpoint, const StoredTensor& tensor);

/// Numbers that are not as they should be.
struct OddValues {
  std::uint64_t n = 0;      ///< how many
  std::uint64_t total = 0;  ///< of how many
  std::uint64_t first = 0;  ///< element of the first
  float value = 0;          ///< the first
};

/// Looks at a run of a tensor's bytes that cuts no number; elements are counted from its beginning.
using Look = std::function<OddValues(const StoredTensor&, std::span<const std::byte>)>;

/// Looks at the whole of every tensor, whose data must be here, on all threads, and reports under
/// `code` what `tell` says of those where something is odd, in their order.
void report_odd(const RuleInput& input, std::span<const StoredTensor* const> tensors,
                const Look& look, ErrorCode code,
                const std::function<std::string(const OddValues&)>& tell);

/// The same for scales for which `is_odd` holds; those that can_read_scales() denies are left out.
void report_odd_scales(const RuleInput& input, std::span<const StoredTensor* const> scales,
                       bool (*is_odd)(float), ErrorCode code,
                       const std::function<std::string(const OddValues&)>& tell);

/// The first number of a stored scale; nullopt when there is none to be read.
std::optional<float> first_scale(const Checkpoint& checkpoint, const StoredTensor& tensor);

/// Not finite or not above zero.
bool is_bad_scale(float scale);

}  // namespace ingot::formats
