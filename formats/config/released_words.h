#pragma once

#include "formats/json/json_fwd.h"

namespace ingot::formats {

/// Translates the words that transformers 5 saves into those of the family's releases, which
/// readers here know: layers of DeepSeek-V4, MiniMax-M3, Nemotron-H and Step, and rope that differs
/// among layers; and gives the keys of DBRX's inner objects their usual names, next to those.
/// `keys` are those of the text model. A key that does not have the form that transformers saves,
/// or that is there in both forms, stays as it is: its readers refuse it.
///
/// Returns true if anything changed. Source: the configurations that transformers 5.19 saves after
/// reading the released ones (tests/golden/saved_configs).
bool use_released_words(Json& keys);

}  // namespace ingot::formats
