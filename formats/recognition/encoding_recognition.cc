#include "formats/recognition/encoding_recognition.h"

#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <numeric>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "formats/base/checked.h"
#include "formats/container/other_float8.h"
#include "formats/recognition/decoded_encoding.h"
#include "formats/recognition/lost_zero_points.h"
#include "formats/recognition/paired_parts.h"
#include "formats/recognition/part_names.h"
#include "formats/storage/scale_shapes.h"

namespace ingot::formats {

namespace {

// Blocks of released models, tried after the one that a config claims. Sides are powers of two, so
// two of them that give a scale the same shape decode a weight alike.
constexpr std::array<Block, 6> kBlocks = {
    {{128, 128}, {64, 64}, {32, 32}, {1, 128}, {1, 64}, {1, 32}}};

/// Finds the encoding of each weight.
class Recogniser {
 public:
  Recogniser(const RecognitionInput& input, ErrorList& faults)
      : input_(input),
        faults_(faults),
        claims_blocks_(input.config.quantization && input.config.quantization->weight_block_size),
        is_fp8_(input.config.quantization && input.config.quantization->quant_method == "fp8"),
        is_quark_(input.config.quantization && input.config.quantization->quant_method == "quark"),
        lost_zero_points_(input.config),
        paired_(pair_parts(input, faults)),
        found_(paired_.found) {
    order_blocks();
  }

  std::vector<LogicalTensor> run(std::vector<StoredParts>* refused) {
    std::vector<LogicalTensor> tensors;
    for (std::uint32_t i = 0; i < input_.stored.size(); ++i) {
      if (paired_.is_part[i]) continue;
      if (auto tensor = recognise(i)) {
        tensors.push_back(std::move(*tensor));
      } else if (refused != nullptr) {
        refused->push_back(found_[i].stored);
      }
    }
    lost_zero_points_.report(input_, faults_);
    return tensors;
  }

 private:
  void fault(std::uint32_t stored, ErrorCode code, std::string message) {
    add_fault(input_, stored, code, std::move(message), faults_);
  }

  /// The block that fits most weights first, of several the one that the config claims.
  void order_blocks() {
    std::vector<std::pair<std::size_t, Block>> fits = {{0, input_.block}};
    for (const Block& block : kBlocks) {
      if (block != input_.block) fits.emplace_back(0, block);
    }
    // Weights have few shapes.
    const auto before = [](const auto& a, const auto& b) {
      return std::tie(*a.first, *a.second) < std::tie(*b.first, *b.second);
    };
    std::map<std::pair<const Shape*, const Shape*>, std::size_t, decltype(before)> kinds(before);
    for (const FoundParts& found : found_) {
      if (!found.stored.has(Part::kScale)) continue;
      const Shape& weight = input_.stored[found.stored.weight()].shape;
      if (weight.size() >= 2) ++kinds[{&weight, &input_.stored[found.stored[Part::kScale]].shape}];
    }
    for (const auto& [shapes, count] : kinds) {
      for (auto& [n, block] : fits)
        n += is_grid_of(block, *shapes.first, *shapes.second) ? count : 0;
    }
    std::ranges::stable_sort(fits, std::greater<>(), &std::pair<std::size_t, Block>::first);
    for (const auto& [n, block] : fits) blocks_.push_back(block);
  }

  /// Rows and columns that share one of these scales; nullopt where no block fits.
  [[nodiscard]] std::optional<Block> block_of(const Shape& weight,
                                              const StoredTensor& scale) const {
    for (const Block& block : blocks_) {
      // Exponents along rows are MX unless the config says otherwise.
      const bool is_claimed = claims_blocks_ && block == input_.block;
      if (block[0] == 1 && scale.dtype == DType::kF8E8M0 && !is_claimed) continue;
      if (is_grid_of(block, weight, scale.shape)) return block;
    }
    return std::nullopt;
  }

