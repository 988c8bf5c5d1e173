#pragma once

#include <cstdint>
#include <span>
#include <string>
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

/// A sorted list that takes in every module of class `cls` and no other, under the names of
/// mtp_names() too. Layers from `n_main_layers` on are MTP layers (0: not known).
///
/// Where all of X.self_attn is of the class in a layer, that is one entry. kRegex: an expression
/// for each kind of module (`mlp.gate`), in all layers or in those that it names, since engines
/// that nest a model give it another prefix; modules outside the layers by name. kGlob: an entry
/// for each layer, as in ModelOpt's releases, since vLLM finds a fused module by the names of its
/// members. Throws kUnsupported when the syntax cannot tell the classes apart.
std::vector<std::string> module_patterns(std::span<const ClassedModule> modules, std::uint32_t cls,
                                         std::uint64_t n_main_layers, PatternSyntax syntax);

}  // namespace ingot::formats
