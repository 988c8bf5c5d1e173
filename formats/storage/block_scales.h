#pragma once

#include <algorithm>
#include <optional>
#include <span>
#include <vector>

#include "formats/storage/tensor_source.h"

namespace ingot::formats {

/// Rules for the scales that are accepted.
struct ScalePolicy {
  bool allow_zero = false;  ///< zero decodes to zeros; a user may know that a block is dead
};

/// NVFP4's one number over all block scales, as stored.
struct GlobalScale {
  float value = 1;
  bool divides = false;  ///< compressed-tensors; ModelOpt multiplies
};

/// Effective scales from stored ones: F32 as they are; F16, BF16, E4M3 and E8M0 (U8 too) widened
/// exactly; of I64 (Ascend's deq_scale for FP16 models) the F32 whose bits are its low half; then
/// times or by the global with one FP32 rounding. Throws kDtypeMismatch for another dtype.
void widen_scales(DType dtype, std::span<const std::byte> bytes,
                  const std::optional<GlobalScale>& global, std::span<float> out);

/// The scales of one logical tensor, and all else that decodes its codes, read a run of scale rows
/// at a time. Every scale and the global must be finite and above zero, those of integers not zero,
/// and so must be the product or quotient of the two (kBadScale with position and value); a weight
/// offset must be zero (kUnsupported); the dimensions that INT4 states must be those of the weight,
/// and an order of groups name groups that there are (kCorrupt); factors of columns must be
/// finite and not zero (kBadScale).
class ScaleReader {
 public:
  /// `source` and `tensor` must outlive this. Reads the parts with one number for the whole tensor.
  ScaleReader(const TensorSource& source, const LogicalTensor& tensor,
              const ScalePolicy& policy = {});

  /// False for plain schemes, which have no rows to read.
  [[nodiscard]] bool has_scales() const { return rows_ != 0; }
  [[nodiscard]] std::uint64_t rows() const { return rows_; }  ///< rows of all stacked matrices
  [[nodiscard]] std::uint64_t cols() const { return cols_; }  ///< ceil(K / block_cols)
  /// Rows of at most so many scales, and at least one. A weight may have rows and no columns.
  [[nodiscard]] std::uint64_t rows_within(std::uint64_t n_scales) const {
    return std::max<std::uint64_t>(n_scales / std::max<std::uint64_t>(cols_, 1), 1);
  }
  /// The global scale. Throws kUnsupported for a stack with a number for each expert, since no one
  /// number is over all scales.
  [[nodiscard]] const std::optional<GlobalScale>& global() const;

  /// The first scale row and the number of them that rows [first, first + n) of the flattened
  /// weight need.
  struct Range {
    std::uint64_t first = 0, n = 0;
  };
  [[nodiscard]] Range range_of(std::uint64_t first_row, std::uint64_t n_rows) const;

  /// Effective scales of a range of scale rows, row-major.
  [[nodiscard]] std::vector<float> read(Range range) const;

  /// Integers: the codes that mean zero under those scales. Empty for INT4 where it is 8 for all.
  [[nodiscard]] std::vector<std::uint8_t> read_zeros(Range range) const;

  /// Integers: the scale column of each column of the weight; empty where groups are runs of
  /// columns.
  [[nodiscard]] std::span<const std::uint32_t> group_order() const { return group_order_; }

  /// The factors of all columns (Part::kColumnFactor); empty: there are none.
  [[nodiscard]] std::span<const float> column_factors() const { return column_factors_; }

 private:
  [[nodiscard]] std::uint32_t stored_scale() const {
    return tensor_.encoding.stored[input_scale_ ? Part::kDeqScale : Part::kScale];
  }
  void require_good(std::span<const float> stored, std::uint64_t first_row) const;
  [[nodiscard]] std::vector<std::byte> read_part(Part part) const;
  void require_dimensions() const;
  void read_group_order();
  void read_column_factors();

  const TensorSource& source_;
  const LogicalTensor& tensor_;
  ScalePolicy policy_;
  std::uint64_t rows_ = 0, cols_ = 0;
  std::uint64_t rows_per_matrix_ = 0, scale_rows_per_matrix_ = 0;
  std::optional<GlobalScale> global_;
  std::vector<GlobalScale> globals_;  // global scales of a stack, by matrix
  std::optional<float> input_scale_;  // Ascend static: the scale is deq_scale / input_scale
  std::vector<std::uint32_t> group_order_;
  std::vector<float> column_factors_;
};

/// The scales of a tensor as FP32, row-major over the whole scale tensor. Empty for a scheme
/// without scales.
std::vector<float> read_block_scales(const TensorSource& source, const LogicalTensor& tensor,
                                     const ScalePolicy& policy = {});

/// The one scale of a weight's static activations, as stored. Throws kBadScale for one that is not
/// finite and above zero, kUnsupported for a number for each expert of a stack.
float read_input_scale(const TensorSource& source, const LogicalTensor& tensor);

/// Throws kBadScale for a scale of a weight's static activations that is not finite and above zero,
/// and for an offset of them that is not finite.
void require_good_input_scales(const TensorSource& source, const LogicalTensor& tensor,
                               const ScalePolicy& policy = {});

/// The numbers of a stored tensor that is plain and of at most 1 MiB; of others none.
std::vector<float> read_small_numbers(const TensorSource& source, std::uint32_t stored);

/// True if some scale of a kFp8Block weight is finite, and neither zero nor a power of two.
bool has_scale_beyond_powers_of_two(const TensorSource& source);

/// True if all scales of kFp8Block weights are powers of two, not all the same, in a dtype that
/// could hold other numbers: such scales were rounded to powers of two, as `scale_fmt` says. Reads
/// scales up to the first that is none.
bool all_scales_are_powers_of_two(const TensorSource& source);

}  // namespace ingot::formats
