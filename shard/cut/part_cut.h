#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "formats/container/sections.h"
#include "formats/container/tensor.h"
#include "formats/places/nest.h"
#include "formats/storage/encoding.h"
#include "shard/cut/slicing.h"

namespace ingot::shard {

/// Rows and columns of the weight that one element of a part covers; 0: all of them, so a cut along
/// that side leaves the part whole. {1, 1} for codes and plain weights, the group for scales, {1,
/// 0} for numbers per row, {0, 0} for scalars.
std::array<std::uint64_t, 2> part_unit(formats::Part part, formats::SchemeId scheme,
                                       const formats::Shape& weight,
                                       std::array<std::uint64_t, 2> group);

/// How the bytes of one stored part are shared out to the slices of its tensor. The part is seen as
/// [matrices, rows, row bytes]; slices are dense, in the order of the whole.
class PartCut {
 public:
  enum class Kind : std::uint8_t {
    kWhole,      ///< every slice is the whole part
    kCut,        ///< along the tensor's axis
    kFirstOnly,  ///< slice 0 is the whole part, the others are zeros of its shape (quant_bias of
                 ///< row-parallel weights: the sum over ranks counts it once)
  };

  /// The whole part's shape, and how the tensor is cut. `weight` is the tensor's own shape. The
  /// caller has made sure that boundaries fall between units (align_blocks); INGOT_CHECKed.
  PartCut(formats::Part part, formats::DType dtype, const formats::Shape& part_shape,
          formats::SchemeId scheme, const formats::Shape& weight,
          std::array<std::uint64_t, 2> group, const TensorCut& cut);

  /// Makes the cut of a record: a part of `whole` shape cut into `n` along its dimension `axis`
  /// from the front (-1: not cut), which place_slice has compared with a slice; INGOT_CHECKed.
  PartCut(formats::DType dtype, const formats::Shape& whole, int axis, std::uint32_t n,
          const formats::Sections& sections);

  /// Returns the cut of this part for a holder of some of the matrices of a stack (at least one,
  /// ascending indices into the part's first dimension). A part of fewer than two dimensions has
  /// one number for the whole stack, and stays whole, unless it is said to have a number per
  /// matrix.
  [[nodiscard]] PartCut of_matrices(std::vector<std::uint32_t> matrices) const;

  [[nodiscard]] Kind kind() const { return kind_; }
  [[nodiscard]] std::uint32_t n_slices() const { return n_; }
  /// Slices that may differ from one another.
  [[nodiscard]] std::uint32_t n_distinct() const { return kind_ == Kind::kWhole ? 1 : n_; }
  /// Dimension of the part that is cut, or -1; for records.
  [[nodiscard]] int axis() const { return axis_; }
  [[nodiscard]] const formats::Shape& whole_shape() const { return whole_; }
  [[nodiscard]] const formats::Shape& slice_shape() const { return slice_; }
  [[nodiscard]] std::uint64_t whole_bytes() const { return whole_bytes_; }
  [[nodiscard]] std::uint64_t slice_bytes() const { return slice_bytes_; }
  [[nodiscard]] const formats::Sections& sections() const { return sections_; }
  /// Offset of a slice along axis() in elements, within the first section.
  [[nodiscard]] std::uint64_t slice_offset(std::uint32_t slice) const;

  /// A stretch of bytes that is contiguous in the whole and in one slice.
  struct Run {
    std::uint32_t slice = 0;
    std::uint64_t slice_offset = 0;
    std::uint64_t whole_offset = 0;
    std::uint64_t n_bytes = 0;
  };
  /// Calls visit(run) for the bytes [offset, offset + n_bytes) of the whole, in their order; bytes
  /// of matrices that are not held are left out. For kCut; for the other kinds only slice 0 is
  /// visited.
  template <typename Visit>
  void for_each_run(std::uint64_t offset, std::uint64_t n_bytes, Visit&& visit) const {
    const std::uint64_t end = offset + n_bytes;
    while (offset < end) {
      Place at = locate(offset);
      const std::uint64_t stop = std::min(end, at.end);
      if (!at.is_held) offset = stop;
      // The pieces of a matrix follow one another without a further division.
      while (offset < stop) {
        at.run.whole_offset = offset;
        at.run.n_bytes = std::min(at.left, stop - offset);
        visit(static_cast<const Run&>(at.run));
        offset += at.run.n_bytes;
        if (++at.run.slice == n_receiving_) {
          at.run.slice = 0;
          at.row += at.piece;
        }
        at.run.slice_offset = at.row;
        at.left = at.piece;
      }
    }
  }

  /// Bytes of the whole from `offset` on, whose pieces are the slices with all matrices.
  void gather(std::uint64_t offset, std::span<std::byte> out, const formats::ReadPiece& read) const;

  /// The run that begins at `offset`, cut off after n_bytes; nullopt where no slice holds that
  /// byte.
  [[nodiscard]] std::optional<Run> run_at(std::uint64_t offset, std::uint64_t n_bytes) const {
    Place at = locate(offset);
    if (!at.is_held) return std::nullopt;
    at.run.whole_offset = offset;
    at.run.n_bytes = std::min(at.left, std::min(offset + n_bytes, at.end) - offset);
    return at.run;
  }

 private:
  /// A byte of the whole.
  struct Place {
    Run run;                  // slice and its offset
    std::uint64_t left = 0;   // bytes to the end of the piece
    std::uint64_t piece = 0;  // bytes of the piece
    std::uint64_t row = 0;    // offset in every slice of the bytes that this stretch of pieces
                              // gives it
    std::uint64_t end = 0;    // end in the whole of the stretch with pieces of this length, or
                              // of a stretch that no slice holds
    bool is_held = true;
  };
  [[nodiscard]] Place locate(std::uint64_t offset) const;
  void set_whole(formats::DType dtype);
  void cut_along(formats::DType dtype, std::size_t axis);

  Kind kind_ = Kind::kWhole;
  int axis_ = -1;
  std::uint32_t n_ = 1;
  formats::Sections sections_;
  std::uint32_t n_receiving_ = 1;  // slices that bytes go to: n_ of kCut, else only slice 0
  formats::Shape whole_, slice_;
  std::uint64_t whole_bytes_ = 0, slice_bytes_ = 0;
  // Each matrix as stretches of `stride` bytes, each cut into pieces of `piece` bytes. Where
  // sections have lengths of their own, a stretch is all of them, and each has pieces of its own
  // length.
  std::uint64_t matrix_bytes_ = 0;  // bytes of a matrix; of the whole when no matrix is left out
  std::uint64_t stride_ = 0, piece_ = 0;
  std::vector<std::uint64_t> section_ends_;  // ends in a stretch, in bytes; empty: equal sections
  std::vector<std::uint32_t> matrices_;      // matrices that the slice holds; empty: all
  bool has_number_per_matrix_ = false;
};

}  // namespace ingot::shard
