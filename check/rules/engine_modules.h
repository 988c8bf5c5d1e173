#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "check/rules/rule_input.h"
#include "formats/base/pattern.h"
#include "formats/dialect/engines.h"

// What an engine builds of linear layers, and how it looks that up in a config's lists. vLLM and
// SGLang ask for a module once, under a name of their own; what they hear goes for every layer in
// it. Read in vLLM 0.32 and SGLang 0.5.23, and compared with what both build
// (scripts/engines/beliefs.py).

namespace ingot::check {

/// vLLM, or vLLM-Ascend, whose loader is vLLM's.
bool is_vllm(formats::Engine engine);

/// What becomes of a weight and others in an engine, by name: `gate_up_proj`, `experts.w13`; empty
/// for one that stays by itself.
std::string_view joined_name(const LogicalTensor& tensor, formats::Engine engine);

/// A module of an engine, made of one linear layer or of several.
struct BuiltModule {
  enum class Kind : std::uint8_t { kLinear, kExperts, kHead };
  Kind kind = Kind::kLinear;
  std::string name;  ///< as the engine calls it: `model.layers.0.self_attn.qkv_proj`
  /// Names of the layers that it is made of, the first first; of experts those of the first expert,
  /// which speak for all (vLLM's compressed_tensors_moe.py:57, SGLang's get_moe_scheme).
  std::vector<std::string> members;
  /// The engine looks for the members in lists, not for the name alone.
  bool has_known_members = false;
};

/// Every module that an engine builds of these layers.
class BuiltModules {
 public:
  BuiltModules(const Checkpoint& checkpoint, std::span<const LinearModule> layers,
               formats::Engine engine, bool has_draft_names);

  [[nodiscard]] std::span<const BuiltModule> modules() const { return modules_; }
  /// The number of the module that has the layer with this number.
  [[nodiscard]] std::size_t module_of(std::size_t layer) const { return module_of_[layer]; }
  /// Whether the family joins q_a and kv_a, as DeepSeek's does.
  [[nodiscard]] bool is_latent() const { return is_latent_; }

 private:
  bool is_latent_ = false;
  std::vector<BuiltModule> modules_;
  std::vector<std::size_t> module_of_;
};

/// Whether a list has a module; kTorn where it has some of its members, which engines refuse.
enum class Listed : std::uint8_t { kNo, kYes, kTorn };

/// By a test of names: all members are in the list, some, or none.
Listed members_listed(const BuiltModule& module, const std::function<bool(std::string_view)>& has);

/// DeepSeek's lists as vLLM reads them: by whole names (utils/quant_utils.py:617).
Listed listed_in_vllm(const BuiltModule& module, std::span<const std::string> entries);
/// The same in SGLang: by whole components of names (quantization/utils.py:48, 71).
Listed listed_in_sglang(const BuiltModule& module, std::span<const std::string> entries);

/// ModelOpt's list of modules that are left out.
class ExcludedModules {
 public:
  /// Expressions that do not compile match nothing. vLLM's models that rename entries (all but
  /// DeepSeek's) take a star at the end for a dot and a star, or nothing: modelopt.py:266.
  ExcludedModules(std::vector<std::string> entries, formats::Engine engine, bool renames);
  [[nodiscard]] Listed find(const BuiltModule& module) const;

 private:
  [[nodiscard]] bool in_vllm(const BuiltModule& module) const;
  [[nodiscard]] bool in_sglang(const BuiltModule& module) const;

  std::vector<std::string> entries_;
  std::vector<Pattern> patterns_;
  formats::Engine engine_;
};

}  // namespace ingot::check
