#include "shard/align/align_blocks.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <numeric>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "formats/base/checked.h"
#include "formats/base/error.h"
#include "formats/modules/joined_module.h"
#include "shard/align/cut_need.h"

namespace ingot::shard {

using formats::SchemeId;

namespace {

/// Widths of a model that may be extended by numbers that change nothing.
enum class PaddableWidth : std::uint8_t { kVocab, kIntermediate, kMoeIntermediate };
constexpr std::size_t kPaddableWidths = 3;

/// The side of a weight that has such a width.
struct PaddableSide {
  PaddableWidth width{};
  bool is_rows = false;
  std::uint64_t times = 1;     ///< the side is so many times the width: several shared experts
  std::uint64_t sections = 1;  ///< sections of the rows: 2 for stacked gate and up
};
std::optional<PaddableSide> paddable_side(const TensorToAlign& tensor,
                                          const formats::ModelConfig& config) {
  const formats::TensorRule* rule = tensor.tensor->rule;
  const std::size_t n_dimensions = tensor.tensor->shape.size();
  if (rule == nullptr || n_dimensions < 2) return std::nullopt;
  // Only gate rows before up rows are padded; the biases of stacks cannot be padded.
  if (is_interleaved(tensor)) return std::nullopt;
  if (is_expert_stack(rule->role) && rule->stack != formats::StackOrder::kOutputMajor)
    return std::nullopt;
  // The code for zero is another number in every row of these.
  if (tensor.has_zero_points || tensor.has_group_order) return std::nullopt;
  for (std::size_t d = n_dimensions - 2; d < n_dimensions && d < rule->shape.size(); ++d) {
    const formats::Width* width = rule->shape[d];
    // A width that differs by layer is not padded.
    if (width == nullptr || width->differs_by_layer(config)) continue;
    const bool is_rows = d + 2 == n_dimensions;
    if (width->times("vocab_size") == 1)
      return PaddableSide{.width = PaddableWidth::kVocab, .is_rows = is_rows};
    if (width->times("intermediate_size") == 1)
      return PaddableSide{.width = PaddableWidth::kIntermediate, .is_rows = is_rows};
    if (const auto sections = width->times("moe_intermediate_size"); sections == 1 || sections == 2)
      return PaddableSide{
          .width = PaddableWidth::kMoeIntermediate, .is_rows = is_rows, .sections = *sections};
    if (width->times("shared_intermediate_size") == 1)
      return PaddableSide{.width = PaddableWidth::kMoeIntermediate,
                          .is_rows = is_rows,
                          .times = config.n_shared_experts};
  }
  return std::nullopt;
}

/// True if the tensor's shape follows from such a width.
bool has_width(const TensorToAlign& tensor, PaddableWidth width) {
  constexpr std::array<std::array<std::string_view, 2>, kPaddableWidths> kNames = {
      {{"vocab_size"},
       {"intermediate_size"},
       {"moe_intermediate_size", "shared_intermediate_size"}}};
  if (tensor.tensor->rule == nullptr) return false;
  for (const formats::Width* side : tensor.tensor->rule->shape) {
    for (const std::string_view name : kNames[static_cast<std::size_t>(width)]) {
      if (side != nullptr && !name.empty() && side->mentions(name)) return true;
    }
  }
  return false;
}

/// True if a block reaches from one section of the rows into the next, so that the sections cannot
/// be moved apart.
bool block_joins_sections(const TensorToAlign& tensor, const PaddableSide& side) {
  if (side.sections == 1) return false;
  const formats::Shape& shape = tensor.tensor->shape;
  const std::uint64_t rows = shape[shape.size() - 2] / side.sections;
  return rows % indivisible(tensor)[0] != 0;
}

/// `block` halved until it divides `part`; 0 when no halving does.
std::uint64_t halved_to_fit(std::uint64_t block, std::uint64_t part) {
  while (part % block != 0) {
    if (block % 2 != 0) return 0;
    block /= 2;
  }
  return block;
}

std::string unit_name(const TensorToAlign& tensor, bool along_rows) {
  if (tensor.scheme == SchemeId::kFp8Block) return "FP8 block";
  if (tensor.scheme == SchemeId::kInt8Block) return "INT8 block";
  if (tensor.has_zero_points && along_rows) return "word of zero points";
  if (tensor.has_group_order && !along_rows) return "order of groups";
  const bool is_word = formats::scheme_facts(tensor.scheme).chooses_cols && tensor.group[1] == 0;
  return fmt::format("{} {}", formats::scheme_facts(tensor.scheme).name,
                     is_word ? "word" : "group");
}

/// `a`, `a or b`, `a, b or c`.
std::string alternatives(const std::vector<std::string_view>& words) {
  std::string text;
  for (std::size_t i = 0; i < words.size(); ++i) {
    if (i > 0) text += i + 1 == words.size() ? " or " : ", ";
    text += words[i];
  }
  return text;
}

/// Tensors whose cut does not fit, told by kind: role, scheme, width and number of slices.
class AlignmentRefusals {
 public:
  enum class Why : std::uint8_t {
    kTorn,      ///< the cut does not fall between elements and blocks
    kJoined,    ///< a stack to be padded, of which a block reaches from gate to up
    kUnpadded,  ///< width that is padded in other tensors, and cannot be in this one
  };