  std::optional<LogicalTensor> recognise(std::uint32_t i) {
    const StoredTensor& stored = input_.stored[i];
    LogicalTensor tensor;
    tensor.shape = stored.shape;
    if (is_unread(input_, i)) {
      tensor.name = stored.name;
      tensor.encoding = {.scheme = plain_scheme(stored.dtype), .stored = found_[i].stored};
      return tensor;
    }
    tensor.name = weight_name(stored);
    if (tensor.name != stored.name && input_.names.find(tensor.name)) {
      fault(i, ErrorCode::kDuplicate,
            fmt::format("is here as well as '{}' (which one is meant? remove the other)",
                        tensor.name));
      return std::nullopt;
    }
    const bool has_parts = count_parts(i) > 0;
    if (lacks_zero_points(i) && lost_zero_points_.take(tensor.name, i)) return std::nullopt;
    if (kOtherFloat8.has(stored.dtype) || has_shifted_bytes(i))
      return decoded(i, std::move(tensor));
    // Only bytes and integers may be parameters; FP8 means nothing without a scale.
    if (stored.dtype == DType::kF8E4M3 || (has_parts && is_read_as_codes(stored.dtype)))
      return quantized(i, std::move(tensor));
    if (has_parts || find_packed(stored) != nullptr) {
      fault(i, ErrorCode::kUnsupported,
            fmt::format("is {} holding {}, which this version cannot decode",
                        dtype_name(stored.dtype), foreign_kind(i)));
      return std::nullopt;
    }
    tensor.encoding = {.scheme = plain_scheme(stored.dtype), .stored = found_[i].stored};
    return tensor;
  }

  /// True if codes are integers, which might have zero points, and no tensor of the checkpoint has
  /// them.
  [[nodiscard]] bool lacks_zero_points(std::uint32_t i) const {
    const StoredParts& parts = found_[i].stored;
    const DType dtype = input_.stored[i].dtype;
    return input_.is_complete && (dtype == DType::kI8 || dtype == DType::kI32) &&
           parts.has(Part::kScale) && !parts.has(Part::kZeroPoint) && !parts.has(Part::kOffset);
  }

  /// INT8 with what no scheme of INT8 has: zero points, or columns in any order.
  [[nodiscard]] bool has_shifted_bytes(std::uint32_t i) const {
    const StoredParts& parts = found_[i].stored;
    return input_.stored[i].dtype == DType::kI8 && parts.has(Part::kScale) &&
           (parts.has(Part::kZeroPoint) || parts.has(Part::kGroupOrder));
  }

  /// Codes that are read and not written.
  std::optional<LogicalTensor> decoded(std::uint32_t i, LogicalTensor tensor) {
    if (!has_scale(i)) return std::nullopt;
    const auto encoding =
        decoded_encoding({input_.stored, found_[i].stored, blocks_},
                         [&](std::uint32_t part, ErrorCode code, std::string message) {
                           fault(part, code, std::move(message));
                         });
    if (!encoding) return std::nullopt;
    tensor.encoding = *encoding;
    return tensor;
  }

  [[nodiscard]] static bool is_read_as_codes(DType dtype) {
    return std::any_of(schemes().begin(), schemes().end(),
                       [&](const SchemeFacts& scheme) { return scheme.codes.has(dtype); });
  }

  [[nodiscard]] std::size_t count_parts(std::uint32_t i) const {
    std::size_t n = 0;
    found_[i].stored.for_each(
        [&](Part part, std::uint32_t) { n += part == Part::kWeight ? 0 : 1; });
    return n;
  }

  [[nodiscard]] const char* foreign_kind(std::uint32_t i) const {
    if (count_parts(i) == 0) return "packed weights of unknown scheme (no weight_scale)";
    return "packed 4-bit weights";
  }

  /// Finds the scheme, fills in encoding and decoded shape, and looks at the other parts.
  std::optional<LogicalTensor> quantized(std::uint32_t i, LogicalTensor tensor) {
    const SchemeFacts* scheme = scheme_of(i);
    if (scheme == nullptr || !has_what_it_needs(i, *scheme)) return std::nullopt;
    tensor.shape = decoded_shape(i, *scheme);
    const auto [rows, cols] = scale_group(scheme->id, tensor.shape, group_of(i, *scheme));
    tensor.encoding = {.scheme = scheme->id,
                       .stored = found_[i].stored,
                       .block_rows = rows,
                       .block_cols = cols,
                       .global_divides = found_[i].global_divides,
                       .rows_of_scales = rows_of_scales(i, *scheme, tensor.shape)};
    if (!auxiliaries_fit(i, *scheme, tensor.shape)) return std::nullopt;
    return tensor;
  }

  /// The product of a header's shape is bounded by its file, so the unpacked one fits.
  [[nodiscard]] Shape decoded_shape(std::uint32_t i, const SchemeFacts& scheme) const {
    const StoredTensor& codes = input_.stored[i];
    Shape shape = rows_of_codes(codes);
    if (shape.empty()) return shape;
    shape.back() = checked_mul(shape.back(), codes_per_element(scheme.id, codes.dtype)).value_or(0);
    return shape;
  }

