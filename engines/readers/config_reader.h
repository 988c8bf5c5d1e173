#pragma once

#include <optional>
#include <string>
#include <vector>

#include "engines/modules/module_lists.h"
#include "engines/row/engine.h"
#include "formats/dialect/modelopt.h"

// An engine's reading of a checkpoint's configs, module by module.

namespace ingot::engines {

/// A scheme (or `plain`, `unknown scheme`, or `refused` where the engine raises an error), and the
/// entry that says so.
struct Belief {
  std::string scheme, because;
};

/// The scheme in which a module is stored, in the words of Belief::scheme.
std::string stored_scheme(const LinearModule& module);

/// True if it is known here how the engine reads the configs of a dialect.
bool reads_config(const Dialect& dialect, Engine engine);

/// How an engine reads a checkpoint's configs, of a dialect for which reads_config() holds.
class ConfigReader {
 public:
  /// Keeps all three. Without draft names the engine is taken to call every layer as it is stored.
  ConfigReader(const Checkpoint& checkpoint, const EngineInput& facts, const EngineRow& engine,
               bool has_draft_names = true);

  /// Why the engine raises an error for the whole config, or empty.
  [[nodiscard]] const std::string& refusal() const { return refusal_; }
  /// Returns the belief of a module, by its number in the facts.
  [[nodiscard]] Belief belief(std::size_t layer) const;

 private:
  /// The parts of ModelOpt's configs that vLLM and SGLang read.
  struct ModeloptFacts {
    std::string algo;
    std::optional<ExcludedModules> excluded;
    const Json* layers = nullptr;  ///< `quantized_layers`, where modules are listed
  };

  /// The parts of FP8's and of compressed-tensors' configs that transformers reads.
  struct TransformersFacts {
    /// A name, an expression, or a class.
    struct Target {
      std::string text;
      std::optional<Pattern> pattern;
      const formats::ConfigGroup* group;
    };
    std::vector<Target> targets;  ///< targets in the order in which they are tried
    const formats::ConfigGroup* of_experts = nullptr;
    const char* list = nullptr;  ///< key of FP8: modules that are left out, if there
    bool has_blocks = true;
  };

  /// The reading of a module of packed integers.
  struct PackedModule {
    Belief belief;                 ///< belief, without a scheme where it is quantized
    formats::InputMajorForm form;  ///< form in which it is quantized
  };
  /// The parts of GPTQ's, AWQ's and AutoRound's configs that vLLM and SGLang read.
  struct PackedFacts {
    bool is_auto_round = false, is_awq = false;
    bool has_head = false;              ///< head is quantized
    const char* list = nullptr;         ///< key of `names`
    std::vector<std::string> names;     ///< parts of names: AWQ's of plain modules, else of others
    std::vector<std::string> blocks;    ///< AutoRound's modules below which all is quantized
    std::vector<PackedModule> modules;  ///< readings, by the number of the built module
  };

  [[nodiscard]] Belief own_belief(std::size_t layer) const;
  [[nodiscard]] bool is_sglang() const { return engine_ == Engine::kSglang; }
  void read_modelopt();
  void read_body(const Json& source, bool is_file);
  void read_fp8();
  void read_fp8_in_transformers();
  void read_groups_in_transformers();
  void refuse_other_modules();

  [[nodiscard]] Belief by_groups(const BuiltModule& module) const;
  [[nodiscard]] Belief by_group(const BuiltModule& module, std::string_view name) const;
  /// The format that a group names and its scheme is not read from, or empty.
  [[nodiscard]] std::string other_format(const formats::ConfigGroup& group,
                                         const BuiltModule& module) const;
  /// Why SGLang fails at the size of blocks of a module of the group, or at its kv_b_proj; or
  /// empty.
  [[nodiscard]] std::string_view block_fault(const formats::ConfigGroup& group,
                                             const BuiltModule& module) const;
  [[nodiscard]] Listed ignored(const BuiltModule& module, std::string_view name) const;
  [[nodiscard]] const formats::ConfigGroup* target(const BuiltModule& module,
                                                   std::string_view name) const;
  [[nodiscard]] Belief by_modelopt(const BuiltModule& module, bool is_draft) const;
  [[nodiscard]] Belief by_layers(const BuiltModule& module) const;
  [[nodiscard]] Belief by_algo(const BuiltModule& module, const std::string& algo) const;
  [[nodiscard]] Belief by_transformers(std::size_t number) const;
  [[nodiscard]] bool ignores_in_transformers(std::string_view module) const;
  [[nodiscard]] const TransformersFacts::Target* named_in_transformers(
      std::string_view module) const;
  void read_packed();
  [[nodiscard]] PackedModule packed_module(const BuiltModule& module,
                                           std::span<const LinearModule* const> parts) const;
  [[nodiscard]] PackedModule auto_round_module(const BuiltModule& module) const;
  [[nodiscard]] Listed listed_in_packed(const BuiltModule& module,
                                        std::span<const LinearModule* const> parts) const;
  [[nodiscard]] Belief by_packed(std::size_t number) const;
  [[nodiscard]] Belief by_block(const LinearModule& module) const;
  [[nodiscard]] Belief by_description(const LinearModule& module) const;
  [[nodiscard]] Listed exempted(const BuiltModule& module) const;
  [[nodiscard]] SchemeId scheme_of_method() const;
  [[nodiscard]] bool has_fp4_experts() const;
  [[nodiscard]] SchemeId scheme_of_fp4_experts(const LinearModule& module) const;

  const Checkpoint& checkpoint_;
  const EngineInput& facts_;
  Engine engine_;
  bool has_draft_names_;
  BuiltModules built_;
  std::vector<std::size_t> shared_downs_;  ///< numbers of the modules with that role
  std::string refusal_;
  std::string silence_;  ///< reason why it takes every layer for plain, or empty
  bool fp4_experts_ = false;
  const char* list_ = nullptr;       ///< key of DeepSeek's list
  SchemeId method_scheme_{};         ///< scheme by quant_method and block
  std::string because_;              ///< reason of a scheme that quant_method gives
  std::vector<std::string> exempt_;  ///< DeepSeek's list; sorted for other engines
  std::vector<Listed> listed_;       ///< answers of that list, by the number of the built module
  std::vector<Belief> grouped_;      ///< beliefs by config_groups, by the same number
  std::optional<ModeloptFacts> modelopt_;  ///< facts of vLLM and SGLang
  std::optional<TransformersFacts> transformers_;
  std::optional<PackedFacts> packed_;
  std::optional<formats::ModeloptBlock> block_;  ///< block of other engines
};

}  // namespace ingot::engines
