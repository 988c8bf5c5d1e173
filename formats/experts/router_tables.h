#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "formats/checkpoint/checkpoint.h"

// Tables that give each token its experts (`tid2eid` of DeepSeek V4), of a model that loses some.

namespace ingot::formats {

/// A layer's router, and the experts that stay in it.
struct RouterRows {
  std::span<const float> rows;  ///< row-major, one row for each expert or more
  std::uint64_t n_experts = 0;
  std::span<const std::uint32_t> kept;  ///< ascending
};

/// The table in new numbers, `width` entries for a token. An expert that stays has its new number.
/// One that is dropped becomes the kept one with the most similar row of the router, by their
/// cosine in FP64 (0 for a row of zeros; of equal ones the first), that the token does not have:
/// first those that stay take their places, then the others from left to right. Requires at least
/// `width` experts that stay. Throws kCorrupt for an entry that is no expert.
std::vector<std::int64_t> redirected_rows(std::span<const std::int64_t> table, std::size_t width,
                                          const RouterRows& router);

/// Stored tensors of a layer: table, I64 or I32 [tokens, width], and router, plain [experts or
/// more, inputs].
struct RouterTable {
  std::uint32_t table = 0, router = 0;
  std::uint64_t n_experts = 0;
  std::vector<std::uint32_t> kept;
};
/// The bytes of the table in new numbers. Throws as redirected_rows() and reading do, and
/// kNonFinite for a router with such numbers.
std::vector<std::byte> redirected(const Checkpoint& source, const RouterTable& table);

}  // namespace ingot::formats
