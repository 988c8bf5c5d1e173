#pragma once

#include <string>
#include <vector>

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

}  // namespace ingot::engines
