#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "formats/base/checked.h"
#include "formats/checkpoint/part_names.h"
#include "formats/checkpoint/passes.h"
#include "formats/config/nested_config.h"
#include "formats/dialect/dialect.h"
#include "formats/dialect/dialect_words.h"
#include "formats/family/families.h"
#include "formats/json/json.h"
#include "formats/storage/scale_shapes.h"

// The encoding of each weight, found by the names, dtypes and shapes of its parts.

namespace ingot::formats {

namespace {

/// Integers that have zero points by config.json and none in the files: read as if they were
/// symmetric, each value would be wrong.
class LostZeroPoints {
 public:
  explicit LostZeroPoints(const Draft& draft) : draft_(draft) {}

  /// Takes in weight `name`, stored tensor `i`, which has no zero points. False if by config.json
  /// it needs none.
  bool take(std::string_view name, std::uint32_t i) {
    if (!forms_) {
      std::vector<std::string> left_out;
      if (draft_.dialect->config_forms != nullptr)
        forms_ = draft_.dialect->config_forms(draft_.config, draft_.description, &left_out);
      if (!forms_) return false;
    }
    ConfigForm said = forms_(name);
    if (!said.has_zero_points) return false;
    Lost& lost = lost_.try_emplace(std::move(said.because), Lost{.first = i}).first->second;
    ++lost.n;
    return true;
  }

  /// Adds a fault (kMissingTensor) for each group of the config, with its first weight and their
  /// number.
  void report(Draft& draft) const {
    for (const auto& [place, lost] : lost_) {
      draft.fault(draft.stored[lost.first], ErrorCode::kMissingTensor,
                  "is asymmetric by config.json ({}) and has no weight_zero_point{} (a file "
                  "missing? fetch it again)",
                  place, lost.n == 1 ? "" : fmt::format(", as {} more of its weights", lost.n - 1));
    }
  }

 private:
  struct Lost {
    std::uint32_t first = 0;
    std::size_t n = 0;
  };

  const Draft& draft_;
  ConfigForms forms_;                 // null until a weight is taken in
  std::map<std::string, Lost> lost_;  // losses by the group's place in the config
};

/// The parts of one weight as they were found by name.
struct FoundParts {
  StoredParts stored;
  ScaleReach reach = ScaleReach::kAny;
  bool global_divides = false;
};

/// Parts and weights of a checkpoint, brought together by their names. By stored tensor.
struct PairedParts {
  std::vector<FoundParts> found;  ///< parts of weights; `stored` has the weight itself
  std::vector<bool> is_part;      ///< belongs to a weight, or should
};

/// Dtypes whose numbers mean nothing without a scale.
constexpr DTypeSet kCodeDtypes = {DType::kF8E4M3,     DType::kF8E5M2, DType::kF8E4M3Fnuz,
                                  DType::kF8E5M2Fnuz, DType::kI8,     DType::kU8,
                                  DType::kI32,        DType::kF4};

/// True if the config says that the outputs of weights are quantized. Otherwise an output scale is
/// that of a cache: compressed-tensors and Quark store those of keys and values so, too.
bool quantizes_outputs(const ModelConfig& config) {
  if (method_of(config) == kGemmaMethod) return true;
  const Json& block = quantization_block(config);
  if (!json_member(block, "kv_cache_scheme").is_null()) return false;
  const auto has = [](const Json& group, const char* outputs, const char* weights) {
    return json_member(group, outputs).is_object() && json_member(group, weights).is_object();
  };
  const Json& groups = json_member(block, "config_groups");
  return has(json_member(block, "global_quant_config"), "output_tensors", "weight") ||
         (groups.is_object() && std::ranges::any_of(groups, [&](const Json& group) {
            return has(group, "output_activations", "weights");
          }));
}

class Pairing {
 public:
  Pairing(Draft& draft, const std::vector<bool>& is_unread)
      : draft_(draft),
        is_unread_(is_unread),
        has_zero_zero_points_(has_zero_zero_points(draft.config)),
        quantizes_outputs_(quantizes_outputs(draft.config)),
        paired_{.found = std::vector<FoundParts>(draft.stored.size()),
                .is_part = std::vector<bool>(draft.stored.size(), false)} {}