  /// The block that the checkpoint has chosen: by the shape of the scale, else by its config.
  [[nodiscard]] Block group_of(std::uint32_t i, const SchemeFacts& scheme) const {
    if (!scheme.chooses_cols && scheme.group_rows <= 1) return input_.block;
    const Shape weight = decoded_shape(i, scheme);
    const StoredTensor& scale = input_.stored[found_[i].stored[Part::kScale]];
    if (scheme.chooses_cols)
      return {1, weight.back() / std::max<std::uint64_t>(scale.shape.back(), 1)};
    return block_of(weight, scale).value_or(input_.block);
  }

  /// The row for the dtype of the codes and for the dtype and shape of the scale; null, and
  /// reported, when there is none.
  const SchemeFacts* scheme_of(std::uint32_t i) {
    const StoredTensor& weight = input_.stored[i];
    if (!has_scale(i)) return nullptr;
    const std::uint32_t scale_index = found_[i].stored[Part::kScale];
    // Ascend: the scale is in deq_scale, the product with that of the activations.
    if (scale_index == StoredParts::kAbsent) return &scheme_facts(SchemeId::kInt8Channel);
    const StoredTensor& scale = input_.stored[scale_index];
    // Blocks that config.json names, of whatever size, are those of FP8: MX groups come without.
    const SchemeFacts& blocks = scheme_facts(SchemeId::kFp8Block);
    if (is_fp8_ && blocks.codes.has(weight.dtype) && blocks.scales.has(scale.dtype) &&
        !is_excluded(i, blocks) && has_scale_shape(i, blocks, decoded_shape(i, blocks), scale))
      return &blocks;
    DTypeSet of_all = {}, of_fitting = {};
    bool is_surely_own = false;
    std::string needed;
    // Scales of a dtype of their own say more than those in F32.
    for (const bool is_own_dtype : {true, false}) {
      for (const SchemeFacts& scheme : schemes()) {
        if (!scheme.codes.has(weight.dtype) || scheme.scales.has(DType::kF32) == is_own_dtype)
          continue;
        if (is_excluded(i, scheme)) continue;
        const bool fits = has_scale_shape(i, scheme, decoded_shape(i, scheme), scale);
        const bool is_dtype = scheme.scales.has(scale.dtype);
        if (fits && is_dtype) return &scheme;
        of_all = of_all | scheme.scales;
        // F32 of a shape that MX has too is no MX.
        if (fits && !is_own_dtype) of_fitting = of_fitting | scheme.scales;
        // Under a block's name, the bytes of an FP8 weight are exponents only if their shape says
        // so too.
        const bool is_plain_byte = scale.dtype == DType::kU8 && weight.dtype == DType::kF8E4M3 &&
                                   found_[i].reach == ScaleReach::kBlock;
        if (!is_dtype || is_plain_byte) continue;
        is_surely_own = is_surely_own || is_own_dtype;
        add_needed(needed, scheme, decoded_shape(i, scheme));
      }
    }
    if (needed.empty() || (!of_fitting.empty() && !is_surely_own)) {
      fault(scale_index, ErrorCode::kDtypeMismatch,
            fmt::format("is a scale in {}, must be {}", dtype_name(scale.dtype),
                        (of_fitting.empty() ? of_all : of_fitting).text()));
    } else {
      fault(scale_index, ErrorCode::kShapeMismatch,
            fmt::format("is a scale of shape {}, a weight of shape {} needs {}",
                        shape_text(scale.shape), shape_text(weight.shape), needed));
    }
    return nullptr;
  }

  /// True if the names of the parts, or the config, rule out a scheme that fits the shape.
  [[nodiscard]] bool is_excluded(std::uint32_t i, const SchemeFacts& scheme) const {
    const StoredTensor& scale = input_.stored[found_[i].stored[Part::kScale]];
    const Shape& weight = input_.stored[i].shape;
    // Static activations go with numbers for whole matrices, one for each of a stack.
    const bool is_number = !claims_blocks_ && found_[i].stored.has(Part::kInputScale) &&
                           is_per_matrix(scale.shape, weight);
    if (scheme.group_rows > 1) return is_number;
    // A scale by a block's name is one where it may be.
    const bool is_block = claims_blocks_ || block_of(weight, scale).has_value();
    return scheme.group_cols == 0 && found_[i].reach == ScaleReach::kBlock && is_block &&
           !is_number;
  }

