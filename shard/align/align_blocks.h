#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "formats/dialect/dialect.h"
#include "formats/storage/tensor_source.h"
#include "shard/cut/slicing.h"

namespace ingot::shard {

/// One tensor of the output, as it is to be cut.
struct TensorToAlign {
  const formats::LogicalTensor* tensor = nullptr;
  formats::SchemeId scheme{};  ///< scheme in the output
  /// Rows and columns that share a scale in the output; no columns: all columns.
  std::array<std::uint64_t, 2> group = {0, 0};
  bool has_zero_points = false, has_group_order = false;  ///< Part::kZeroPoint, kGroupOrder
  TensorCut cut;
};

/// The change that lets the cuts fall between blocks. All zero: none.
struct Alignment {
  bool to_bf16 = false;
  std::array<std::uint64_t, 2> block = {0, 0};  ///< smaller block of a retiled FP8 tensor
  /// Rows (of each section) and columns of the padded weight; 0: as they are.
  std::array<std::uint64_t, 2> padded = {0, 0};
  bool operator==(const Alignment&) const = default;
};

/// Widths that config.json of padded ranks has to state; 0: unchanged.
struct PaddedWidths {
  std::uint64_t vocab = 0, intermediate = 0, moe_intermediate = 0;
};

struct Alignments {
  std::vector<Alignment> tensors;               ///< parallel to the input
  std::array<std::uint64_t, 2> block = {0, 0};  ///< block of all retiled tensors; {0, 0}: none
  PaddedWidths widths;
};

/// Makes every cut fall between elements and between blocks, in the way that `slicing.fit` asks
/// for:
/// - kRefuse: throws kUnsupported, collected, naming for each kind of tensor (first example and
///   count) the width, the block, the number of ranks, and the remedies that would work.
/// - kRetile: one smaller block for every kFp8Block tensor, replicated ones too, halving only the
///   axis that needs it; groups of 16 and 32 and widths that tp does not divide are refused.
/// - kPad: FFN widths (gate, up and down together, experts and shared experts to one width) and
///   the vocabulary are extended to a multiple of ranks x block; heads are refused.
/// - kBf16: quantized tensors that do not fit, with all that a loader fuses with them (gate and up;
///   every routed expert of a layer as one), become BF16.
Alignments align_blocks(std::span<const TensorToAlign> tensors, const formats::ModelConfig& config,
                        const Slicing& slicing);

}  // namespace ingot::shard
