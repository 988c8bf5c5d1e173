#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "formats/dialect/engines.h"

// What released engines refuse of what the dialects can say: a plan refuses it too, `check` reports
// it, and docs/formats.md prints it.

namespace ingot::formats {

/// Which weights an engine's limit is about.
enum class EngineScope : std::uint8_t {
  kAny,
  kExperts,            ///< of the routed experts, which engines load as one module
  kLinears,            ///< of all other linear layers
  kOrdered,            ///< whose columns have an order of groups
  kAsymmetricExperts,  ///< of the routed experts that have zero points
  kJoinedLatents,      ///< q_a_proj and kv_a_proj_with_mqa, which engines load as one module
  kCutBlocks,          ///< in front of others in a module, with rows that end inside a block
  kForeignExperts,     ///< routed experts, but for stacks that are plain or in the family's dialect
  kRotated,            ///< q_proj and k_proj, whose rows a loader may turn for its rotary embedding
  kExpertsButK3,       ///< of the routed experts, but of family kimi_k3, whose loader renames them
};
std::string_view engine_scope_name(EngineScope scope);
/// Whether the scope is about what some weights of a scheme have beside it.
constexpr bool is_special(EngineScope scope) {
  return scope >= EngineScope::kOrdered;
}

/// A weight that an engine does not load as a dialect says it.
struct EngineLimit {
  Engine engine{};
  std::string_view dialect;                ///< empty: any
  std::optional<SchemeId> scheme;          ///< nothing: any
  std::optional<Activations> activations;  ///< nothing: of any kind
  EngineScope scope{};
  std::string_view reason;   ///< what its code says
  std::string_view instead;  ///< what it loads
  /// With which option the engine loads it all the same; empty: with none.
  std::string_view option;
  /// The family whose loader it is; empty: that of every family.
  std::string_view family = {};
  /// The dialect is that of another engine: who does not ask for this one is not told.
  bool is_foreign = false;
  /// Whether it is about a form that the engine refuses of every model, as opposed to the widths or
  /// the loader of some: a plan in a form that all engines refuse is refused.
  [[nodiscard]] bool is_of_form() const {
    return family.empty() && scope != EngineScope::kCutBlocks;
  }
};
std::span<const EngineLimit> engine_limits();

/// A weight of a checkpoint, as far as engines tell it from others.
struct EngineWeight {
  std::string_view name;
  const TensorRule* rule = nullptr;  ///< null outside the grammar: the name tells experts then
  SchemeId scheme{};
  Activations activations{};
  bool has_group_order = false, has_zero_points = false;
  std::string_view family = {};  ///< Family::name
  bool is_stacked = false;       ///< of experts: one tensor has a matrix of each
  std::uint64_t rows = 0;        ///< outputs of a matrix
  std::uint64_t block_rows = 0;  ///< that share a scale, of schemes in blocks; 0: there are none
};
/// Whether it is one of the routed experts.
bool is_expert(const EngineWeight& weight);
/// The limits that a weight of this dialect meets.
std::vector<const EngineLimit*> limits_of(const Dialect& dialect, const EngineWeight& weight);
/// The first of one engine that is without a remedying option, else the first with one; null: none.
const EngineLimit* limit_of(Engine engine, const Dialect& dialect, const EngineWeight& weight);

/// What is known of an engine and the weights of one kind: a form that some dialect writes, or
/// those of its weights that are refused.
struct EngineSupport {
  Engine engine{};
  std::string_view dialect;                 ///< empty: any
  std::optional<SchemeId> scheme;           ///< nothing: any
  std::optional<Activations> activations;   ///< nothing: of any kind, and of plain schemes
  Evidence evidence = Evidence::kNotTried;  ///< how it is known that the engine reads them
  /// By which it refuses them, or wants an option; null: by none.
  const EngineLimit* limit = nullptr;
  std::string_view source = {};  ///< EngineLoad::source
};
/// Per engine: each form, followed by the limits of some of its weights unless the engine refuses
/// all; then the limits of widths and families. A form without a row is kNotTried.
std::vector<EngineSupport> engine_support();
/// "generated text", "refused", "with OPTION".
std::string engine_support_text(const EngineSupport& support);

/// Of the rows of such a weight, those in front of another's in the module that engines make of
/// both; 0 where it is the last of its module, or alone in it.
std::uint64_t rows_before_others(const TensorRule& rule, std::uint64_t rows);

/// Whether a part of one number has no dimensions where its dialect says [1]: SGLang joins those of
/// q_a_proj and kv_a_proj, and asserts on two of shape [1]; vLLM takes either.
bool is_joined_number(PartShape shape, const TensorRule* rule);

/// What engines make of the weights of one checkpoint.
class EngineLimitsMet {
 public:
  explicit EngineLimitsMet(const Dialect& dialect) : dialect_(&dialect) {}
  void add(const EngineWeight& weight);

  struct Met {
    const EngineLimit* limit = nullptr;
    std::string first;  ///< name of a weight
    SchemeId scheme{};  ///< of that weight
    std::size_t count = 0;
  };
  [[nodiscard]] std::span<const Met> met() const { return met_; }
  /// Each engine that is judged refuses the form of some weight, so that none of them loads it.
  [[nodiscard]] bool is_refused_by_all() const;

 private:
  const Dialect* dialect_;
  std::vector<Met> met_;  // in the order in which they were met
};

}  // namespace ingot::formats
