#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "formats/checkpoint/checkpoint.h"

namespace ingot::library {

/// Tensors as the files of a checkpoint hold them. Those of AWQ and GPTQ are others than the ones
/// that the checkpoint shows: words are turned, shapes are added, zero points may be left out.
class AsStored {
 public:
  /// Reads the headers of AWQ and GPTQ files again, and no others. Keeps a reference.
  explicit AsStored(const formats::Checkpoint& checkpoint);

  [[nodiscard]] std::span<const formats::StoredTensor> tensors() const;
  /// Bytes of a logical tensor, all parts.
  [[nodiscard]] std::uint64_t n_bytes(const formats::LogicalTensor& tensor) const;

 private:
  const formats::Checkpoint& checkpoint_;
  std::vector<formats::StoredTensor> original_;      // empty: the checkpoint's own list is right
  std::map<std::string, std::uint64_t> of_weights_;  // bytes of each changed weight
};

}  // namespace ingot::library
