#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "formats/base/checked.h"
#include "formats/container/tensor.h"

namespace ingot::formats {

/// How numbers are held. The arithmetic is attached to the id in quantize/.
enum class SchemeId : std::uint8_t {
  kBf16,
  kF16,
  kF32,
  kFp8Block,     ///< E4M3 codes, one F32 scale per block of rows x columns
  kFp8Channel,   ///< E4M3 codes, one F32 scale per row
  kFp8Tensor,    ///< E4M3 codes, one F32 scale
  kInt8Channel,  ///< INT8 codes, one F32 scale per row
  kInt8Block,    ///< INT8 codes, one F32 scale per block
  kNvfp4,        ///< E2M1 codes, an E4M3 scale per 16 columns, one F32 scale over all of them
  kMxfp4,        ///< E2M1 codes, an E8M0 scale per 32 columns
  kMxfp8,        ///< E4M3 codes, an E8M0 scale per 32 columns
  kInt4Group,    ///< 4-bit integers, a scale per group of columns, perhaps with zero points
  // Read and never written: one scale, one per row or one per block.
  kFp8E5m2,
  kFp8E4m3Fnuz,
  kFp8E5m2Fnuz,
  kInt8Group,  ///< INT8 codes with zero points or an order of columns
  kRaw,        ///< any other plain dtype: copied, never computed with
};

/// The kind of a code.
enum class CodeKind : std::uint8_t {
  kPlain,
  kE4m3,
  kInt8,
  kE2m1,
  kInt4,  ///< 0 to 15, less the zero point of the group: 8 where none is stored
  kE5m2,
  kE4m3Fnuz,
  kE5m2Fnuz,
  kInt8Zero,  ///< INT8, less the zero point of the group
};

/// The stored tensors that hold an encoded weight, in the order of a record.
enum class Part : std::uint8_t {
  kWeight,        ///< codes
  kScale,         ///< one scale per group of codes
  kGlobal,        ///< NVFP4: one number over all scales
  kOffset,        ///< weight_offset of Ascend, all zero for symmetric codes
  kInputScale,    ///< scale of statically quantized activations
  kInputOffset,   ///< Ascend, static
  kQuantBias,     ///< Ascend, static
  kDeqScale,      ///< Ascend, static: input scale x weight scale
  kZeroPoint,     ///< integers: the code that means zero, per group
  kGroupOrder,    ///< integers: the group of each column, where groups are no runs of columns
  kDimensions,    ///< INT4: rows and columns of the weight
  kOutputScale,   ///< scale of static outputs: kept with the codes or left out, never written
  kColumnFactor,  ///< a factor of each column, which loaders multiply activations with: only read
};
inline constexpr std::size_t kMaxParts = 13;

/// How many numbers a part other than codes and scales has.
enum class PartExtent : std::uint8_t {
  kOne,
  kPerRow,
  kPerColumn,
  kPerGroup,    ///< numbers in words of kZerosPerWord, packed along the rows
  kDimensions,  ///< two: rows and columns of the weight, or of the slice
};
/// Zero points of so many rows share an I32, the first in the lowest four bits.
inline constexpr std::uint64_t kZerosPerWord = 8;

/// How a part other than the weight may be stored, whatever the scheme.
struct PartFacts {
  Part part;
  std::string_view meaning;  ///< name in messages: "a scale"
  DTypeSet reads;            ///< empty: the scheme decides
  PartExtent extent;         ///< extent of parts other than kWeight and kScale
};
const PartFacts& part_facts(Part part);

/// The facts about a scheme that formats needs; one row per SchemeId.
struct SchemeFacts {
  SchemeId id;
  std::string_view name;     ///< name in recipes and reports
  std::string_view to_word;  ///< word accepted by --to, or empty
  std::string_view summary;  ///< one line for `ingot list schemes`
  CodeKind code = CodeKind::kPlain;
  std::uint32_t code_bits = 0;  ///< bits of one code; 0 for raw
  bool quantized = false;       ///< codes under scales that are kept and written
  bool is_read_only = false;    ///< codes under scales that are read in order to write others
  /// Rows and columns that share a scale; 0: all of them. Where a checkpoint may choose, the
  /// numbers are those of released models. Both are 0 for schemes without scales as well.
  std::uint64_t group_rows = 0, group_cols = 0;
  /// A checkpoint chooses how many columns share a scale, tensor by tensor: the scale's shape says.
  bool chooses_cols = false;
  DType scale_dtype = DType::kF32;  ///< dtype of scales that are computed and written
  DTypeSet codes = {};              ///< dtypes of codes that are read, packed if wider than a code
  DTypeSet scales = {};             ///< dtypes of scales that are read
  bool has_global = false;          ///< Part::kGlobal is needed
  bool has_dimensions = false;      ///< Part::kDimensions is needed
  bool has_signed_scales = false;   ///< a scale may be negative; else it is above zero
};

std::span<const SchemeFacts> schemes();
const SchemeFacts& scheme_facts(SchemeId id);
inline std::string_view scheme_name(SchemeId id) {
  return scheme_facts(id).name;
}
inline bool is_quantized(SchemeId id) {
  return scheme_facts(id).quantized;
}
inline bool is_read_only(SchemeId id) {
  return scheme_facts(id).is_read_only;
}
/// True if numbers are codes under scales.
inline bool is_coded(SchemeId id) {
  return scheme_facts(id).code != CodeKind::kPlain;
}
/// Finds a scheme by its name or --to word.
std::optional<SchemeId> find_scheme(std::string_view name);
/// The scheme of a plain tensor of this dtype.
SchemeId plain_scheme(DType dtype);
/// The dtype that holds a plain scheme's weight (kBf16, kF16, kF32 only).
DType plain_dtype(SchemeId id);

/// How codes lie in stored elements, along a row: two of four bits in a U8, eight in an I32.
struct Packing {
  std::uint64_t codes = 1, elements = 1;  ///< counts; no fewer codes fill whole elements