  PairedParts run() {
    for (std::uint32_t i = 0; i < draft_.stored.size(); ++i) {
      paired_.found[i].stored.set(Part::kWeight, i);
      if (!is_unread_[i]) pair_part(i);
    }
    return std::move(paired_);
  }

 private:
  [[nodiscard]] std::optional<std::uint32_t> find_weight(std::string_view stem,
                                                         const PartNaming& naming) {
    for (const PackedNaming& packed : packed_namings()) {
      if (!naming.is_stacked || !packed.is_stacked) continue;
      if (const auto blocks = draft_.names().find(std::string(stem).append(packed.suffix)))
        return blocks;
    }
    if (naming.is_stacked) return draft_.names().find(stem);
    std::string name(stem);
    const auto plain = draft_.names().find(name.append(kWeightSuffix));
    if (plain && kCodeDtypes.has(draft_.stored[*plain].dtype)) return plain;
    for (const PackedNaming& naming_of_codes : packed_namings()) {
      if (naming_of_codes.is_stacked) continue;
      if (const auto packed = draft_.names().find(std::string(stem).append(naming_of_codes.suffix)))
        return packed;
    }
    return plain;
  }

  /// Notes whose part tensor `i` is, if it is one. Reports a part twice (kDuplicate), and a part of
  /// a plain weight or of no weight (kMissingTensor).
  void pair_part(std::uint32_t i) {
    const StoredTensor& tensor = draft_.stored[i];
    for (const PartNaming& naming : part_namings()) {
      if (!tensor.name.ends_with(naming.suffix) || tensor.name.size() == naming.suffix.size())
        continue;
      if (naming.part == Part::kOutputScale && !quantizes_outputs_) continue;
      const auto stem =
          std::string_view(tensor.name).substr(0, tensor.name.size() - naming.suffix.size());
      const auto weight = find_weight(stem, naming);
      const bool is_native = !naming.is_stacked && !naming.is_distinct;
      if (weight && kCodeDtypes.has(draft_.stored[*weight].dtype)) {
        assign(i, *weight, naming);
      } else if (naming.is_stacked && !naming.is_distinct && !weight) {
        continue;  // a shorter suffix may make it another weight's part
      } else if (naming.is_distinct || (is_native && is_surely_scale(tensor, weight.has_value()))) {
        paired_.is_part[i] = true;
        report_orphan(i, stem, naming, weight);
      }
      return;
    }
  }

  /// Parameters may be called `.scale` too, but exponents are always scales.
  [[nodiscard]] bool is_surely_scale(const StoredTensor& tensor, bool has_weight) const {
    return (!draft_.family->rules.empty() && has_weight) || tensor.dtype == DType::kF8E8M0;
  }

  void assign(std::uint32_t part, std::uint32_t weight, const PartNaming& naming) {
    paired_.is_part[part] = true;
    FoundParts& found = paired_.found[weight];
    const bool is_zero = naming.part == Part::kZeroPoint && has_zero_zero_points_;
    const Part kind_of_part = is_zero ? Part::kOffset : naming.part;
    if (found.stored.has(kind_of_part)) {
      const std::string& first = draft_.stored[found.stored[kind_of_part]].name;
      std::string_view kind = part_facts(kind_of_part).meaning;
      kind.remove_prefix(kind.find(' ') + 1);
      draft_.fault(draft_.stored[weight], ErrorCode::kDuplicate,
                   "has two {}s, '{}' and '{}' (which one is meant? remove the other)", kind, first,
                   draft_.stored[part].name);
      return;
    }
    found.stored.set(kind_of_part, part);
    if (naming.part == Part::kScale) found.reach = naming.reach;
    if (naming.part == Part::kGlobal) found.global_divides = naming.global_divides;
  }