  /// True if codes have two dimensions, and a scale or a deq_scale; reports faults.
  bool has_scale(std::uint32_t i) {
    const StoredTensor& weight = input_.stored[i];
    const StoredParts& parts = found_[i].stored;
    const bool is_static_int8 = weight.dtype == DType::kI8 && parts.has(Part::kDeqScale);
    if (!parts.has(Part::kScale) && !is_static_int8) {
      if (input_.is_complete) {
        fault(i, ErrorCode::kMissingTensor,
              fmt::format("is {} without a scale (there is no weight_scale, weight_scale_inv or "
                          "scale)",
                          dtype_name(weight.dtype)));
      }
      return false;
    }
    if (weight.shape.size() < 2) {
      fault(i, ErrorCode::kShapeMismatch,
            fmt::format("is {} of shape {}, scales need two dimensions", dtype_name(weight.dtype),
                        shape_text(weight.shape)));
      return false;
    }
    return true;
  }

  [[nodiscard]] bool has_scale_shape(std::uint32_t i, const SchemeFacts& scheme,
                                     const Shape& weight, const StoredTensor& scale) const {
    if (scheme.group_rows == 0) return is_per_matrix(scale.shape, weight);
    if (scheme.group_cols == 0)
      return is_per_row(scale.shape, weight) || !rows_of_scales(i, scheme, weight).empty();
    if (scheme.chooses_cols) return is_per_chosen_group(scale.shape, weight);
    if (scheme.group_rows > 1) return block_of(weight, scale).has_value();
    return scale.shape == block_scale_shape(weight, scheme.group_rows, scheme.group_cols);
  }

  /// Encoding::rows_of_scales: of INT8 with one scale for a matrix, and of a matrix of fused
  /// weights with a scale for each of them.
  [[nodiscard]] std::vector<std::uint64_t> rows_of_scales(std::uint32_t i,
                                                          const SchemeFacts& scheme,
                                                          const Shape& weight) const {
    const std::uint32_t index = found_[i].stored[Part::kScale];
    if (scheme.group_rows != 1 || scheme.group_cols != 0 || weight.size() != 2 ||
        index == StoredParts::kAbsent)
      return {};
    const Shape& scale = input_.stored[index].shape;
    if (is_per_row(scale, weight)) return {};
    if (is_one_value(scale))
      return scheme.id == SchemeId::kInt8Channel ? std::vector{weight.front()}
                                                 : std::vector<std::uint64_t>();
    const auto match = input_.grammar == nullptr
                           ? std::nullopt
                           : input_.grammar->match(weight_name(input_.stored[i]));
    if (!match) return {};
    std::vector<std::uint64_t> rows;
    for (const Width* section : match->rule->sections)
      rows.push_back(section->size(input_.config, match->layer));
    const Shape column = {rows.size(), 1};
    const bool is_for_each = scale == Shape{rows.size()} || scale == column;
    const bool are_all = std::accumulate(rows.begin(), rows.end(), std::uint64_t{0}) == weight[0];
    return is_for_each && are_all ? rows : std::vector<std::uint64_t>();
  }

  void add_needed(std::string& needed, const SchemeFacts& scheme, const Shape& weight) const {
    if (!needed.empty()) needed += " or ";
    if (scheme.group_rows == 0) {
      needed += "one value";
    } else if (scheme.group_cols == 0) {
      needed += shape_text(per_row(weight));
    } else if (scheme.chooses_cols) {
      needed += fmt::format("[{}, groups] if it is {}: {} columns in equal groups of whole words",
                            weight.front(), scheme.name, weight.back());
    } else {
      const auto [rows, cols] = scale_group(scheme.id, weight, input_.block);
      needed +=
          fmt::format("{} if it is {} ({} x {} numbers share a scale)",
                      shape_text(block_scale_shape(weight, rows, cols)), scheme.name, rows, cols);
    }
  }

  /// Checks the parts that the scheme needs in addition to codes and scale.
  bool has_what_it_needs(std::uint32_t i, const SchemeFacts& scheme) {
    const StoredParts& parts = found_[i].stored;
    // Only the config tells INT8 blocks from FP8 blocks under a wrong dtype.
    if (scheme.id == SchemeId::kInt8Block && is_fp8_) {
      fault(i, ErrorCode::kDtypeMismatch,
            "is I8 with a scale per block, but config.json says quant_method fp8 (INT8 blocks are "
            "blockwise_int8)");
      return false;
    }
    const bool lacks_global = scheme.has_global && !parts.has(Part::kGlobal);
    const bool lacks_input = !parts.has(Part::kScale) && !parts.has(Part::kInputScale);
    if ((lacks_global || lacks_input) && input_.is_complete) {
      fault(i, ErrorCode::kMissingTensor,
            lacks_global
                ? fmt::format("is {} without a global scale (there is no weight_scale_2 or "
                              "weight_global_scale)",
                              scheme.name)
                : "has a deq_scale, which is its scale times that of the activations, but no "
                  "input_scale (a file missing? fetch it again)");
    }
    const bool lacks_dimensions = scheme.has_dimensions && !parts.has(Part::kDimensions);
    if (lacks_dimensions && input_.is_complete) {
      fault(i, ErrorCode::kMissingTensor,
            fmt::format("is {} without its dimensions (there is no weight_shape; loaders unpack by "
                        "it)",
                        scheme.name));
    }
    return !lacks_global && !lacks_input && !lacks_dimensions;
  }

