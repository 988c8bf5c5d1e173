#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engines/verdicts.h"
#include "formats/checkpoint/checkpoint.h"

// Python code that a checkpoint brings: transformers, and engines that use it, run it where they
// are told to trust it.

namespace ingot::engines {

/// An entry of `auto_map`: the class that takes the place of one of transformers.
struct OwnClass {
  std::string where;  ///< JSON file that names the class
  std::string role;   ///< `AutoConfig`, `AutoTokenizer`, ...
  /// The file of the checkpoint that has it, relative: `modeling_deepseek.py`. Empty: the entry
  /// names another repository (`ORG/NAME--modeling_deepseek.DeepseekV3ForCausalLM`).
  std::string module;
};

/// Returns the classes of config.json, of the tokenizer's config and of the configs of processors,
/// in this order. A file that cannot be read has none.
std::vector<OwnClass> own_classes(const formats::Checkpoint& checkpoint);

/// A text as a shell takes it for one word.
std::string shell_word(const std::string& text);

/// A checkpoint that is to be served.
struct Served {
  std::string directory;
  std::uint64_t n_bytes = 0;  ///< size of the weights
  bool brings_code = false;   ///< the model has classes of its own (own_classes())
};

/// The command with which an engine serves a checkpoint, on as many devices of 80 GB as leave a
/// quarter of each for the cache: a power of two. Empty for an engine that has none.
std::string serve_command(const EngineVerdict& verdict, const Served& checkpoint);

}  // namespace ingot::engines
