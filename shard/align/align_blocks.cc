#include "shard/align/align_blocks.h"

#include <array>
#include <numeric>
#include <optional>
#include <set>
#include <span>
#include <utility>

#include <fmt/format.h>

#include "formats/base/checked.h"
#include "formats/base/error.h"
#include "shard/align/alignment_refusals.h"

namespace ingot::shard {

using formats::Dim;
using formats::Fuse;
using formats::Role;

namespace {

// The ways of align_blocks, one per TpFit that changes something. Each fills in
// Alignments::tensors, which has an entry per tensor already, and adds what it cannot help to the
// refusals.

void align_by_retiling(std::span<const TensorToAlign> tensors, Alignments& alignments,
                       AlignmentRefusals& refusals);

void align_by_padding(std::span<const TensorToAlign> tensors, const formats::ModelConfig& config,
                      Alignments& alignments, AlignmentRefusals& refusals);

void align_by_casting(std::span<const TensorToAlign> tensors, Alignments& alignments,
                      AlignmentRefusals& refusals);

/// What divides the blocks of all FP8 tensors: the block of a released model, unless it has
/// several.
std::array<std::uint64_t, 2> common_block(std::span<const TensorToAlign> tensors) {
  std::array<std::uint64_t, 2> block = {0, 0};
  for (const TensorToAlign& tensor : tensors) {
    if (tensor.scheme != formats::SchemeId::kFp8Block) continue;
    block = {std::gcd(block[0], tensor.group[0]), std::gcd(block[1], tensor.group[1])};
  }
  return block;
}

void align_by_retiling(std::span<const TensorToAlign> tensors, Alignments& alignments,
                       AlignmentRefusals& refusals) {
  std::array<std::uint64_t, 2> block = common_block(tensors);
  bool is_needed = false;
  for (const TensorToAlign& tensor : tensors) {
    const CutNeed need = need_of(tensor);
    if (need.fits()) continue;
    std::uint64_t& side = block[need.along_rows ? 0 : 1];
    const std::uint64_t halved = tensor.scheme == formats::SchemeId::kFp8Block && need.divides()
                                     ? halved_to_fit(side, need.width / need.n)
                                     : 0;
    if (halved == 0) {
      refusals.add(tensor);
      continue;
    }
    // It still divides what was halved for earlier tensors.
    side = halved;
    is_needed = true;
  }
  if (!is_needed) return;
  alignments.block = block;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i].scheme == formats::SchemeId::kFp8Block) alignments.tensors[i].block = block;
  }
}

constexpr std::uint64_t kMaxWidth = std::uint64_t{1} << 32;

/// One width of the model over all tensors that have it.
struct WidthNeed {
  bool is_padded = false;
  std::uint64_t step = 1;  ///< the padded width is a multiple of it
};

/// What the width must be a multiple of for this tensor alone.
std::uint64_t step_of(const TensorToAlign& tensor, const PaddableSide& side) {
  const bool is_cut = tensor.cut.axis == (side.is_rows ? Axis::kRows : Axis::kCols);
  const std::uint64_t n = is_cut ? tensor.cut.n : 1;
  const std::uint64_t unit = indivisible(tensor.scheme, tensor.group)[side.is_rows ? 0 : 1];
  const std::uint64_t step = n * unit;
  return step / std::gcd(step, side.times);
}

void require_multiple(WidthNeed& need, std::uint64_t step) {
  const auto multiple = checked_mul(need.step / std::gcd(need.step, step), step);
  if (!multiple || *multiple > kMaxWidth) {
    throw Error(ErrorCode::kLimit,
                fmt::format("a width padded to multiples of both {} and {} is beyond {} (choose "
                            "numbers of ranks that divide each other)",
                            need.step, step, kMaxWidth));
  }
  need.step = *multiple;
}