  void report_orphan(std::uint32_t part, std::string_view stem, const PartNaming& naming,
                     std::optional<std::uint32_t> weight) {
    if (weight) {
      draft_.fault(draft_.stored[part], ErrorCode::kMissingTensor,
                   "is {}, but '{}' is plain {} (was it cast without removing its scale?)",
                   part_facts(naming.part).meaning, draft_.stored[*weight].name,
                   dtype_name(draft_.stored[*weight].dtype));
    } else if (draft_.is_complete) {
      draft_.fault(draft_.stored[part], ErrorCode::kMissingTensor,
                   "is {}, but there is no '{}{}' (a file missing? fetch it again)",
                   part_facts(naming.part).meaning, stem, naming.is_stacked ? "" : kWeightSuffix);
    }
  }

  Draft& draft_;
  const std::vector<bool>& is_unread_;
  bool has_zero_zero_points_;  // zero points of integer codes are all zero
  bool quantizes_outputs_;     // false: output scales are those of a cache
  PairedParts paired_;
};

// Zero points of four rows to a word, as packed codes have them.
constexpr std::uint64_t kByteZerosPerWord = 4;

std::uint64_t numbers_in(const Shape& shape) {
  return std::accumulate(shape.begin(), shape.end(), std::uint64_t{1}, std::multiplies<>());
}

/// The dtype of a part. Zero points are packed where codes are, whose dimensions are stored.
DType wanted_dtype(Part part, const StoredParts& parts) {
  return part == Part::kZeroPoint && !parts.has(Part::kDimensions) ? DType::kI8 : DType::kI32;
}

/// How many numbers of this dtype a part must have.
std::uint64_t wanted_numbers(Part part, DType dtype, const Shape& codes, std::uint64_t n_scales,
                             std::uint64_t block_cols) {
  if (dtype == DType::kI8) return n_scales;
  if (part == Part::kGroupOrder) return codes.back();
  const std::uint64_t across = ceil_div(std::max<std::uint64_t>(codes.back(), 1), block_cols);
  return ceil_div(n_scales / across, kByteZerosPerWord) * across;
}

// Blocks of released models, tried after the one that a config claims. Sides are powers of two, so
// two of them that give a scale the same shape decode a weight alike.
constexpr std::array<Block, 6> kBlocks = {
    {{128, 128}, {64, 64}, {32, 32}, {1, 128}, {1, 64}, {1, 32}}};

/// Finds the encoding of each weight.
class Recogniser {
 public:
  explicit Recogniser(Draft& draft)
      : draft_(draft),
        grammar_(*draft.family, draft.config),
        // Checkpoints of other families in unread forms are refused.
        is_unread_(draft.family == find_family("generic")
                       ? in_unread_forms(draft.stored)
                       : std::vector<bool>(draft.stored.size(), false)),
        claims_blocks_(draft.config.quantization && draft.config.quantization->weight_block_size),
        is_fp8_(is_of_method("fp8")),
        is_quark_(is_of_method("quark")),
        lost_zero_points_(draft),
        paired_(Pairing(draft, is_unread_).run()),
        found_(paired_.found) {
    order_blocks();
  }

  /// Fills Draft::tensors; returns the parts of the weights that are refused.
  std::vector<StoredParts> run() {
    std::vector<StoredParts> refused;
    draft_.tensors.clear();
    for (std::uint32_t i = 0; i < draft_.stored.size(); ++i) {
      if (paired_.is_part[i]) continue;
      if (auto tensor = recognise(i)) {
        draft_.tensors.push_back(std::move(*tensor));
      } else {
        refused.push_back(found_[i].stored);
      }
    }
    lost_zero_points_.report(draft_);
    return refused;
  }

 private:
  [[nodiscard]] bool is_of_method(std::string_view method) const {
    return draft_.config.quantization && draft_.config.quantization->quant_method == method;
  }

  template <typename... Args>
  void fault(std::uint32_t stored, ErrorCode code, fmt::format_string<Args...> format,
             Args&&... args) {
    draft_.fault(draft_.stored[stored], code, format, std::forward<Args>(args)...);
  }

