#pragma once

#include "inference/tokenizer/component.h"
#include "inference/tokenizer/split_pattern.h"

namespace ingot::inference {

/// The `pattern` of a Split or Replace: {"Regex": text} or {"String": text}.
SplitPattern pattern_field(const Component& component);

}  // namespace ingot::inference
