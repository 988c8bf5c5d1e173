#include "shard/join/placed_slice.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "formats/base/checked.h"
#include "formats/base/error.h"

namespace ingot::shard {

using formats::Shape;
using formats::shape_text;
using formats::SliceRecord;

namespace {

constexpr std::array<std::uint64_t, 2> kOnce = {1, 1};

// The number of slices along the axis, and which one this is; contradictions of the record with
// itself were seen when it was parsed.
std::pair<std::uint32_t, std::uint32_t> match_stored(formats::DType dtype, const Shape& stored,
                                                     const SliceRecord& record) {
  std::uint32_t n = 1, slice = 0;
  const auto require = [&](bool holds, std::string_view fact) {
    if (holds) return;
    throw Error(ErrorCode::kMismatch,
                "is {}, which is not the slice that the manifest tells of (axis {}, offset {}, {} "
                "section(s) of {}): {} (changed since it was written: run ingot check)",
                shape_text(stored), record.axis, record.offset, record.sections.count(),
                shape_text(record.whole), fact);
  };
  require(record.whole.size() == stored.size(), "the numbers of dimensions differ");
  for (std::size_t d = 0; d < stored.size(); ++d) {
    if (static_cast<int>(d) == record.axis) {
      require(record.sections.divide(stored[d]), "its sections are not of whole elements");
      const std::uint64_t length = record.sections.length_of(0, stored[d]);
      const std::uint64_t section = record.sections.length_of(0, record.whole[d]);
      require(length > 0 && section % length == 0 && record.offset % length == 0,
              "slices of this size do not make up the whole");
      n = narrow<std::uint32_t>(section / length, "the number of slices");
      slice = narrow<std::uint32_t>(record.offset / length, "the number of a slice");
    } else if (d == 0 && !record.experts.empty()) {
      require(record.experts.size() == stored[0], "it holds another number of experts");
    } else {
      require(stored[d] == record.whole[d], "sides that are not cut differ");
    }
  }
  require(!record.original.empty() || record.repeat == kOnce, "nothing was there to be repeated");
  // Slices of packed sub-byte types would begin inside a byte; nothing that we cut has one.
  require(dtype_bits(dtype) % 8 == 0 || (record.axis < 0 && record.experts.empty()),
          "elements of less than a byte cannot be cut");
  return {n, slice};
}

// The side whose end is padded section by section: that of the cut, else that of the rows of
// stacked matrices, of which numbers per row have no columns.
std::size_t section_side(const SliceRecord& record) {
  const std::size_t n = record.whole.size();
  if (record.axis >= 0) return static_cast<std::size_t>(record.axis);
  if (n >= 3) return n - 2;
  return n == 2 && record.original[0] == record.whole[0] && record.original[1] != record.whole[1]
             ? 1
             : 0;
}

std::optional<formats::Nest> original_in_whole(formats::DType dtype, const SliceRecord& record) {
  if (record.original.empty()) return std::nullopt;
  const std::size_t n = record.whole.size();
  const std::uint32_t bits = dtype_bits(dtype);
  const bool is_vector = n == 1;
  const std::size_t side = section_side(record);
  const std::size_t row_side = is_vector ? 0 : n - 2;
  const std::uint64_t rows = record.original[row_side];
  const std::uint64_t cols = is_vector ? 1 : record.original[n - 1];
  const std::uint64_t whole_cols = is_vector ? 1 : record.whole[n - 1];
  const bool cuts_cols = !is_vector && side == n - 1;
  // A retiled side counts as one section, since blocks may reach over its sections.
  const std::uint64_t sections = record.repeat != kOnce ? 1 : record.sections.count();
  const std::uint64_t row_sections = cuts_cols ? 1 : sections;
  const std::uint64_t col_sections = cuts_cols ? sections : 1;
  const std::uint64_t original = cuts_cols ? cols : rows;
  const std::uint64_t whole = cuts_cols ? whole_cols : record.whole[row_side];
  const std::uint64_t repeat = record.repeat[cuts_cols ? 1 : 0];
  const bool is_sound = bits % 8 == 0 && (sections == 1 || side + 2 >= n) &&
                        (sections == 1 || record.sections.is_equal()) && original % sections == 0 &&
                        whole % sections == 0 && original > 0 &&
                        (original / sections - 1) * repeat < whole / sections;
  if (!is_sound) {
    throw Error(ErrorCode::kMismatch,
                "was {} {} before it was retiled or padded, which {} in {} section(s) cannot be "
                "made of (changed since it was written: run ingot check)",
                dtype_name(dtype), shape_text(record.original), shape_text(record.whole),
                record.sections.count());
  }
  std::uint64_t matrices = 1;
  for (std::size_t d = 0; d < row_side; ++d) matrices *= record.original[d];
  const std::uint64_t section_rows = record.whole[row_side] / row_sections;
  return formats::Nest(bits, {{.n = matrices * row_sections, .stride = section_rows * whole_cols},
                              {.n = rows / row_sections, .stride = record.repeat[0] * whole_cols},
                              {.n = col_sections, .stride = whole_cols / col_sections},
                              {.n = cols / col_sections, .stride = record.repeat[1]}});
}

}  // namespace

bool PlacedSlice::is_cut_like(const PlacedSlice& other) const {
  const auto common = [](const PlacedSlice& of) {
    const SliceRecord& r = of.record;
    return std::tie(of.dtype, r.axis, r.sections, r.whole, r.original, r.repeat);
  };
  return common(*this) == common(other) && cut.n_slices() == other.cut.n_slices();
}

PlacedSlice place_slice(formats::DType dtype, const Shape& stored, const SliceRecord* record) {
  SliceRecord of;
  std::uint32_t n = 1, slice = 0;
  if (record == nullptr) {
    of.whole = stored;
  } else {
    of = *record;
    if (of.original == of.whole && of.repeat == kOnce) of.original.clear();
    std::tie(n, slice) = match_stored(dtype, stored, of);
  }
  if (!formats::byte_count(dtype, of.whole))
    throw Error(ErrorCode::kLimit, "its size overflows 64 bits");
  PartCut cut(dtype, of.whole, of.axis, n, of.sections);
  auto original = original_in_whole(dtype, of);
  return {.dtype = dtype,
          .record = std::move(of),
          .cut = std::move(cut),
          .slice = slice,
          .original = std::move(original)};
}

}  // namespace ingot::shard