  /// The block that fits most weights first, of several the one that the config claims.
  void order_blocks() {
    std::vector<std::pair<std::size_t, Block>> fits = {{0, draft_.block}};
    for (const Block& block : kBlocks) {
      if (block != draft_.block) fits.emplace_back(0, block);
    }
    // Weights have few shapes.
    const auto before = [](const auto& a, const auto& b) {
      return std::tie(*a.first, *a.second) < std::tie(*b.first, *b.second);
    };
    std::map<std::pair<const Shape*, const Shape*>, std::size_t, decltype(before)> kinds(before);
    for (const FoundParts& found : found_) {
      if (!found.stored.has(Part::kScale)) continue;
      const Shape& weight = draft_.stored[found.stored.weight()].shape;
      if (weight.size() >= 2) ++kinds[{&weight, &draft_.stored[found.stored[Part::kScale]].shape}];
    }
    for (const auto& [shapes, count] : kinds) {
      for (auto& [n, block] : fits)
        n += is_grid_of(block, *shapes.first, *shapes.second) ? count : 0;
    }
    std::ranges::stable_sort(fits, std::greater<>(), &std::pair<std::size_t, Block>::first);
    for (const auto& [n, block] : fits) blocks_.push_back(block);
  }

  /// Rows and columns of weight `i` that share one of its scales; nullopt where no block fits.
  [[nodiscard]] std::optional<Block> block_of(std::uint32_t i, const Shape& weight) const {
    const StoredTensor& scale = draft_.stored[found_[i].stored[Part::kScale]];
    // Rows have scales of their own there, which may be one each.
    if (draft_.reordered.contains(draft_.stored[i].name)) return Block{1, draft_.block[1]};
    for (const Block& block : blocks_) {
      // Exponents along rows are MX unless the config says otherwise.
      const bool is_claimed = claims_blocks_ && block == draft_.block;
      if (block[0] == 1 && scale.dtype == DType::kF8E8M0 && !is_claimed) continue;
      if (is_grid_of(block, weight, scale.shape)) return block;
    }
    return std::nullopt;
  }

  std::optional<LogicalTensor> recognise(std::uint32_t i) {
    const StoredTensor& stored = draft_.stored[i];
    LogicalTensor tensor;
    tensor.shape = stored.shape;
    if (is_unread_[i]) {
      tensor.name = stored.name;
      tensor.encoding = {.scheme = plain_scheme(stored.dtype), .stored = found_[i].stored};
      return tensor;
    }
    tensor.name = weight_name(stored);
    if (tensor.name != stored.name && draft_.names().find(tensor.name)) {
      fault(i, ErrorCode::kDuplicate,
            "is here as well as '{}' (which one is meant? remove the other)", tensor.name);
      return std::nullopt;
    }
    const bool has_parts = count_parts(i) > 0;
    if (lacks_zero_points(i) && lost_zero_points_.take(tensor.name, i)) return std::nullopt;
    if (const SchemeFacts* scheme = read_only_scheme(i))
      return read_only(i, *scheme, std::move(tensor));
    // Only bytes and integers may be parameters; FP8 means nothing without a scale.
    if (stored.dtype == DType::kF8E4M3 || (has_parts && is_read_as_codes(stored.dtype)))
      return quantized(i, std::move(tensor));
    if (has_parts || find_packed(stored) != nullptr) {
      fault(i, ErrorCode::kUnsupported, "is {} holding {}, which this version cannot decode",
            dtype_name(stored.dtype), foreign_kind(i));
      return std::nullopt;
    }
    tensor.encoding = {.scheme = plain_scheme(stored.dtype), .stored = found_[i].stored};
    return tensor;
  }

  /// True if codes are integers, which might have zero points, and no tensor of the checkpoint has
  /// them.
  [[nodiscard]] bool lacks_zero_points(std::uint32_t i) const {
    const StoredParts& parts = found_[i].stored;
    const DType dtype = draft_.stored[i].dtype;
    return draft_.is_complete && (dtype == DType::kI8 || dtype == DType::kI32) &&
           parts.has(Part::kScale) && !parts.has(Part::kZeroPoint) && !parts.has(Part::kOffset);
  }

