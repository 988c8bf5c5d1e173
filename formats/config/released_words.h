#pragma once

#include <string>
#include <vector>

#include "formats/json/json_fwd.h"

namespace ingot::formats {

/// A released key that a config has, and words that transformers saved with another meaning.
struct TwoSpellings {
  std::string key;    ///< dots lead into objects
  JsonValue value;    ///< value of that key
  std::string words;  ///< words with commas between them
  JsonValue meaning;  ///< meaning of the words, as that key would say it
};

/// Translates the words that transformers 5 saves into those of the family's releases, which
/// readers here know: layers of DeepSeek-V4, MiniMax-M3, Nemotron-H, Step, MiMo, Kimi Linear,
/// GLM-5.3 and Ling 3, and rope that differs among layers; and gives the keys of DBRX's inner
/// objects their usual names, next to those. `keys` are those of the text model. A key that does
/// not have the form that transformers saves stays as it is: its readers refuse it. So does one
/// that contradicts the released key, which is told in `contradictions`.
///
/// Returns true if anything changed. Source: the configurations that transformers 5.24 saves after
/// reading the released ones, and as its classes write them (tests/golden/saved_configs).
bool use_released_words(Json& keys, std::vector<TwoSpellings>* contradictions = nullptr);

}  // namespace ingot::formats
