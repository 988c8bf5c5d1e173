#pragma once

#include <cstdint>
#include <string>

#include "engines/verdicts.h"

namespace ingot::engines {

/// A text as a shell takes it for one word.
std::string shell_word(const std::string& text);

/// A checkpoint that is to be served.
struct Served {
  std::string directory;
  std::uint64_t n_bytes = 0;  ///< size of the weights
  bool brings_code = false;   ///< own_classes() has some
};

/// The command with which an engine serves a checkpoint, on as many devices of 80 GB as leave a
/// quarter of each for the cache: a power of two. Empty for an engine that has none.
std::string serve_command(const EngineVerdict& verdict, const Served& checkpoint);

}  // namespace ingot::engines
