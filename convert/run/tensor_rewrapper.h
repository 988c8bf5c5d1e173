#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "convert/run/item_runner.h"

namespace ingot::convert {

/// Moves one quantized tensor to another dialect without decoding it: codes byte for byte, scales
/// byte for byte where the dialects agree on their dtype and widened exactly where not, a global
/// scale as its reciprocal where one multiplies and the other divides.
class TensorRewrapper {
 public:
  TensorRewrapper(ItemRunner& runner, std::uint32_t item);
  ItemRecord run();

 private:
  /// Hashes of what was written, by slice.
  std::vector<Hash128> write(std::size_t p);
  std::vector<Hash128> write_codes(std::size_t p);
  std::vector<Hash128> write_bytes(std::size_t p, std::span<const std::byte> bytes);
  std::vector<Hash128> write_scales(std::size_t p);
  float target_global();

  ItemRunner& runner_;
  const std::uint32_t item_;
  const PlannedTensor& planned_;
  const formats::LogicalTensor& tensor_;
  const formats::ScaleReader scales_;
  std::vector<std::int64_t> row_sums_;
  Hash128 codes_hash_;  // of the whole
  std::optional<formats::RecordedGlobal> original_global_;
  bool inexact_global_ = false;
};

/// The global scales that the source's own maker recorded, by tensor, if the plan turns some
/// around.
std::map<std::string, formats::GlobalScale> original_globals(const Plan& plan,
                                                             const formats::Checkpoint& source);

}  // namespace ingot::convert
