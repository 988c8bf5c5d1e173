#include "shard/join/slice_form.h"

#include <algorithm>

#include <fmt/format.h>

#include "formats/base/checked.h"
#include "formats/base/error.h"

namespace ingot::shard {

using formats::Shape;
using formats::shape_text;
using formats::SliceRecord;

namespace {

class Placing {
 public:
  Placing(formats::DType dtype, const Shape& stored, const SliceRecord& record)
      : dtype_(dtype), stored_(stored), record_(record) {}

  PlacedSlice place() {
    PlacedSlice placed;
    placed.is_zeroed = record_.is_zeroed;
    placed.experts = record_.experts;
    placed.form.whole = record_.whole;
    require(record_.whole.size() == stored_.size() && record_.axis < n_dims(),
            "the numbers of dimensions differ");
    for (int d = 0; d < n_dims(); ++d) {
      if (d == record_.axis) {
        place_on_axis(placed);
      } else if (d == 0 && !record_.experts.empty()) {
        check_experts();
      } else {
        require(at(stored_, d) == at(record_.whole, d), "sides that are not cut differ");
      }
    }
    require(record_.axis != 0 || record_.experts.empty(),
            "it is cut and dealt along one dimension");
    require(!record_.is_zeroed || record_.axis < 0, "it is cut, and zero for the sum over ranks");
    take_original(placed.form);
    // Slices of packed sub-byte types would begin inside a byte; nothing that we cut has one.
    require(dtype_bits(dtype_) % 8 == 0 || (record_.axis < 0 && record_.experts.empty()),
            "elements of less than a byte cannot be cut");
    // Where nothing is cut or padded, sections are no property of the tensor.
    const bool has_sections = record_.axis >= 0 || !placed.form.original.empty();
    placed.form.sections = has_sections ? record_.sections : 1;
    return placed;
  }

 private:
  [[nodiscard]] int n_dims() const { return static_cast<int>(stored_.size()); }
  static std::uint64_t at(const Shape& shape, int d) { return shape[static_cast<std::size_t>(d)]; }

  void require(bool holds, std::string_view fact) const {
    if (holds) return;
    throw Error(ErrorCode::kMismatch,
                fmt::format("is {}, which is not the slice that the manifest tells of (axis {}, "
                            "offset {}, {} section(s) of {}): {} (changed since it was written: "
                            "run ingot check)",
                            shape_text(stored_), record_.axis, record_.offset, record_.sections,
                            shape_text(record_.whole), fact));
  }

  void place_on_axis(PlacedSlice& placed) const {
    const std::uint64_t whole = at(record_.whole, record_.axis);
    const std::uint64_t own = at(stored_, record_.axis);
    const std::uint64_t sections = record_.sections;
    require(sections > 0 && whole % sections == 0 && own % sections == 0,
            "the sections are not of one size");
    const std::uint64_t length = own / sections;
    const std::uint64_t section = whole / sections;
    require(length > 0 && section % length == 0 && record_.offset % length == 0 &&
                record_.offset < section,
            "slices of this size do not make up the whole");
    placed.form.axis = record_.axis;
    placed.form.n = narrow<std::uint32_t>(section / length, "the number of slices");
    placed.slice = narrow<std::uint32_t>(record_.offset / length, "the number of a slice");
  }

  void check_experts() const {
    const auto& experts = record_.experts;
    require(experts.size() == stored_[0], "it holds another number of experts");
    require(std::adjacent_find(experts.begin(), experts.end(), std::greater_equal<>()) ==
                    experts.end() &&
                experts.back() < record_.whole[0],
            "its experts are not ascending numbers below that of the whole");
  }

  void take_original(SliceForm& form) const {
    const Shape& original = record_.original;
    if (original.empty() && record_.repeat == std::array<std::uint64_t, 2>{1, 1}) return;
    require(original.size() == record_.whole.size() && !original.empty(),
            "what was retiled or padded had other dimensions");
    const int first_fitted = std::max(n_dims() - 2, 0);
    for (int d = 0; d < n_dims(); ++d) {
      const std::uint64_t fitted = at(record_.whole, d);
      if (d < first_fitted) {
        require(at(original, d) == fitted, "a stack was padded");
        continue;
      }
      // A column of numbers has rows alone.
      const std::uint64_t repeat = record_.repeat[static_cast<std::size_t>(d - first_fitted)];
      require(repeat > 0, "a repetition of zero");
      const auto span = at(original, d) == 0 ? std::optional<std::uint64_t>(0)
                                             : checked_mul(at(original, d) - 1, repeat);
      require(span && (*span < fitted || at(original, d) == 0),
              "it is smaller than before it was retiled or padded");
    }
    if (original == record_.whole && record_.repeat == std::array<std::uint64_t, 2>{1, 1}) return;
    form.original = original;
    form.repeat = record_.repeat;
  }