  [[nodiscard]] std::uint64_t elements_of(std::uint64_t n_codes) const {
    return n_codes / codes * elements;
  }
  /// Codes in `n_elements` elements; 0 where they do not fit 64 bits.
  [[nodiscard]] std::uint64_t codes_of(std::uint64_t n_elements) const {
    return checked_mul(n_elements / elements, codes).value_or(0);
  }
};
Packing packing(SchemeId scheme, DType dtype);

/// Index of the stored tensor per part.
class StoredParts {
 public:
  static constexpr std::uint32_t kAbsent = ~std::uint32_t{0};

  StoredParts() { index_.fill(kAbsent); }
  /// The parts of a plain tensor, or only the codes.
  explicit StoredParts(std::uint32_t weight) : StoredParts() { set(Part::kWeight, weight); }
  StoredParts(std::uint32_t weight, std::uint32_t scale) : StoredParts(weight) {
    set(Part::kScale, scale);
  }
  void set(Part part, std::uint32_t stored) { index_[static_cast<std::size_t>(part)] = stored; }
  [[nodiscard]] bool has(Part part) const { return (*this)[part] != kAbsent; }
  [[nodiscard]] std::uint32_t operator[](Part part) const {
    return index_[static_cast<std::size_t>(part)];
  }
  [[nodiscard]] std::uint32_t weight() const { return (*this)[Part::kWeight]; }
  /// Calls `visit(part, stored)` for every part that is there, in order.
  template <typename Visit>
  void for_each(const Visit& visit) const {
    for (std::size_t part = 0; part < kMaxParts; ++part) {
      if (index_[part] != kAbsent) visit(static_cast<Part>(part), index_[part]);
    }
  }

 private:
  std::array<std::uint32_t, kMaxParts> index_;
};

/// How one logical tensor is stored: which stored tensors hold it and how they decode.
struct Encoding {
  SchemeId scheme = SchemeId::kRaw;
  StoredParts stored;
  /// Rows and columns that share a scale; 0 for schemes without. `block_rows` x `block_cols` of a
  /// whole-tensor scale are the sides of one matrix.
  std::uint64_t block_rows = 0;
  std::uint64_t block_cols = 0;
  /// kNvfp4: Part::kGlobal divides (compressed-tensors) instead of multiplying (ModelOpt).
  bool global_divides = false;
  /// Rows that share each scale of the files, for schemes with a scale per row, where there are
  /// fewer than rows. One number: all rows; several: one for each weight that is fused in this one.
  /// The stored scale is seen once for each row (repeat_scales(), formats/checkpoint/passes.h).
  std::vector<std::uint64_t> rows_of_scales = {};
  bool is_reordered = false;  ///< rows or scales are in another order in the files
};

/// True if codes only appear to be INT8, and are packed in the files, four to a word.
inline bool is_packed_int8(const Encoding& encoding) {
  return scheme_facts(encoding.scheme).code == CodeKind::kInt8 &&
         encoding.stored.has(Part::kDimensions);
}
/// True if a weight is converted, and never copied: its scheme or a part is only read, or it is
/// packed or ordered otherwise in the files.
inline bool is_seen_only(const Encoding& encoding) {
  return is_read_only(encoding.scheme) || is_packed_int8(encoding) || encoding.is_reordered ||
         encoding.stored.has(Part::kColumnFactor);
}

/// Scales of a block-scaled matrix. Leading dimensions (stacked experts) each have their own grid.
/// Weight [..., N, K]; scale [..., ceil(N/block_rows), ceil(K/block_cols)].
Shape block_scale_shape(const Shape& weight, std::uint64_t block_rows, std::uint64_t block_cols);

/// Rows and columns that share a scale in a weight of this shape (at least two dimensions) under
/// this scheme, with `block` for the schemes whose blocks a checkpoint chooses (only the columns
/// where it chooses these; 0: all). {0, 0} without scales.
std::array<std::uint64_t, 2> scale_group(SchemeId scheme, const Shape& weight,
                                         std::array<std::uint64_t, 2> block = {128, 128});

/// Columns that share a scale as configs state them, where a checkpoint chooses: 0 for a whole row,
/// unless it is as short as a usual group (32, 64 or 128). `cols` are those of the weight.
std::uint64_t stated_group_cols(std::uint64_t block_cols, std::uint64_t cols);

}  // namespace ingot::formats