  /// The row that is only read for these codes; null for those of others. INT8 has zero points
  /// then, or columns in any order.
  [[nodiscard]] const SchemeFacts* read_only_scheme(std::uint32_t i) const {
    const StoredParts& parts = found_[i].stored;
    const DType dtype = draft_.stored[i].dtype;
    const bool is_plain_int8 =
        dtype == DType::kI8 &&
        !(parts.has(Part::kScale) && (parts.has(Part::kZeroPoint) || parts.has(Part::kGroupOrder)));
    const auto row = std::ranges::find_if(schemes(), [&](const SchemeFacts& scheme) {
      return scheme.is_read_only && scheme.codes.has(dtype);
    });
    return is_plain_int8 || row == schemes().end() ? nullptr : &*row;
  }

  /// Rows and columns that share a scale, which may be whole rows and whole matrices.
  [[nodiscard]] std::optional<Block> any_block_of(const Shape& shape, const Shape& scale) const {
    const std::uint64_t rows = std::max<std::uint64_t>(shape[shape.size() - 2], 1);
    const std::uint64_t cols = std::max<std::uint64_t>(shape.back(), 1);
    if (is_per_matrix(scale, shape)) return Block{rows, cols};
    if (is_per_row(scale, shape)) return Block{1, cols};
    const auto fitting = std::ranges::find_if(
        blocks_, [&](const Block& block) { return is_grid_of(block, shape, scale); });
    return fitting == blocks_.end() ? std::nullopt : std::optional(*fitting);
  }

  /// Codes that are read and not written. A scale is one of the matrix, of a row or of a block.
  /// nullopt, and reported, for a scale, zero points or an order of columns of another dtype or
  /// shape.
  std::optional<LogicalTensor> read_only(std::uint32_t i, const SchemeFacts& scheme,
                                         LogicalTensor tensor) {
    if (!has_scale(i)) return std::nullopt;
    const StoredParts& parts = found_[i].stored;
    const Shape& codes = draft_.stored[i].shape;
    const std::uint32_t scale_index = parts[Part::kScale];
    const StoredTensor& scale = draft_.stored[scale_index];
    if (!scheme.scales.has(scale.dtype)) {
      fault(scale_index, ErrorCode::kDtypeMismatch, "is a scale in {}, must be {}",
            dtype_name(scale.dtype), scheme.scales.text());
      return std::nullopt;
    }
    const std::optional<Block> block = any_block_of(codes, scale.shape);
    if (!block) {
      fault(scale_index, ErrorCode::kShapeMismatch,
            "is a scale of shape {}, a weight of shape {} needs one value, one per row or one per "
            "block",
            shape_text(scale.shape), shape_text(codes));
      return std::nullopt;
    }
    bool fits = true;
    for (const Part which : {Part::kZeroPoint, Part::kGroupOrder}) {
      if (!parts.has(which)) continue;
      const std::uint32_t index = parts[which];
      const StoredTensor& part = draft_.stored[index];
      const std::string_view meaning = part_facts(which).meaning;
      if (scheme.id != SchemeId::kInt8Group) {
        fits = false;
        fault(index, ErrorCode::kUnsupported, "is {}, which a weight in {} does not have", meaning,
              scheme.name);
        continue;
      }
      const DType dtype = wanted_dtype(which, parts);
      if (part.dtype != dtype) {
        fits = false;
        fault(index, ErrorCode::kDtypeMismatch, "is {} in {}, must be {}", meaning,
              dtype_name(part.dtype), dtype_name(dtype));
        continue;
      }
      const std::uint64_t wanted =
          wanted_numbers(which, dtype, codes, numbers_in(scale.shape), (*block)[1]);
      if (wanted == numbers_in(part.shape)) continue;
      fits = false;
      fault(index, ErrorCode::kShapeMismatch,
            "is {} of shape {}, a weight of shape {} with scales of shape {} needs {} numbers",
            meaning, shape_text(part.shape), shape_text(codes), shape_text(scale.shape), wanted);
    }
    if (!fits) return std::nullopt;
    tensor.encoding = {
        .scheme = scheme.id, .stored = parts, .block_rows = (*block)[0], .block_cols = (*block)[1]};
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
                       .rows_of_scales = rows_of_scales(i, *scheme, tensor.shape),
                       .is_reordered = draft_.reordered.contains(tensor.name)};
    if (!auxiliaries_fit(i, *scheme, tensor.shape)) return std::nullopt;
    return tensor;
  }

