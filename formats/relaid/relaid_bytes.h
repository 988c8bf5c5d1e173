#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "formats/relaid/input_major_parts.h"
#include "formats/storage/stored_bytes.h"

namespace ingot::formats {

/// The origin of a stored tensor of the view; kBytes: codes of 8 bits, less 128.
enum class RelaidAs : std::uint8_t { kAsStored, kCodes, kBytes, kScales, kZeros, kDimensions };
struct RelaidView {
  RelaidAs made = RelaidAs::kAsStored;
  std::uint32_t source = 0;  ///< index into the sources; not for kAsStored
  StoredTensor original;     ///< stored tensor, for kAsStored
};

/// A tensor of the view, in the place of a stored one of the same module.
StoredTensor seen_as(const StoredTensor& stored, std::string_view suffix, DType dtype, Shape shape);

/// The bytes behind such views, one for each stored tensor that is seen. `has_order`: some group
/// order is among them. Reading throws as relaid_codes.h has it.
std::unique_ptr<StoredBytes> relaid_bytes(bool has_order, std::unique_ptr<StoredBytes> bytes,
                                          std::vector<InputMajorWeight> sources,
                                          std::vector<RelaidView> views);

}  // namespace ingot::formats
