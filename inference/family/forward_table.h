#pragma once

#include "formats/config/model_config.h"
#include "formats/family/family.h"
#include "inference/model/spec/layer_spec.h"

namespace ingot::inference {

/// The forward pass that a family's file says (Family::forward), with the numbers of a config.
/// Throws kInvalidArgument, naming the line, for kinds, parameters and words that are unknown;
/// kUnsupported for a value of config.json that the file rules out; and what the kinds refuse.
ModelSpec spec_of_file(const formats::Family& family, const formats::ModelConfig& config);

}  // namespace ingot::inference