  /// The product of a header's shape is bounded by its file, so the unpacked one fits.
  [[nodiscard]] Shape decoded_shape(std::uint32_t i, const SchemeFacts& scheme) const {
    const StoredTensor& codes = draft_.stored[i];
    Shape shape = rows_of_codes(codes);
    if (shape.empty()) return shape;
    shape.back() = packing(scheme.id, codes.dtype).codes_of(shape.back());
    return shape;
  }

  /// The block that the checkpoint has chosen: by the shape of the scale, else by its config.
  [[nodiscard]] Block group_of(std::uint32_t i, const SchemeFacts& scheme) const {
    if (!scheme.chooses_cols && scheme.group_rows <= 1) return draft_.block;
    const Shape weight = decoded_shape(i, scheme);
    const StoredTensor& scale = draft_.stored[found_[i].stored[Part::kScale]];
    if (scheme.chooses_cols)
      return {1, weight.back() / std::max<std::uint64_t>(scale.shape.back(), 1)};
    return block_of(i, weight).value_or(draft_.block);
  }

  /// The row for the dtype of the codes and for the dtype and shape of the scale; null, and
  /// reported, when there is none.
  const SchemeFacts* scheme_of(std::uint32_t i) {
    const StoredTensor& weight = draft_.stored[i];
    if (!has_scale(i)) return nullptr;
    const std::uint32_t scale_index = found_[i].stored[Part::kScale];
    // Ascend: the scale is in deq_scale, the product with that of the activations.
    if (scale_index == StoredParts::kAbsent) return &scheme_facts(SchemeId::kInt8Channel);
    const StoredTensor& scale = draft_.stored[scale_index];
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
        if (scheme.is_read_only || is_excluded(i, scheme)) continue;
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
      fault(scale_index, ErrorCode::kDtypeMismatch, "is a scale in {}, must be {}",
            dtype_name(scale.dtype), (of_fitting.empty() ? of_all : of_fitting).text());
    } else {
      fault(scale_index, ErrorCode::kShapeMismatch,
            "is a scale of shape {}, a weight of shape {} needs {}", shape_text(scale.shape),
            shape_text(weight.shape), needed);
    }
    return nullptr;
  }

  /// True if the names of the parts, or the config, rule out a scheme that fits the shape.
  [[nodiscard]] bool is_excluded(std::uint32_t i, const SchemeFacts& scheme) const {
    const StoredTensor& scale = draft_.stored[found_[i].stored[Part::kScale]];
    const Shape& weight = draft_.stored[i].shape;
    // Static activations go with numbers for whole matrices, one for each of a stack.
    const bool is_number = !claims_blocks_ && found_[i].stored.has(Part::kInputScale) &&
                           is_per_matrix(scale.shape, weight);
    if (scheme.group_rows > 1) return is_number;
    // A scale by a block's name is one where it may be.
    const bool is_block = claims_blocks_ || block_of(i, weight).has_value();
    return scheme.group_cols == 0 && found_[i].reach == ScaleReach::kBlock && is_block &&
           !is_number;
  }

