#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "formats/modules/module_census.h"

namespace ingot::formats {

/// How a dialect writes patterns.
enum class PatternSyntax : std::uint8_t {
  /// compressed-tensors: a name, or `re:` with an expression that matches from the start. Those of
  /// single MTP layers allow for a component that vLLM inserts behind the layer's number.
  kRegex,
  /// ModelOpt: names and globs. SGLang matches whole names against them; vLLM looks for names
  /// inside of names too, and knows fused modules by a name of their own, so that a glob over a
  /// leaf such as `gate_proj` would not find it.
  kGlob,
};

/// The name under which SGLang builds a module of the first MTP layer, of which it makes a model of
/// one layer: `model.decoder.mlp.down_proj` for `model.layers.61.mlp.down_proj`. Empty for other
/// modules. Read in SGLang 0.5.23, models/deepseek_nextn.py:119; glm4_moe_nextn.py,
/// mimo_v2_nextn.py and others have the same.
std::string draft_module_name(std::string_view module, std::uint64_t n_main_layers);

/// Few patterns, sorted, that match every module of class `cls` and no other: layers, parents
/// (`self_attn`) and leaves (`mlp.gate`) over all or some layers, and names of what is left. Chosen
/// greedily by what they cover. Layers from `n_main_layers` on are MTP layers (0: not known); those
/// of the first are matched under draft_module_name() too.
/// Throws kUnsupported when the syntax cannot tell the classes apart.
std::vector<std::string> module_patterns(std::span<const ClassedModule> modules, std::uint32_t cls,
                                         std::uint64_t n_main_layers, PatternSyntax syntax);

}  // namespace ingot::formats
