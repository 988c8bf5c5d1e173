#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "formats/checkpoint/checkpoint.h"

namespace ingot::formats {

/// Why a promised tensor is missed; a rule tells of each.
enum class Gap : std::uint8_t { kMtpLayer, kMtpTensor, kIndexer, kCorrectionBias, kExpert, kOther };

/// The tensors that config.json promises and that are not here, found in one pass for all rules:
/// a model may promise 100,000. A rank is asked for those that its record gives it; a tensor that
/// could not be understood, or may be in a file that could not be read, is not missing.
class MissingTensors {
 public:
  explicit MissingTensors(const Checkpoint& checkpoint);

  /// Names in the order of the family's rules.
  [[nodiscard]] std::span<const std::string> of(Gap gap) const;

  /// uneven_experts(): experts of these layers are not missed.
  [[nodiscard]] const std::map<std::uint32_t, std::uint64_t>& uneven() const { return uneven_; }

 private:
  std::map<Gap, std::vector<std::string>> names_;
  std::map<std::uint32_t, std::uint64_t> uneven_;
};

}  // namespace ingot::formats
