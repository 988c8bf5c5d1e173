#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace ingot::formats {

/// A module that engines build as a linear layer, under the name that quantization configs use (the
/// weight's without `.weight`), and the class that a config must tell it to be in.
struct ClassedModule {
  std::string name;
  std::uint32_t cls = 0;
};

/// How a dialect writes patterns.
enum class PatternSyntax : std::uint8_t {
  /// compressed-tensors: a name, or `re:` with an expression that matches from the start. Those of
  /// single MTP layers allow for a component that an engine inserts behind the layer's number.
  kRegex,
  /// ModelOpt: names and globs. SGLang matches whole names against them; vLLM looks for names
  /// inside of names too, and knows fused modules by a name of their own, so that a glob over a
  /// leaf such as `gate_proj` would not find it.
  kGlob,
};

/// Few patterns, sorted, that match every module of class `cls` and no other: layers, parents
/// (`self_attn`) and leaves (`mlp.gate`) over all or some layers, and names of what is left. Chosen
/// greedily by what they cover. Layers from `n_main_layers` on are MTP layers (0: not known).
/// Throws kUnsupported when the syntax cannot tell the classes apart.
std::vector<std::string> module_patterns(std::span<const ClassedModule> modules, std::uint32_t cls,
                                         std::uint64_t n_main_layers, PatternSyntax syntax);

}  // namespace ingot::formats
