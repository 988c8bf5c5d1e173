#pragma once

#include <array>
#include <vector>

#include "formats/dialect/dialect.h"
#include "formats/modules/module_patterns.h"

namespace ingot::formats {

/// Weights of an output that are held alike.
struct QuantizationGroup {
  SchemeId scheme{};
  Activations activations{};
  /// The block of schemes whose blocks a checkpoint chooses, else {0, 0}.
  std::array<std::uint64_t, 2> block = {0, 0};
  friend auto operator<=>(const QuantizationGroup&, const QuantizationGroup&) = default;
};

/// The group of a quantized tensor.
QuantizationGroup group_of(const WrittenTensor& tensor, const ModelConfig& source);

/// The modules of an output by what holds their weights.
struct WrittenGroups {
  std::vector<QuantizationGroup> groups;  ///< sorted; groups[i] is class i + 1
  /// Everything quantized, and as class 0 the plain weights of two dimensions: linear layers, the
  /// embedding and the head. Norms are none of these.
  std::vector<ClassedModule> modules;
};
WrittenGroups written_groups(const WrittenModel& model);

}  // namespace ingot::formats
