#include "shard/cut/part_cut.h"

#include <utility>

#include <fmt/format.h>

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
  // Of a scale, shapes tell: one per matrix has none of the matrix's own sides.
  has_number_per_matrix_ = weight.size() > 2 && part_shape == Shape{weight.front()} &&
                           (is_of_numbers || part == Part::kScale);
  if (cut.axis == Axis::kNone || cut.n == 1) return;
  INGOT_CHECK(cut.n > 0 && cut.sections > 0);
  const bool along_rows = cut.axis == Axis::kRows;
  if (part == Part::kQuantBias && !along_rows) {
    kind_ = Kind::kFirstOnly;
    return;
  }
  const std::uint64_t unit = part_unit(part, scheme, weight, group)[along_rows ? 0 : 1];
  if (unit == 0) return;
  sections_ = cut.sections;
  // A tensor of one dimension has a number per row.
  INGOT_CHECK(weight.size() >= (along_rows ? 1U : 2U));
  const std::size_t axis = weight.size() == 1 ? 0 : weight.size() - (along_rows ? 2 : 1);
  INGOT_CHECK(axis < whole_.size());
  const std::uint64_t n_pieces = std::uint64_t{n_} * sections_;
  INGOT_CHECK(weight[axis] % n_pieces == 0 && weight[axis] / n_pieces % unit == 0);
  const bool is_packed = part == Part::kWeight && !along_rows;
  // Codes in blocks are cut between those: a dimension of the part is that of blocks.
  const bool is_in_blocks = is_packed && whole_.size() > weight.size() && whole_[axis] != 0;
  const std::uint64_t codes = is_in_blocks ? weight[axis] / whole_[axis]
                              : is_packed  ? formats::codes_per_element(scheme, dtype)
                                           : 1;
  INGOT_CHECK(whole_[axis] == weight[axis] / unit / codes && whole_[axis] % n_pieces == 0);
  cut_along(dtype, axis);
}

PartCut::PartCut(DType dtype, const Shape& whole, int axis, std::uint32_t n, std::uint32_t sections)
    : n_(n), whole_(whole), slice_(whole) {
  const auto refuse = [&] {
    return Error(ErrorCode::kCorrupt,
                 fmt::format("a part of shape {} cannot be cut into {} slices of {} sections along "
                             "dimension {}",
                             formats::shape_text(whole), n, sections, axis));
  };
  if (n == 0 || sections == 0 || axis < -1) throw refuse();
  if (!formats::byte_count(dtype, whole)) throw refuse();
  set_whole(dtype);
  if (axis == -1 || n == 1) return;
  const auto dimension = static_cast<std::size_t>(axis);
  const std::uint64_t n_pieces = std::uint64_t{n} * sections;
  if (dimension >= whole.size() || whole[dimension] % n_pieces != 0) throw refuse();
  sections_ = sections;
  if (piece_bits(dtype, dimension) % 8 != 0) throw refuse();
  cut_along(dtype, dimension);
}

void PartCut::set_whole(DType dtype) {
  const std::optional<std::uint64_t> n_bytes = formats::byte_count(dtype, whole_);
  INGOT_CHECK(n_bytes.has_value());
  whole_bytes_ = slice_bytes_ = *n_bytes;
  matrix_bytes_ = stride_ = piece_ = *n_bytes;
}

std::uint64_t PartCut::piece_bits(DType dtype, std::size_t axis) const {
  std::uint64_t bits = formats::dtype_bits(dtype) * (whole_[axis] / sections_ / n_);
  for (std::size_t d = axis + 1; d < whole_.size(); ++d) bits *= whole_[d];
  return bits;
}

void PartCut::cut_along(DType dtype, std::size_t axis) {
  const std::uint64_t bits = piece_bits(dtype, axis);
  INGOT_CHECK(bits % 8 == 0);
  kind_ = Kind::kCut;
  axis_ = static_cast<int>(axis);
  n_receiving_ = n_;
  slice_[axis] /= n_;
  slice_bytes_ = whole_bytes_ / n_;
  piece_ = bits / 8;
  stride_ = piece_ * n_;
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
  return slice * (slice_[static_cast<std::size_t>(axis_)] / sections_);
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
  const std::uint64_t in_stretch = within - stretch * stride_;
  at.run.slice = static_cast<std::uint32_t>(in_stretch / piece_);
  const std::uint64_t in_piece = in_stretch - at.run.slice * piece_;
  at.row = held_before * (matrix_bytes_ / n_receiving_) + stretch * piece_;
  at.run.slice_offset = at.row + in_piece;
  at.left = piece_ - in_piece;
  return at;
}

}  // namespace ingot::shard
