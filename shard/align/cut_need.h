#pragma once

#include <array>
#include <cstdint>
#include <optional>

#include "shard/align/align_blocks.h"

namespace ingot::shard {

/// Rows and columns of a weight that share a scale and may not be torn apart; 1 where a cut may
/// fall anywhere (also where all of a side share one, which every slice then repeats).
std::array<std::uint64_t, 2> indivisible(formats::SchemeId scheme,
                                         std::array<std::uint64_t, 2> group);

/// What the cut of a tensor asks of the side that is cut.
struct CutNeed {
  bool along_rows = false;
  std::uint64_t width = 0;  ///< rows of a section, or columns
  std::uint64_t n = 1;      ///< slices
  std::uint64_t unit = 1;   ///< elements that may not be torn apart

  [[nodiscard]] bool divides() const { return width % n == 0; }
  [[nodiscard]] bool fits() const { return divides() && width / n % unit == 0; }
};
CutNeed need_of(const TensorToAlign& tensor);

/// Widths of a model that may be extended by numbers that change nothing.
enum class PaddableWidth : std::uint8_t { kVocab, kIntermediate, kMoeIntermediate };
inline constexpr std::size_t kPaddableWidths = 3;

/// Where a weight has such a width.
struct PaddableSide {
  PaddableWidth width{};
  bool is_rows = false;
  std::uint64_t times = 1;     ///< the side is so many times the width: several shared experts
  std::uint64_t sections = 1;  ///< of the rows: 2 for stacked gate and up
};
std::optional<PaddableSide> paddable_side(const TensorToAlign& tensor,
                                          const formats::ModelConfig& config);

/// Whether a block reaches from one section of the rows into the next: the sections then cannot be
/// moved apart.
bool block_joins_sections(const TensorToAlign& tensor, const PaddableSide& side);

/// `block` halved until it divides `part`; 0 when no halving does.
std::uint64_t halved_to_fit(std::uint64_t block, std::uint64_t part);

}  // namespace ingot::shard