  AlignmentRefusals(const formats::ModelConfig& config, const Slicing& slicing)
      : config_(config), layout_(*slicing.layout) {}

  void add(const TensorToAlign& tensor, Why why = Why::kTorn) {
    const CutNeed need = need_of(tensor);
    const auto same = std::find_if(refusals_.begin(), refusals_.end(), [&](const Refusal& other) {
      return role_of(*other.first->tensor) == role_of(*tensor.tensor) &&
             other.first->scheme == tensor.scheme && other.need == need && other.why == why;
    });
    if (same != refusals_.end()) {
      ++same->count;
    } else {
      refusals_.push_back({.first = &tensor, .need = need, .why = why, .count = 1});
    }
  }

  /// One kUnsupported per kind, in the order of their first tensors.
  void throw_if_any() const {
    ErrorList faults;
    for (const Refusal& refusal : refusals_) {
      std::string text = fmt::format("{} ({})", fact(refusal), remedies(refusal));
      if (refusal.count > 1) text += fmt::format("; {} more like it", refusal.count - 1);
      faults.add(
          Error(ErrorCode::kUnsupported, std::move(text)).in_tensor(refusal.first->tensor->name));
    }
    faults.throw_if_any();
  }

 private:
  struct Refusal {
    const TensorToAlign* first = nullptr;
    CutNeed need;
    Why why = Why::kTorn;
    std::uint64_t count = 0;
  };

  static std::string fact(const Refusal& refusal) {
    const CutNeed& need = refusal.need;
    const TensorToAlign& tensor = *refusal.first;
    const char* side = need.along_rows ? "rows" : "columns";
    if (refusal.why == Why::kUnpadded)
      return "cannot be padded, and has a width that other tensors are padded to";
    if (refusal.why == Why::kJoined) {
      return fmt::format("gate and up share an {} of {} rows, which padding would tear apart",
                         unit_name(tensor, true), indivisible(tensor)[0]);
    }
    if (!need.divides())
      return fmt::format("{} {} cannot be cut for {} ranks", need.width, side, need.n);
    const formats::Sections& sections = tensor.cut.sections;
    const std::string of_sections =
        sections.is_equal()
            ? std::string()
            : fmt::format(", which divide all {} sections of them,", sections.count());
    return fmt::format("{} {}{} / {} ranks = {}, the {} has {} {}", need.width, side, of_sections,
                       need.n, need.width / need.n, unit_name(tensor, need.along_rows), need.unit,
                       side);
  }

  [[nodiscard]] std::string remedies(const Refusal& refusal) const {
    std::string text;
    if (refusal.why == Why::kUnpadded) return "choose fewer ranks, or another --tp-fit";
    const auto words = fits_that_work(*refusal.first, refusal.need);
    if (!words.empty()) text = fmt::format("--tp-fit {}", alternatives(words));
    if (refusal.need.n == 1) return text;
    const bool is_expert = refusal.first->cut.owner == Owner::kExpert;
    const bool has_etp = is_expert && !layout_.cuts_experts_by_tp;
    const char* option = layout_.takes_mp ? "--mp" : has_etp ? "--etp" : "--tp";
    text += fmt::format("{}{} {}", text.empty() ? "" : "; or ", option, most_slices(refusal));
    if (layout_.cuts_experts_by_tp && is_expert && config_.n_routed_experts % refusal.need.n == 0)
      text += fmt::format("; or --ep {}, which deals experts whole", refusal.need.n);
    return text;
  }

  [[nodiscard]] std::vector<std::string_view> fits_that_work(const TensorToAlign& tensor,
                                                             const CutNeed& need) const {
    std::vector<std::string_view> words;
    const bool is_torn = need.divides();
    if (is_torn && !layout_.keeps_blocks && tensor.scheme == SchemeId::kFp8Block &&
        halved_to_fit(need.unit, need.width / need.n) != 0)
      words.push_back(tp_fit_name(TpFit::kRetile));
    const auto side = paddable_side(tensor, config_);
    if (side && !layout_.keeps_widths && side->is_rows == need.along_rows &&
        !block_joins_sections(tensor, *side))
      words.push_back(tp_fit_name(TpFit::kPad));
    if (is_torn && formats::scheme_facts(tensor.scheme).quantized)
      words.push_back(tp_fit_name(TpFit::kBf16));
    return words;
  }

