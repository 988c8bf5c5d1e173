#pragma once

#include <cstdint>
#include <optional>

#include "formats/container/dtype.h"
#include "formats/places/nest.h"
#include "formats/records/slicing_record.h"
#include "shard/cut/part_cut.h"

namespace ingot::shard {

/// A stored tensor of one file as part of a whole: its record, and facts that follow from both.
struct PlacedSlice {
  formats::DType dtype{};
  /// A tensor without a record is all of `whole`. `original` is empty where nothing was changed.
  formats::SliceRecord record;
  PartCut cut;              ///< cut of the whole along the axis
  std::uint32_t slice = 0;  ///< number among the slices of the cut
  /// The tensor as it was before it was padded or retiled, as one piece of the whole; nullopt where
  /// it was neither.
  std::optional<formats::Nest> original;

  /// The shape of the tensor that the slices give when they are joined.
  [[nodiscard]] const formats::Shape& shape() const {
    return record.original.empty() ? record.whole : record.original;
  }
  /// True if the other can be a slice of the same whole.
  [[nodiscard]] bool is_cut_like(const PlacedSlice& other) const;
};

/// Finds the place of a stored tensor from its record (as parse_slice_record gives it); null: it is
/// a whole of its own. Throws kMismatch when the record contradicts the tensor that is here, kLimit
/// for a whole whose size does not fit 64 bits.
PlacedSlice place_slice(formats::DType dtype, const formats::Shape& stored,
                        const formats::SliceRecord* record);

}  // namespace ingot::shard
