#include "shard/align/aligned_part.h"

#include <algorithm>
#include <cstring>

#include "formats/base/checked.h"
#include "formats/base/error.h"
#include "shard/cut/part_cut.h"

namespace ingot::shard {

using formats::DType;
using formats::Part;
using formats::Shape;

namespace {

// One, in the dtypes that hold scales.
std::vector<std::byte> one_in(DType dtype) {
  const auto bytes = [](std::initializer_list<unsigned> values) {
    std::vector<std::byte> list;
    for (const unsigned value : values) list.push_back(static_cast<std::byte>(value));
    return list;
  };
  switch (dtype) {
    case DType::kF32:
      return bytes({0x00, 0x00, 0x80, 0x3F});
    case DType::kBf16:
      return bytes({0x80, 0x3F});
    case DType::kF16:
      return bytes({0x00, 0x3C});
    case DType::kF8E4M3:
      return bytes({0x38});
    case DType::kU8:
    case DType::kF8E8M0:
      return bytes({127});
    default:
      throw Error(ErrorCode::kUnsupported, "has scales of a dtype that cannot be padded");
  }
}

std::vector<std::byte> filler_of(Part part, formats::SchemeId scheme, DType dtype) {
  const std::uint64_t width = formats::dtype_bits(dtype) / 8;
  const bool is_scale = part == Part::kScale || part == Part::kDeqScale;
  if (is_scale) return one_in(dtype);
  // Two codes 8, which mean zero.
  const bool is_int4 = formats::scheme_facts(scheme).code == formats::CodeKind::kInt4;
  const bool is_offset = part == Part::kWeight && is_int4;
  return std::vector<std::byte>(width, is_offset ? std::byte{0x88} : std::byte{0});
}

}  // namespace

AlignedPart aligned_part(Part part, formats::SchemeId scheme, const Shape& shape,
                         const Shape& weight, std::array<std::uint64_t, 2> group,
                         const Alignment& alignment, std::uint32_t sections) {
  AlignedPart aligned{.shape = shape, .weight = weight, .sections = sections};
  // A block that the weight does not fill may be one of several when it is padded.
  const std::size_t row_side = weight.size() >= 2 ? weight.size() - 2 : 0;
  if (alignment.padded[0] != 0) aligned.weight[row_side] = alignment.padded[0] * sections;
  if (alignment.padded[1] != 0) aligned.weight.back() = alignment.padded[1];
  const auto unit = part_unit(part, scheme, aligned.weight, group);
  if (alignment.block[0] != 0 && part == Part::kScale) {
    const std::size_t rank = shape.size();
    INGOT_CHECK(rank >= 2 && weight.size() >= 2);
    // Repeated as one: no padding comes between the sections, which may share a block.
    aligned.sections = 1;
    aligned.repeat = {group[0] / alignment.block[0], group[1] / alignment.block[1]};
    aligned.shape[rank - 2] = ceil_div(weight[weight.size() - 2], alignment.block[0]);
    aligned.shape[rank - 1] = ceil_div(weight[weight.size() - 1], alignment.block[1]);
  }
  if (alignment.padded[0] != 0 && unit[0] != 0) {
    // Rows are the dimension before the last, or the only one.
    const std::size_t rows = shape.size() >= 2 ? shape.size() - 2 : 0;
    const std::uint64_t before = weight[row_side] / sections;
    INGOT_CHECK(sections == 1 || before % unit[0] == 0);
    aligned.shape[rows] +=
        sections * (ceil_div(alignment.padded[0], unit[0]) - ceil_div(before, unit[0]));
  }
  if (alignment.padded[1] != 0 && unit[1] != 0) {
    const std::uint64_t before = weight.back();
    const std::uint64_t stored = shape.back() * unit[1];
    // A stored element may hold several codes.
    const bool is_packed = part == Part::kWeight && stored != 0 && stored < before;
    const std::uint64_t per_element = is_packed ? before / stored : unit[1];
    aligned.shape.back() = ceil_div(alignment.padded[1], per_element);
  }
  return aligned;
}

PartAligner::PartAligner(Part part, formats::SchemeId scheme, DType dtype, const Shape& shape,
                         const AlignedPart& aligned)
    : element_bytes_(formats::dtype_bits(dtype) / 8),
      repeat_(aligned.repeat),
      filler_(filler_of(part, scheme, dtype)) {
  INGOT_CHECK(element_bytes_ > 0 && !shape.empty());
  const bool is_list = shape.size() == 1;
  row_bytes_in_ = element_bytes_ * (is_list ? 1 : shape.back());
  row_bytes_out_ = element_bytes_ * (is_list ? 1 : aligned.shape.back());
  section_rows_in_ = shape[is_list ? 0 : shape.size() - 2] / aligned.sections;
  section_rows_out_ = aligned.shape[is_list ? 0 : shape.size() - 2] / aligned.sections;
  row_in_.reserve(row_bytes_in_);
  while (padding_row_.size() < row_bytes_out_)
    padding_row_.insert(padding_row_.end(), filler_.begin(), filler_.end());
}

void PartAligner::push(std::span<const std::byte> bytes, const Sink& sink) {
  while (!bytes.empty()) {
    const std::size_t n = std::min<std::size_t>(bytes.size(), row_bytes_in_ - row_in_.size());
    row_in_.insert(row_in_.end(), bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(n));
    bytes = bytes.subspan(n);
    if (row_in_.size() == row_bytes_in_) finish_row(sink);
  }
}

void PartAligner::finish_row(const Sink& sink) {
  row_out_ = padding_row_;
  if (repeat_[1] == 1) {
    std::memcpy(row_out_.data(), row_in_.data(), row_bytes_in_);
  } else {
    std::uint64_t at = 0;
    for (std::uint64_t from = 0; from < row_bytes_in_; from += element_bytes_) {
      for (std::uint64_t r = 0; r < repeat_[1] && at < row_bytes_out_; ++r, at += element_bytes_)
        std::memcpy(row_out_.data() + at, row_in_.data() + from, element_bytes_);
    }
  }
  row_in_.clear();
  const std::uint64_t first = row_ * repeat_[0];
  const std::uint64_t copies = std::min(repeat_[0], section_rows_out_ - first);
  for (std::uint64_t r = 0; r < copies; ++r) sink(row_out_);
  if (++row_ < section_rows_in_) return;
  emit_padding(section_rows_out_ - (first + copies), sink);
  row_ = 0;
}

void PartAligner::emit_padding(std::uint64_t rows, const Sink& sink) {
  for (std::uint64_t row = 0; row < rows; ++row) sink(padding_row_);
}

}  // namespace ingot::shard
