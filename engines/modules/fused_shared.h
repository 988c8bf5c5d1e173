#pragma once

#include "engines/modules/engine_input.h"

// SGLang's fusion of shared experts: it loads them as further routed ones, into the parameters that
// the scheme of the routed ones made. Parts of another scheme are dropped, or cast into these.

namespace ingot::engines {

/// Whether SGLang 0.5.23 does so with this model on a CUDA card, by class, numbers and quantization
/// config: without expert parallelism, and with the usual options.
bool fuses_shared_experts(const Checkpoint& checkpoint, const EngineInput& input);

}  // namespace ingot::engines
