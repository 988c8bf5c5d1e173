#include "shard/cut/part_cut.h"

#include <utility>

#include "formats/base/checked.h"
#include "formats/base/error.h"

namespace ingot::shard {

using formats::DType;
using formats::Part;
using formats::SchemeId;
using formats::Shape;

namespace {

// A block that is not smaller than the matrix is that of every slice as well.
std::uint64_t unit_of_side(std::uint64_t group, std::uint64_t side) {
  return group >= side ? 0 : group;
}

}  // namespace

std::array<std::uint64_t, 2> part_unit(Part part, SchemeId scheme, const Shape& weight,
                                       std::array<std::uint64_t, 2> group) {
  if (part == Part::kWeight) return {1, 1};
  const formats::SchemeFacts& facts = formats::scheme_facts(scheme);
  const auto extent = formats::part_facts(part).extent;
  if (part == Part::kZeroPoint) {
    return {formats::kZerosPerWord, part_unit(Part::kScale, scheme, weight, group)[1]};
  }
  if (part != Part::kScale) {
    return {extent == formats::PartExtent::kPerRow ? 1U : 0U,
            extent == formats::PartExtent::kPerColumn ? 1U : 0U};
  }
  if (!facts.quantized || weight.size() < 2) return {0, 0};
  const std::uint64_t rows = weight[weight.size() - 2];
  const bool has_blocks = facts.group_rows > 1;
  return {has_blocks ? unit_of_side(group[0], rows) : facts.group_rows,
          facts.group_cols == 0 || group[1] == 0 ? 0 : unit_of_side(group[1], weight.back())};
}

PartCut::PartCut(Part part, DType dtype, const Shape& part_shape, SchemeId scheme,
                 const Shape& weight, std::array<std::uint64_t, 2> group, const TensorCut& cut)
    : n_(cut.n), whole_(part_shape), slice_(part_shape) {
  set_whole(dtype);
  const bool is_of_numbers = part != Part::kWeight && part != Part::kScale &&
                             formats::part_facts(part).extent == formats::PartExtent::kOne;
  // The shape tells: a scale with one number per matrix has none of the matrix's own sides.
  has_number_per_matrix_ = weight.size() > 2 && part_shape == Shape{weight.front()} &&
                           (is_of_numbers || part == Part::kScale);
  if (cut.axis == Axis::kNone || cut.n == 1) return;
  INGOT_CHECK(cut.n > 0);
  const bool along_rows = cut.axis == Axis::kRows;
  if (part == Part::kQuantBias && !along_rows) {
    kind_ = Kind::kFirstOnly;
    return;
  }
  const std::uint64_t unit = part_unit(part, scheme, weight, group)[along_rows ? 0 : 1];
  if (unit == 0) return;
  sections_ = cut.sections;
  INGOT_CHECK(weight.size() >= (along_rows ? 1U : 2U));
  std::size_t axis = cut_dimension(weight, cut.axis);
  const std::uint64_t side = weight[axis];
  // The columns of scales that are spread follow a 1.
  if (part == Part::kScale && !along_rows && whole_.size() > weight.size()) ++axis;
  INGOT_CHECK(axis < whole_.size() && sections_.divide(side, n_, unit));
  const bool is_packed = part == Part::kWeight && !along_rows;
  // Codes in blocks are cut between blocks: a dimension of the part counts blocks.
  const bool is_in_blocks = is_packed && whole_.size() > weight.size() && whole_[axis] != 0;
  const std::uint64_t units = side / unit;
  INGOT_CHECK(whole_[axis] == (is_in_blocks ? units / (side / whole_[axis])
                               : is_packed  ? formats::packing(scheme, dtype).elements_of(units)
                                            : units));
  cut_along(dtype, axis);
}

PartCut::PartCut(DType dtype, const Shape& whole, int axis, std::uint32_t n,
                 const formats::Sections& sections)
    : n_(n), whole_(whole), slice_(whole) {
  set_whole(dtype);
  if (axis == -1 || n == 1) return;
  sections_ = sections;
  cut_along(dtype, static_cast<std::size_t>(axis));
}

void PartCut::set_whole(DType dtype) {
  const std::optional<std::uint64_t> n_bytes = formats::byte_count(dtype, whole_);
  INGOT_CHECK(n_bytes.has_value());
  whole_bytes_ = slice_bytes_ = *n_bytes;
  matrix_bytes_ = stride_ = piece_ = *n_bytes;
}

void PartCut::cut_along(DType dtype, std::size_t axis) {
  INGOT_CHECK(axis < whole_.size() && n_ > 0 && sections_.divide(whole_[axis], n_));
  std::uint64_t bits = formats::dtype_bits(dtype);  // bits of an element with all inner dimensions
  for (std::size_t d = axis + 1; d < whole_.size(); ++d) bits *= whole_[d];
  // Every section is a multiple of the step.
  INGOT_CHECK(bits * (sections_.step(whole_[axis]) / n_) % 8 == 0);
  kind_ = Kind::kCut;
  axis_ = static_cast<int>(axis);
  n_receiving_ = n_;
  slice_[axis] /= n_;
  slice_bytes_ = whole_bytes_ / n_;
  if (sections_.is_equal()) {
    stride_ = sections_.step(whole_[axis]) * bits / 8;
  } else {
    stride_ = whole_[axis] * bits / 8;
    std::uint64_t end = 0;
    for (std::size_t i = 0; i < sections_.count(); ++i) {
      end += sections_.length_of(i, whole_[axis]) * bits / 8;
      section_ends_.push_back(end);
    }
  }
  piece_ = stride_ / n_;
}

PartCut PartCut::of_matrices(std::vector<std::uint32_t> matrices) const {
  PartCut held = *this;
  if (whole_.size() < 2 && !has_number_per_matrix_) return held;
  INGOT_CHECK(matrices_.empty() && axis_ != 0);
  INGOT_CHECK(!matrices.empty() && matrices.back() < whole_.front());
  INGOT_CHECK(std::is_sorted(matrices.begin(), matrices.end(), std::less_equal<>()));
  if (matrices.size() == whole_.front()) return held;
  held.matrix_bytes_ = whole_bytes_ / whole_.front();
  if (kind_ != Kind::kCut) held.stride_ = held.piece_ = held.matrix_bytes_;
  held.slice_.front() = matrices.size();
  held.slice_bytes_ = slice_bytes_ / whole_.front() * matrices.size();
  held.matrices_ = std::move(matrices);
  return held;
}

std::uint64_t PartCut::slice_offset(std::uint32_t slice) const {
  if (kind_ != Kind::kCut) return 0;
  INGOT_CHECK(slice < n_);
  return slice * sections_.length_of(0, slice_[static_cast<std::size_t>(axis_)]);
}

void PartCut::gather(std::uint64_t offset, std::span<std::byte> out,
                     const formats::ReadPiece& read) const {
  INGOT_CHECK(matrices_.empty());
  while (!out.empty()) {
    const Place at = locate(offset);
    const std::uint64_t n = std::min<std::uint64_t>(out.size(), at.end - offset);
    // Pieces of this length, one of each slice in turn.
    const std::uint64_t skipped = at.run.slice * at.piece + at.run.slice_offset - at.row;
    const formats::Nest pieces(
        8, {{.n = ceil_div(skipped + n, n_receiving_ * at.piece), .stride = at.piece},
            {.n = n_receiving_, .pieces = 1},
            {.n = at.piece, .stride = 1}});
    pieces.gather(skipped, out.first(n),
                  [&](std::uint32_t slice, std::uint64_t from, std::span<std::byte> bytes) {
                    read(slice, at.row + from, bytes);
                  });
    out = out.subspan(n);
    offset += n;
  }
}

PartCut::Place PartCut::locate(std::uint64_t offset) const {
  INGOT_CHECK(offset < whole_bytes_);
  Place at;
  at.end = whole_bytes_;
  std::uint64_t within = offset;
  std::uint64_t held_before = 0;
  if (!matrices_.empty()) {
    const std::uint64_t matrix = offset / matrix_bytes_;
    const auto next = std::lower_bound(matrices_.begin(), matrices_.end(), matrix);
    at.is_held = next != matrices_.end() && *next == matrix;
    if (!at.is_held) {
      if (next != matrices_.end()) at.end = *next * matrix_bytes_;
      return at;
    }
    within = offset - matrix * matrix_bytes_;
    held_before = static_cast<std::uint64_t>(next - matrices_.begin());
    at.end = (matrix + 1) * matrix_bytes_;
  }
  const std::uint64_t stretch = within / stride_;
  std::uint64_t in_stretch = within - stretch * stride_;
  at.row = held_before * (matrix_bytes_ / n_receiving_) + stretch * piece_;
  at.piece = piece_;
  if (!section_ends_.empty()) {
    const auto section = std::ranges::upper_bound(section_ends_, in_stretch);
    const std::uint64_t begin = section == section_ends_.begin() ? 0 : *(section - 1);
    at.end = std::min(at.end, offset + (*section - in_stretch));
    at.row += begin / n_;
    at.piece = (*section - begin) / n_;
    in_stretch -= begin;
  }
  at.run.slice = static_cast<std::uint32_t>(in_stretch / at.piece);
  const std::uint64_t in_piece = in_stretch - at.run.slice * at.piece;
  at.run.slice_offset = at.row + in_piece;
  at.left = at.piece - in_piece;
  return at;
}

}  // namespace ingot::shard