  /// True if codes have two dimensions, and a scale or a deq_scale; reports faults.
  bool has_scale(std::uint32_t i) {
    const StoredTensor& weight = draft_.stored[i];
    const StoredParts& parts = found_[i].stored;
    const bool is_static_int8 = weight.dtype == DType::kI8 && parts.has(Part::kDeqScale);
    if (!parts.has(Part::kScale) && !is_static_int8) {
      if (draft_.is_complete) {
        fault(i, ErrorCode::kMissingTensor,
              "is {} without a scale (there is no weight_scale, weight_scale_inv or scale)",
              dtype_name(weight.dtype));
      }
      return false;
    }
    if (weight.shape.size() < 2) {
      fault(i, ErrorCode::kShapeMismatch, "is {} of shape {}, scales need two dimensions",
            dtype_name(weight.dtype), shape_text(weight.shape));
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
    if (scheme.group_rows > 1) return block_of(i, weight).has_value();
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
    const Shape& scale = draft_.stored[index].shape;
    if (is_per_row(scale, weight)) return {};
    if (is_one_value(scale))
      return scheme.id == SchemeId::kInt8Channel ? std::vector{weight.front()}
                                                 : std::vector<std::uint64_t>();
    const auto match = grammar_.match(weight_name(draft_.stored[i]));
    if (!match) return {};
    std::vector<std::uint64_t> rows;
    for (const Width* section : match->rule->sections)
      rows.push_back(section->size(draft_.config, match->layer));
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
      const auto [rows, cols] = scale_group(scheme.id, weight, draft_.block);
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
    if (lacks_global && draft_.is_complete) {
      fault(i, ErrorCode::kMissingTensor,
            "is {} without a global scale (there is no weight_scale_2 or weight_global_scale)",
            scheme.name);
    } else if (lacks_input && draft_.is_complete) {
      fault(i, ErrorCode::kMissingTensor,
            "has a deq_scale, which is its scale times that of the activations, but no input_scale "
            "(a file missing? fetch it again)");
    }
    const bool lacks_dimensions = scheme.has_dimensions && !parts.has(Part::kDimensions);
    if (lacks_dimensions && draft_.is_complete) {
      fault(i, ErrorCode::kMissingTensor,
            "is {} without its dimensions (there is no weight_shape; loaders unpack by it)",
            scheme.name);
    }
    return !lacks_global && !lacks_input && !lacks_dimensions;
  }

  /// Looks at every part but codes and scale.
  bool auxiliaries_fit(std::uint32_t i, const SchemeFacts& scheme, const Shape& weight) {
    bool fits = true;
    found_[i].stored.for_each([&](Part part, std::uint32_t index) {
      if (part == Part::kWeight || part == Part::kScale) return;
      const StoredTensor& stored = draft_.stored[index];
      const PartFacts& facts = part_facts(part);
      // Packed INT8, is_packed_int8().
      const bool is_mark = part == Part::kDimensions && scheme.code == CodeKind::kInt8;
      const bool has_factors = part == Part::kColumnFactor &&
                               (scheme.id == SchemeId::kNvfp4 || scheme.id == SchemeId::kInt4Group);
      const bool is_of_any = part == Part::kInputScale || part == Part::kOutputScale || has_factors;
      if (!is_of_any && !is_mark && !is_part_of(scheme.id, part)) {
        fault(index, ErrorCode::kUnsupported, "is {}, which a weight in {} does not have",
              facts.meaning, scheme.name);
      } else if (!facts.reads.has(stored.dtype)) {
        fault(index, ErrorCode::kDtypeMismatch, "is {} in {}", facts.meaning,
              dtype_name(stored.dtype));
      } else if (const std::string needs = extent_needed(i, facts.extent, stored.shape, weight);
                 !needs.empty()) {
        fault(index, ErrorCode::kShapeMismatch, "is {} of shape {}, a weight of shape {} needs {}",
              facts.meaning, shape_text(stored.shape), shape_text(weight), needs);
      } else {
        return;
      }
      fits = false;
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

  /// True if a stack of gates above ups has a number for each of the two of each expert.
  [[nodiscard]] bool has_number_of_halves(std::uint32_t i, const Shape& shape,
                                          const Shape& weight) const {
    const auto match = grammar_.match(weight_name(draft_.stored[i]));
    const bool alternates = match && match->rule->gate_up == GateUpOrder::kInterleaved;
    return weight.size() == 3 && weight[1] % 2 == 0 && shape == Shape{weight[0], 2} && !alternates;
  }

  /// The shape that a part of weight `i` should have, if `shape` is wrong; else empty.
  [[nodiscard]] std::string extent_needed(std::uint32_t i, PartExtent extent, const Shape& shape,
                                          const Shape& weight) const {
    switch (extent) {
      case PartExtent::kOne:
        return is_number(shape, weight) || is_as_long_as_scale(i, shape, weight) ||
                       has_number_of_halves(i, shape, weight)
                   ? ""
                   : "one value";
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
    Shape wanted = draft_.stored[found_[i].stored[Part::kScale]].shape;
    wanted[wanted.size() - 2] = ceil_div(wanted[wanted.size() - 2], kZerosPerWord);
    return shape == wanted ? "" : shape_text(wanted);
  }

  Draft& draft_;
  const NameGrammar grammar_;          // names say which weights are fused
  const std::vector<bool> is_unread_;  // by stored tensor: of a weight in a form that is not read
  bool claims_blocks_;                 // `block` is no default
  bool is_fp8_, is_quark_;
  LostZeroPoints lost_zero_points_;
  const PairedParts paired_;
  const std::vector<FoundParts>& found_;  // parts in paired_
  std::vector<Block> blocks_;             // blocks in the order in which they are tried
};

}  // namespace

std::vector<StoredParts> recognise_encodings(Draft& draft) {
  return Recogniser(draft).run();
}

namespace {

/// Tells for each stored tensor if it is a part of a weight whose other parts are elsewhere. Such a
/// part is a fault of a whole checkpoint, and no fault of one file of it.
std::vector<bool> parts_of_others(Draft& draft) {
  const ErrorList faults = std::exchange(draft.faults, {});
  const auto trial = [&](bool is_complete) {
    draft.is_complete = is_complete;
    std::vector<StoredParts> refused = recognise_encodings(draft);
    draft.tensors.clear();
    return std::pair(std::move(refused), std::exchange(draft.faults, {}));
  };
  std::vector<bool> found;
  if (const auto layout = input_major_layout(draft.config)) {
    draft.is_complete = false;
    found = parts_of_incomplete_weights(*layout, draft);
  } else {
    const ErrorList of_whole = trial(/*is_complete=*/true).second;
    const auto [refused, of_part] = trial(/*is_complete=*/false);
    std::set<std::string_view> reported, alone;
    for (const Error& fault : of_part.errors()) reported.insert(fault.tensor());
    for (const Error& fault : of_whole.errors()) {
      if (fault.code() == ErrorCode::kMissingTensor && !reported.contains(fault.tensor()))
        alone.insert(fault.tensor());
    }
    for (const StoredTensor& tensor : draft.stored) found.push_back(alone.contains(tensor.name));
    for (const StoredParts& parts : refused) {
      if (!found[parts.weight()]) continue;
      parts.for_each([&](Part, std::uint32_t index) { found[index] = true; });
    }
  }
  draft.is_complete = true;
  draft.faults = faults;
  return found;
}

}  // namespace

void leave_out_parts_of_others(Draft& draft) {
  constexpr std::size_t kShown = 3;
  const std::vector<bool> is_left_out = parts_of_others(draft);
  std::vector<StoredTensor> kept;
  std::vector<std::string> names;
  for (std::size_t i = 0; i < is_left_out.size(); ++i) {
    if (is_left_out[i]) {
      names.push_back(draft.stored[i].name);
    } else {
      kept.push_back(std::move(draft.stored[i]));
    }
  }
  draft.forget_names();
  draft.stored = std::move(kept);
  if (names.empty()) return;
  const std::size_t n = names.size();
  names.resize(std::min(n, kShown));
  draft.remarks.push_back(
      fmt::format("left out: {} tensor{} whose codes or scales are in another file: {}{}", n,
                  n == 1 ? "" : "s", fmt::join(names, ", "), n > kShown ? ", ..." : ""));
}

}  // namespace ingot::formats
