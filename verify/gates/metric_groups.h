#pragma once

#include <string_view>

namespace ingot::verify {

/// How well a gate's group fits the group of a value: 0 not at all, 1 for a gate of every group, 2
/// for a group of schemes ("int8" of "int8-channel"), 3 for the very word.
int group_fit(std::string_view gate, std::string_view value);

/// Whether the word is a group of the metric's values, or of several: schemes and what they begin
/// with for weights.*, kinds of checkpoints (SideFacts::kind) for levels that run the model.
bool is_group(std::string_view metric, std::string_view group);

}  // namespace ingot::verify
