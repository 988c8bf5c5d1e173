#pragma once

#include "engines/modules/engine_input.h"

// SGLang's fusion of shared experts: it loads them as further routed ones, into the parameters that
// the scheme of the routed ones made. Parts of another scheme are dropped, or cast into these.

namespace ingot::engines {

/// The layers of a model in which SGLang 0.5.23 fuses shared experts on a CUDA card, without expert
/// parallelism and with the usual options.
struct FusedLayers {
  bool in_model = false;
  bool in_draft = false;  ///< MTP layers, which are a draft model of a class of its own
};

/// Layers by class and numbers only: the most that any quantization config leaves.
FusedLayers fusible_layers(const formats::ModelConfig& config);
/// Layers by these and the quantization config.
FusedLayers fused_layers(const Checkpoint& checkpoint, const EngineInput& input);

}  // namespace ingot::engines