  formats::DType dtype_;
  const Shape& stored_;
  const SliceRecord& record_;
};

// The side whose end is padded section by section: that of the cut, else that of the rows of
// stacked matrices, of which numbers per row have no columns.
std::size_t section_side(const SliceForm& form) {
  const std::size_t n = form.whole.size();
  if (form.axis >= 0) return static_cast<std::size_t>(form.axis);
  if (n >= 3) return n - 2;
  return n == 2 && form.original[0] == form.whole[0] && form.original[1] != form.whole[1] ? 1 : 0;
}

}  // namespace

PlacedSlice place_slice(formats::DType dtype, const Shape& stored, const SliceRecord* record) {
  PlacedSlice placed;
  if (record == nullptr) {
    placed.form.whole = stored;
  } else {
    placed = Placing(dtype, stored, *record).place();
  }
  placed.form.dtype = dtype;
  if (!formats::byte_count(dtype, placed.form.whole))
    throw Error(ErrorCode::kLimit, "its size overflows 64 bits");
  static_cast<void>(fitted_grid(placed.form));
  return placed;
}

std::uint64_t FittedGrid::whole_row(std::uint64_t row) const {
  const std::uint64_t per_section = rows / row_sections;
  const std::uint64_t section = row / per_section;  // over all matrices
  return section * (whole_rows / row_sections) + row % per_section * repeat[0];
}

std::uint64_t FittedGrid::whole_col(std::uint64_t col) const {
  const std::uint64_t per_section = cols / col_sections;
  return col / per_section * (whole_cols / col_sections) + col % per_section * repeat[1];
}

std::uint64_t FittedGrid::rows_left(std::uint64_t row) const {
  const std::uint64_t per_section = rows / row_sections;
  return per_section - row % per_section;
}

std::optional<FittedGrid> fitted_grid(const SliceForm& form) {
  if (form.original.empty()) return std::nullopt;
  const std::size_t n = form.whole.size();
  FittedGrid grid;
  const std::uint32_t bits = dtype_bits(form.dtype);
  const bool is_vector = n == 1;
  const std::size_t side = section_side(form);
  grid.rows = form.original[is_vector ? 0 : n - 2];
  grid.whole_rows = form.whole[is_vector ? 0 : n - 2];
  if (!is_vector) {
    grid.cols = form.original[n - 1];
    grid.whole_cols = form.whole[n - 1];
  }
  grid.repeat = form.repeat;
  const bool cuts_cols = !is_vector && side == n - 1;
  // What was retiled is repeated as one: its sections may have shared a block.
  const bool is_retiled = form.repeat != std::array<std::uint64_t, 2>{1, 1};
  const std::uint64_t sections = is_retiled ? 1 : form.sections;
  (cuts_cols ? grid.col_sections : grid.row_sections) = sections;
  const std::uint64_t original = cuts_cols ? grid.cols : grid.rows;
  const std::uint64_t whole = cuts_cols ? grid.whole_cols : grid.whole_rows;
  const std::uint64_t repeat = cuts_cols ? grid.repeat[1] : grid.repeat[0];
  const bool is_sound = bits % 8 == 0 && (sections == 1 || side + 2 >= n) &&
                        original % sections == 0 && whole % sections == 0 && original > 0 &&
                        (original / sections - 1) * repeat < whole / sections;
  if (!is_sound) {
    throw Error(ErrorCode::kMismatch,
                fmt::format("was {} {} before it was retiled or padded, which {} in {} section(s) "
                            "cannot be made of (changed since it was written: run ingot check)",
                            dtype_name(form.dtype), shape_text(form.original),
                            shape_text(form.whole), form.sections));
  }
  grid.element_bytes = bits / 8;
  return grid;
}

}  // namespace ingot::shard
