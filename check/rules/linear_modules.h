#pragma once

#include <string>
#include <vector>

#include "formats/checkpoint/checkpoint.h"

// The modules that a config of quantization speaks of, as loader rules see them.

namespace ingot::formats {

/// A linear layer by the name that configs use: the weight's without `.weight`.
struct LinearModule {
  std::string name;
  const LogicalTensor* tensor = nullptr;
  bool is_quantized = false;
  /// Engines of the dialect build it quantized when the config says nothing of it. Others (router,
  /// head, eh_proj) they build plain.
  bool is_quantizable = false;
  /// The name under which vLLM builds it in a multi-token prediction layer, or empty.
  std::string mtp_name;
};

/// Every quantized weight, every one that the family's release quantizes, and the other linear
/// layers: router, head, eh_proj and weights_proj; outside the grammar of a family what looks like
/// one (two dimensions, `X.weight`, neither norm nor embedding). Points into `checkpoint`.
std::vector<LinearModule> linear_modules(const Checkpoint& checkpoint);

}  // namespace ingot::formats