  /// The most slices below the asked number that fit, 1 when none do.
  [[nodiscard]] std::uint32_t most_slices(const Refusal& refusal) const {
    const Owner owner = refusal.first->cut.owner;
    const std::uint64_t heads = config_.num_attention_heads;
    for (auto n = static_cast<std::uint32_t>(refusal.need.n) - 1; n > 1; --n) {
      CutNeed need = refusal.need;
      need.n = n;
      // --tp cuts the heads as well.
      const bool has_heads =
          owner == Owner::kTp || (layout_.cuts_experts_by_tp && owner == Owner::kExpert);
      const bool cuts_heads = !has_heads || heads % n == 0;
      const bool cuts_kv_heads = owner != Owner::kKvHeads || refusal.need.n % n == 0;
      if (need.fits() && cuts_heads && cuts_kv_heads) return n;
    }
    return 1;
  }

  const formats::ModelConfig& config_;
  const formats::Layout& layout_;
  std::vector<Refusal> refusals_;
};

// The ways of align_blocks, one per TpFit that changes something. Each fills in
// Alignments::tensors, which has an entry per tensor already, and adds tensors that it cannot help
// to the refusals.

/// A block that divides the blocks of all FP8 tensors: the block of a released model, unless it has
/// several.
std::array<std::uint64_t, 2> common_block(std::span<const TensorToAlign> tensors) {
  std::array<std::uint64_t, 2> block = {0, 0};
  for (const TensorToAlign& tensor : tensors) {
    if (tensor.scheme != SchemeId::kFp8Block) continue;
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
    const std::uint64_t halved = tensor.scheme == SchemeId::kFp8Block && need.divides()
                                     ? halved_to_fit(side, need.width / need.n)
                                     : 0;
    if (halved == 0) {
      refusals.add(tensor);
      continue;
    }
    // It still divides the sides that were halved for earlier tensors.
    side = halved;
    is_needed = true;
  }
  if (!is_needed) return;
  alignments.block = block;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i].scheme == SchemeId::kFp8Block) alignments.tensors[i].block = block;
  }
}

constexpr std::uint64_t kMaxWidth = std::uint64_t{1} << 32;

/// One width of the model over all tensors that have it.
struct WidthNeed {
  bool is_padded = false;
  std::uint64_t step = 1;  ///< divisor of the padded width
};

/// The width must be a multiple of this for the tensor.
std::uint64_t step_of(const TensorToAlign& tensor, const PaddableSide& side) {
  const bool is_cut = tensor.cut.axis == (side.is_rows ? Axis::kRows : Axis::kCols);
  const std::uint64_t n = is_cut ? tensor.cut.n : 1;
  const std::uint64_t unit = indivisible(tensor)[side.is_rows ? 0 : 1];
  const std::uint64_t step = n * unit;
  return step / std::gcd(step, side.times);
}

void require_multiple(WidthNeed& need, std::uint64_t step) {
  const auto multiple = checked_mul(need.step / std::gcd(need.step, step), step);
  if (!multiple || *multiple > kMaxWidth) {
    throw Error(ErrorCode::kLimit,
                "a width padded to multiples of both {} and {} is beyond {} (choose numbers of "
                "ranks that divide each other)",
                need.step, step, kMaxWidth);
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
      config.vocab_size, config.intermediate_size, config.moe_intermediate_size};
  std::array<std::uint64_t, kPaddableWidths> padded = {};
  for (std::size_t i = 0; i < kPaddableWidths; ++i)
    padded[i] = needs[i].is_padded ? round_up(widths[i], needs[i].step) : widths[i];

  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const auto side = paddable_side(tensors[i], config);
    if (!side) {
      for (std::size_t width = 0; width < kPaddableWidths; ++width) {
        if (padded[width] != widths[width] &&
            has_width(tensors[i], static_cast<PaddableWidth>(width)))
          refusals.add(tensors[i], AlignmentRefusals::Why::kUnpadded);
      }
      continue;
    }
    const auto width = static_cast<std::size_t>(side->width);
    if (padded[width] == widths[width]) continue;
    if (block_joins_sections(tensors[i], *side)) {
      refusals.add(tensors[i], AlignmentRefusals::Why::kJoined);
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

/// The module that loaders build of this weight and others, which must be quantized alike.
std::string fused_module(const formats::LogicalTensor& tensor) {
  return formats::joined_module(tensor.name, tensor.rule, formats::ExpertJoin::kLayer);
}

void align_by_casting(std::span<const TensorToAlign> tensors, Alignments& alignments,
                      AlignmentRefusals& refusals) {
  const auto is_quantized = [](const TensorToAlign& tensor) {
    return formats::scheme_facts(tensor.scheme).quantized;
  };
  std::set<std::string> cast;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const CutNeed need = need_of(tensors[i]);
    if (need.fits()) continue;
    if (!need.divides() || !is_quantized(tensors[i])) {
      refusals.add(tensors[i]);
      continue;
    }
    alignments.tensors[i].to_bf16 = true;
    if (std::string module = fused_module(*tensors[i].tensor); !module.empty())
      cast.insert(std::move(module));
  }
  if (cast.empty()) return;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (!is_quantized(tensors[i])) continue;
    if (cast.contains(fused_module(*tensors[i].tensor))) alignments.tensors[i].to_bf16 = true;
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