void align_by_padding(std::span<const TensorToAlign> tensors, const formats::ModelConfig& config,
                      Alignments& alignments, AlignmentRefusals& refusals) {
  std::array<WidthNeed, kPaddableWidths> needs;
  for (const TensorToAlign& tensor : tensors) {
    const CutNeed need = need_of(tensor);
    const auto side = paddable_side(tensor, config);
    if (!need.fits()) {
      if (!side || side->is_rows != need.along_rows) {
        refusals.add(tensor);
        continue;
      }
      needs[static_cast<std::size_t>(side->width)].is_padded = true;
    }
    if (side)
      require_multiple(needs[static_cast<std::size_t>(side->width)], step_of(tensor, *side));
  }

  const std::array<std::uint64_t, kPaddableWidths> widths = {
      formats::dim_size(Dim::kVocab, config), formats::dim_size(Dim::kIntermediate, config),
      formats::dim_size(Dim::kMoeIntermediate, config)};
  std::array<std::uint64_t, kPaddableWidths> padded = {};
  for (std::size_t i = 0; i < kPaddableWidths; ++i)
    padded[i] = needs[i].is_padded ? round_up(widths[i], needs[i].step) : widths[i];

  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const auto side = paddable_side(tensors[i], config);
    if (!side) continue;
    const auto width = static_cast<std::size_t>(side->width);
    if (padded[width] == widths[width]) continue;
    if (block_joins_sections(tensors[i], *side)) {
      refusals.add_joined(tensors[i]);
    } else {
      alignments.tensors[i].padded[side->is_rows ? 0 : 1] = padded[width] * side->times;
    }
  }
  const auto stated = [&](PaddableWidth width) {
    const auto i = static_cast<std::size_t>(width);
    return padded[i] == widths[i] ? 0 : padded[i];
  };
  alignments.widths = {.vocab = stated(PaddableWidth::kVocab),
                       .intermediate = stated(PaddableWidth::kIntermediate),
                       .moe_intermediate = stated(PaddableWidth::kMoeIntermediate)};
}

/// Modules of a layer that loaders build from several weights, which must be quantized alike.
enum class Fused : std::uint8_t { kExperts, kSharedGateUp, kDenseGateUp, kQkv, kQkvA };
using FusedModule = std::pair<std::uint32_t, Fused>;  // of a layer

std::optional<FusedModule> fused_module(const formats::LogicalTensor& tensor) {
  if (tensor.rule == nullptr || !tensor.layer) return std::nullopt;
  const auto of_layer = [&](Fused fused) { return FusedModule{*tensor.layer, fused}; };
  if (formats::is_routed_expert(tensor.rule->role)) return of_layer(Fused::kExperts);
  switch (tensor.rule->role) {
    case Role::kSharedGate:
    case Role::kSharedUp:
      return of_layer(Fused::kSharedGateUp);
    case Role::kDenseGate:
    case Role::kDenseUp:
      return of_layer(Fused::kDenseGateUp);
    default:
      break;
  }
  if (tensor.rule->fuse == Fuse::kQkv) return of_layer(Fused::kQkv);
  if (tensor.rule->fuse == Fuse::kQaKva) return of_layer(Fused::kQkvA);
  return std::nullopt;
}

void align_by_casting(std::span<const TensorToAlign> tensors, Alignments& alignments,
                      AlignmentRefusals& refusals) {
  const auto is_quantized = [](const TensorToAlign& tensor) {
    return formats::scheme_facts(tensor.scheme).quantized;
  };
  std::set<FusedModule> cast;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const CutNeed need = need_of(tensors[i]);
    if (need.fits()) continue;
    if (!need.divides() || !is_quantized(tensors[i])) {
      refusals.add(tensors[i]);
      continue;
    }
    alignments.tensors[i].to_bf16 = true;
    if (const auto module = fused_module(*tensors[i].tensor)) cast.insert(*module);
  }
  if (cast.empty()) return;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (!is_quantized(tensors[i])) continue;
    const auto module = fused_module(*tensors[i].tensor);
    if (module && cast.contains(*module)) alignments.tensors[i].to_bf16 = true;
  }
}

}  // namespace

Alignments align_blocks(std::span<const TensorToAlign> tensors, const formats::ModelConfig& config,
                        const Slicing& slicing) {
  Alignments alignments;
  alignments.tensors.resize(tensors.size());
  AlignmentRefusals refusals(config, slicing);
  switch (slicing.fit) {
    case TpFit::kRefuse:
      for (const TensorToAlign& tensor : tensors) {
        if (!need_of(tensor).fits()) refusals.add(tensor);
      }
      break;
    case TpFit::kRetile:
      align_by_retiling(tensors, alignments, refusals);
      break;
    case TpFit::kPad:
      align_by_padding(tensors, config, alignments, refusals);
      break;
    case TpFit::kBf16:
      align_by_casting(tensors, alignments, refusals);
      break;
  }
  refusals.throw_if_any();
  return alignments;
}

}  // namespace ingot::shard
