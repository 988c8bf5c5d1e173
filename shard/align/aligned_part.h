#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "formats/storage/encoding.h"
#include "shard/align/align_blocks.h"

namespace ingot::shard {

/// A part whose tensor was retiled or padded.
struct AlignedPart {
  formats::Shape shape;                          ///< shape of the whole, as it is cut
  formats::Shape weight;                         ///< shape of the tensor, padded
  std::array<std::uint64_t, 2> repeat = {1, 1};  ///< rows, columns per original element
  std::uint32_t sections = 1;  ///< sections of the rows; each is padded at its own end
};

/// The aligned part for a part of `shape`. `weight` and `group` are those of the unaligned tensor;
/// scales of a retiled tensor are repeated, everything else grows with the weight.
AlignedPart aligned_part(formats::Part part, formats::SchemeId scheme, const formats::Shape& shape,
                         const formats::Shape& weight, std::array<std::uint64_t, 2> group,
                         const Alignment& alignment, std::uint32_t sections);

/// Rewrites the bytes of a part, as they come, into those of the aligned part. New elements are
/// zero codes, scales of one, zero biases.
class PartAligner {
 public:
  PartAligner(formats::Part part, formats::SchemeId scheme, formats::DType dtype,
              const formats::Shape& shape, const AlignedPart& aligned);

  using Sink = std::function<void(std::span<const std::byte>)>;
  void push(std::span<const std::byte> bytes, const Sink& sink);

 private:
  void finish_row(const Sink& sink);
  void emit_padding(std::uint64_t rows, const Sink& sink);

  std::uint64_t element_bytes_ = 1;
  std::uint64_t row_bytes_in_ = 0, row_bytes_out_ = 0;
  std::uint64_t section_rows_in_ = 0, section_rows_out_ = 0;
  std::array<std::uint64_t, 2> repeat_;
  std::vector<std::byte> filler_;  // the element that padding repeats
  std::vector<std::byte> row_in_, row_out_, padding_row_;
  std::uint64_t row_ = 0;  // within the section
};

}  // namespace ingot::shard
