#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "formats/base/error.h"
#include "formats/checkpoint/checkpoint.h"

// Tensors that config.json and family promise and that are not here, and those that are here and
// that no row of the family has. All commands ask here.

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

/// Layers whose experts and router agree on another number than config.json has for all layers, and
/// that number: of a model whose experts were pruned in some of its layers.
std::map<std::uint32_t, std::uint64_t> uneven_experts(const Family& family,
                                                      const ModelConfig& config,
                                                      std::span<const StoredTensor> stored);

/// The fault of such a layer, and the remedy if it is an MTP layer.
std::string uneven_text(std::uint32_t layer, std::uint64_t n_experts, const ModelConfig& config);

/// Adds a fault for each unknown tensor that a conversion to another scheme would have to decide
/// about and does not, one for each kind of name: weights with scales, and matrices of 1% of the
/// bytes or more.
void refuse_unknown_weights(const Checkpoint& checkpoint,
                            const std::function<bool(const LogicalTensor&)>& is_decided,
                            ErrorList& faults);

/// The number of logical tensors with the role `unknown`.
std::uint64_t count_unknown(const TensorSource& source);

}  // namespace ingot::formats
