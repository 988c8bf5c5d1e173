#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engines/modules/engine_input.h"
#include "engines/row/engine.h"

// The modules that an engine builds of linear layers, and how it looks them up in a config's lists.
// vLLM and SGLang ask for a module once, under a name of their own; what they hear goes for every
// layer in it. Read in vLLM 0.32 and SGLang 0.5.23, and compared with what both build
// (scripts/engines/beliefs.py).

namespace ingot::engines {

/// vLLM, or vLLM-Ascend, whose loader is vLLM's.
bool is_vllm(Engine engine);

/// The name of the module around another, with the dot behind it; empty at the top.
std::string_view parent_of(std::string_view name);

/// The part of a module that a weight becomes together with others in an engine: `gate_up_proj`,
/// `experts.w13`; empty for one that stays by itself.
std::string_view joined_name(const LogicalTensor& tensor, Engine engine);

/// A module of an engine, made of one linear layer or of several.
struct BuiltModule {
  enum class Kind : std::uint8_t { kLinear, kExperts, kHead };
  Kind kind = Kind::kLinear;  ///< kHead: of a vocabulary, which no target by class takes in
  std::string name;           ///< name in the engine: `model.layers.0.self_attn.qkv_proj`
  /// Names of the layers that it is made of, the first first; of experts those of the first expert,
  /// which speak for all (vLLM's compressed_tensors_moe.py:57, SGLang's get_moe_scheme).
  std::vector<std::string> members;
  /// The engine looks for the members in lists, not only for the name.
  bool has_known_members = false;
};

/// Every module that an engine builds of these layers.
class BuiltModules {
 public:
  BuiltModules(const Checkpoint& checkpoint, std::span<const LinearModule> layers, Engine engine,
               bool has_draft_names);

  [[nodiscard]] std::span<const BuiltModule> modules() const { return modules_; }
  /// The number of the module that has the layer with this number.
  [[nodiscard]] std::size_t module_of(std::size_t layer) const { return module_of_[layer]; }
  /// True if the family joins q_a and kv_a, as DeepSeek's does.
  [[nodiscard]] bool is_latent() const { return is_latent_; }

 private:
  bool is_latent_ = false;
  std::vector<BuiltModule> modules_;
  std::vector<std::size_t> module_of_;
};

}  // namespace ingot::engines
