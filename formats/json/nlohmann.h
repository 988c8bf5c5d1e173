#pragma once

// The JSON library, with its literals declared and not defined. `operator ""_json` is an inline
// function that is no template, so every file that sees its body compiles the whole parser for a
// kind of JSON that we do not use: 0.4 s of each compilation, since a precompiled header keeps no
// instantiations. As macros with the names of the literals, both bodies become those of templates,
// and these are never instantiated. A version that spells a literal without the space between `""`
// and the name is read as it is.
#define _json(text, size) \
  _json(text, size);      \
  template <typename>     \
  nlohmann::json unused_json(text, size)
#define _json_pointer(text, size) \
  _json_pointer(text, size);      \
  template <typename>             \
  nlohmann::json::json_pointer unused_json_pointer(text, size)
#include <nlohmann/json.hpp>
#undef _json
#undef _json_pointer
