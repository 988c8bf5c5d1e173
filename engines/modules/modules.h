#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "engines/row/engine.h"
#include "formats/base/pattern.h"
#include "formats/checkpoint/checkpoint.h"
#include "formats/dialect/config_groups.h"
#include "formats/dialect/dialect.h"
#include "formats/dialect/input_major.h"

// The part of a checkpoint that engines see while they build a model: its linear layers, and what
// the JSON says of them. No values are read.

namespace ingot::engines {

using formats::Checkpoint;
using formats::Json;
using formats::LogicalTensor;
using formats::Role;
using formats::SchemeFacts;
using formats::SchemeId;

/// A linear layer by the name that configs use: the weight's without `.weight`.
struct LinearModule {
  std::string name;
  const LogicalTensor* tensor = nullptr;
  bool is_quantized = false;
  SchemeId scheme{};  ///< held_scheme() of the tensor
  /// True if engines of the dialect build the module quantized when the config does not mention it.
  /// They build other modules (router, head, eh_proj) plain.
  bool is_quantizable = false;
  bool is_class_head = false;  ///< head of classes or rewards: formats::class_head_rule()
  /// True if vLLM builds the module with an empty name, which no list has (models/qwen2_rm.py:53).
  bool is_nameless = false;
  /// Name in engines, where that is another: in the class around a model that was saved without
  /// one, or of a tower that transformers has below `model.`; else empty.
  std::string built_name;
  /// The name under which vLLM builds it in a multi-token prediction layer, or empty.
  std::string mtp_name;
  /// The name under which SGLang builds the module in the first MTP layer (MtpNames::draft), or
  /// empty.
  std::string draft_name;
};

/// Returns the scheme of the codes in the files: INT8 by row or block for GPTQ's codes of 8 bits
/// (whose encoding shows their values), else the encoding's scheme.
SchemeId held_scheme(const Checkpoint& checkpoint, const LogicalTensor& tensor);

struct EngineInput {
  /// The checkpoint must outlive this.
  explicit EngineInput(const Checkpoint& checkpoint);

  /// `quantization_config` of config.json, or null when there is none or it is no object.
  const Json* quantization;
  /// True if it is called `compression_config`.
  bool has_older_key = false;
  std::vector<std::string> group_faults;  ///< parts that `groups` could not read
  /// The groups of compressed-tensors, where there is a quantization_config.
  std::optional<formats::ConfigGroups> groups;
  /// Form of GPTQ's, AWQ's or AutoRound's packed integers, where the config says it.
  std::optional<formats::InputMajorLayout> packed;
  /// True if it is AWQ, also AutoRound's, and the config says that codes have no zero points.
  bool says_no_zero_points = false;
  /// Activations of quantized weights; nullopt where the lists of the config cannot be read.
  std::optional<formats::SourceActivations> activations;
  /// Every quantized weight, every one that the family's release quantizes, and the other linear
  /// layers: router, head, eh_proj and weights_proj; outside the grammar of a family what looks
  /// like one (two dimensions, `X.weight`, neither norm nor embedding).
  std::vector<LinearModule> modules;
  /// The entries of the description by tensor. JSON objects are lists in the order of the file
  /// here, and this one may have a line per tensor: each search in it would read them all.
  std::unordered_map<std::string_view, const Json*> described;
};

inline const SchemeFacts& facts_of(const LogicalTensor& tensor) {
  return formats::scheme_facts(tensor.encoding.scheme);
}
inline bool has_e4m3_codes(const SchemeFacts& scheme) {
  return scheme.code == formats::CodeKind::kE4m3;
}
inline bool has_int8_codes(const SchemeFacts& scheme) {
  return scheme.code == formats::CodeKind::kInt8;
}
inline bool has_int4_codes(const SchemeFacts& scheme) {
  return scheme.code == formats::CodeKind::kInt4;
}

// The modules that an engine builds of linear layers, and how it looks them up in a config's lists.
// vLLM and SGLang ask for a module once, under a name of their own; what they hear goes for every
// layer in it. Read in vLLM 0.32 and SGLang 0.5.23, and compared with what both build
// (scripts/engines/beliefs.py).

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

// How engines look modules up in the lists of a config: by name, by component or by pattern, with
// one policy an engine for modules that are made of several.

/// Answer whether a list has a module; kTorn where it has some of its members, which engines
/// refuse.
enum class Listed : std::uint8_t { kNo, kYes, kTorn };

/// Answers by a test of names: all members are in the list, some, or none.
Listed members_listed(const BuiltModule& module, const std::function<bool(std::string_view)>& has);

/// DeepSeek's lists as vLLM reads them: by whole names (utils/quant_utils.py:617).
Listed listed_in_vllm(const BuiltModule& module, std::span<const std::string> entries);
/// DeepSeek's lists as SGLang reads them: by whole components of names (quantization/utils.py:48,
/// 71).
Listed listed_in_sglang(const BuiltModule& module, std::span<const std::string> entries);

/// ModelOpt's list of modules that are left out.
class ExcludedModules {
 public:
  /// Expressions that do not compile match nothing. vLLM's models that rename entries (all but
  /// DeepSeek's) read `X*` as `X` and as `X.*`: modelopt.py:266.
  ExcludedModules(std::vector<std::string> entries, Engine engine, bool renames);
  [[nodiscard]] Listed find(const BuiltModule& module) const;

 private:
  [[nodiscard]] bool in_vllm(const BuiltModule& module) const;
  [[nodiscard]] bool in_sglang(const BuiltModule& module) const;

  std::vector<std::string> entries_;
  std::vector<Pattern> patterns_;
  Engine engine_;
};

/// Every name by which an entry of a list may mean a linear layer, as the most generous engine
/// reads it: aliases of a nested text model, names in MTP layers and drafts, and of joined modules.
class ListableNames {
 public:
  ListableNames(const Checkpoint& checkpoint, std::span<const LinearModule> modules);
  /// True if an entry names a module, one above it, or a part of its name. Also true for
  /// an expression with a fault in its syntax.
  [[nodiscard]] bool has_any(const std::string& entry) const;

 private:
  std::set<std::string> names_;
};

/// The key of the list that all engines but transformers read; vLLM reads only a list that is not
/// empty.
const char* exemption_key(const Json& block, Engine engine);

// SGLang's fusion of shared experts: it loads them as further routed ones, into the parameters that
// the scheme of the routed ones made. Parts of another scheme are dropped, or cast into these.

/// The layers of a model in which SGLang 0.5.23 fuses shared experts on a CUDA card, without expert
/// parallelism and with the usual options.
struct FusedLayers {
  bool in_model = false;
  bool in_draft = false;  ///< MTP layers, which are a draft model of a class of its own
};

/// Layers by class and numbers only: the most that any quantization config leaves.
FusedLayers fusible_layers(const formats::ModelConfig& config);
/// Layers by these and the quantization config.
FusedLayers fused_layers(const Checkpoint& checkpoint, const EngineInput& input);

}  // namespace ingot::engines