  /// Looks at every part but codes and scale.
  bool auxiliaries_fit(std::uint32_t i, const SchemeFacts& scheme, const Shape& weight) {
    bool fits = true;
    const auto refuse = [&](std::uint32_t part, ErrorCode code, std::string message) {
      fault(part, code, std::move(message));
      fits = false;
    };
    found_[i].stored.for_each([&](Part part, std::uint32_t index) {
      if (part == Part::kWeight || part == Part::kScale) return;
      const StoredTensor& stored = input_.stored[index];
      const PartFacts& facts = part_facts(part);
      // Packed INT8, formats/relaid/relaid_codes.h.
      const bool is_mark = part == Part::kDimensions && scheme.code == CodeKind::kInt8;
      const bool is_of_any = part == Part::kInputScale || part == Part::kOutputScale;
      if (!is_of_any && !is_mark && !is_part_of(scheme.id, part)) {
        refuse(
            index, ErrorCode::kUnsupported,
            fmt::format("is {}, which a weight in {} does not have", facts.meaning, scheme.name));
      } else if (!facts.reads.has(stored.dtype)) {
        refuse(index, ErrorCode::kDtypeMismatch,
               fmt::format("is {} in {}", facts.meaning, dtype_name(stored.dtype)));
      } else if (const std::string needs = extent_needed(i, facts.extent, stored.shape, weight);
                 !needs.empty()) {
        refuse(index, ErrorCode::kShapeMismatch,
               fmt::format("is {} of shape {}, a weight of shape {} needs {}", facts.meaning,
                           shape_text(stored.shape), shape_text(weight), needs));
      }
    });
    return fits;
  }

  /// True if a part has a number for each of the weights that are fused in one, as the scale has.
  [[nodiscard]] bool is_as_long_as_scale(std::uint32_t i, const Shape& shape,
                                         const Shape& weight) const {
    const SchemeFacts& channel = scheme_facts(SchemeId::kFp8Channel);
    return shape.size() == 1 && shape[0] > 1 &&
           rows_of_scales(i, channel, weight).size() == shape[0];
  }

  /// The shape that a part of weight `i` should have, if `shape` is wrong; else empty.
  [[nodiscard]] std::string extent_needed(std::uint32_t i, PartExtent extent, const Shape& shape,
                                          const Shape& weight) const {
    switch (extent) {
      case PartExtent::kOne:
        return is_number(shape, weight) || is_as_long_as_scale(i, shape, weight) ? "" : "one value";
      case PartExtent::kPerRow:
        return is_per_row(shape, weight) || (is_quark_ && is_one_value(shape))
                   ? ""
                   : "one value per row";
      case PartExtent::kPerColumn:
        return shape == Shape{weight.back()} ? "" : "one value per column";
      case PartExtent::kDimensions:
        return shape == Shape{weight.size()} ? "" : "one value per dimension";
      case PartExtent::kPerGroup:
        break;
    }
    Shape wanted = input_.stored[found_[i].stored[Part::kScale]].shape;
    wanted[wanted.size() - 2] = ceil_div(wanted[wanted.size() - 2], kZerosPerWord);
    return shape == wanted ? "" : shape_text(wanted);
  }

  const RecognitionInput& input_;
  ErrorList& faults_;
  bool claims_blocks_;  // `block` is no default
  bool is_fp8_, is_quark_;
  LostZeroPoints lost_zero_points_;
  const PairedParts paired_;
  const std::vector<FoundParts>& found_;  // parts in paired_
  std::vector<Block> blocks_;             // blocks in the order in which they are tried
};

}  // namespace

std::vector<LogicalTensor> recognise_encodings(const RecognitionInput& input, ErrorList& faults,
                                               std::vector<StoredParts>* refused) {
  return Recogniser(input, faults).run(refused);
}

}  // namespace ingot::formats
