#pragma once

#include "formats/json/json_fwd.h"

namespace ingot::formats {

/// Says what transformers 5 saves under words of its own in the words of the family's releases,
/// which readers here know: layers of DeepSeek-V4, of MiniMax-M3, of Nemotron-H and of Step, and
/// rope that differs among them. `keys` are those of the text model. What is not of the form that
/// transformers saves, or is there in both, stays as it is: its readers refuse it.
///
/// Returns whether anything changed. Source: the configurations that transformers 5.19 saves after
/// reading the released ones (tests/golden/saved_configs).
bool use_released_words(Json& keys);

}  // namespace ingot::formats
