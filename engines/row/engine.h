#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "engines/row/scope.h"
#include "formats/dialect/dialect.h"

// An engine is a program that loads checkpoints. A row is one version of one engine: everything
// about it that expires is in its file in versions/.

namespace ingot::engines {

using formats::Activations;
using formats::Dialect;
using formats::SchemeId;

/// The programs. Code that reads configs as one of them does asks for the program, all else for the
/// row.
enum class Engine : std::uint8_t { kVllm, kSglang, kTrtllm, kVllmAscend, kTransformers, kDeepseek };

/// How it is known that an engine reads something, the best first.
enum class Evidence : std::uint8_t {
  kOnGpu,        ///< run on a GPU with its own kernels: right text or probabilities
  kGenerated,    ///< run on a CPU: loaded an output, and gave the right text
  kLoaded,       ///< load of every weight of an output
  kReplaced,     ///< load with replaced kernels; the real ones might refuse it or be wrong
  kRead,         ///< words of its source or documentation
  kNotOfFamily,  ///< run or source of other families, not tried with this one
  kNotTried,     ///< words of its makers on such checkpoints; not looked at here
};
std::string_view evidence_text(Evidence evidence);  ///< "generated text on a GPU"
/// True if a run or the source speaks for it, of this family.
constexpr bool is_known(Evidence evidence) {
  return evidence < Evidence::kNotOfFamily;
}

/// A scheme that an engine reads in a dialect.
struct EngineLoad {
  std::string_view dialect;  ///< empty for plain schemes, which all dialects write alike
  SchemeId scheme{};
  std::optional<Activations> activations;  ///< nullopt for plain schemes
  Evidence evidence{};
  std::string_view option = {};  ///< option that the engine needs to load them; empty: none
  /// Place that kRead is about: a file, with the line of a release or with function and commit.
  std::string_view source = {};
};

/// The effect of a limit on its weights.
enum class EngineEffect : std::uint8_t {
  kRefused,         ///< error while it loads or starts
  kGarbage,         ///< no error, and other numbers than the weights say
  kGarbageWithout,  ///< garbage, on some cards at least, where `option` is not given
  kRefusedOption,   ///< error where `option` is given
  kCoarser,         ///< rounding of the engine's own, within which its numbers are right
  kRefusedOnCards,  ///< error on the cards that the reason names
};

/// A weight that an engine does not load as a dialect says it, or loads and computes otherwise.
struct EngineLimit {
  std::string_view dialect;                ///< empty: any
  std::optional<SchemeId> scheme;          ///< nullopt: any
  std::optional<Activations> activations;  ///< nullopt: of any kind
  EngineScope scope{};
  std::string_view reason;   ///< reason in its code
  std::string_view instead;  ///< form that the engine loads
  /// Option with which the engine loads the weight all the same, and rightly; empty: none.
  /// kRefusedOption: option with which the engine does not load it.
  std::string_view option = {};
  /// The family whose loader has the limit; empty: the loader of every family.
  std::string_view family = {};
  /// True if the dialect is that of another engine: the limit is reported only to users who ask for
  /// this engine.
  bool is_foreign = false;
  EngineEffect effect = EngineEffect::kRefused;
  /// True if the engine does not load the weight with any option, or loads it and is always wrong.
  [[nodiscard]] bool is_refusal() const {
    return effect == EngineEffect::kGarbage || (effect == EngineEffect::kRefused && option.empty());
  }
  /// The option without which the engine does not load the weight, or not on every card, or
  /// wrongly; empty: no option is needed, or none helps.
  [[nodiscard]] std::string_view needed_option() const {
    return effect == EngineEffect::kRefused || effect == EngineEffect::kGarbageWithout
               ? option
               : std::string_view();
  }
  /// True if it is about a form that the engine refuses of every model, as opposed to the widths or
  /// the loader of some: a plan in a form that all engines refuse is refused.
  [[nodiscard]] bool is_of_form() const { return family.empty() && !is_of_models(scope); }
};
/// "refused", "with OPTION", "garbage without an error", "garbage without OPTION", "refused with
/// OPTION", "rounded", "refused on some cards".
std::string engine_effect_text(const EngineLimit& limit);

/// A set of schemes.
class SchemeSet {
 public:
  constexpr SchemeSet(std::initializer_list<SchemeId> schemes) {
    for (const SchemeId scheme : schemes) bits_ |= bit(scheme);
  }
  [[nodiscard]] constexpr bool contains(SchemeId scheme) const {
    return (bits_ & bit(scheme)) != 0;
  }

 private:
  static constexpr std::uint32_t bit(SchemeId scheme) {
    return std::uint32_t{1} << static_cast<std::uint32_t>(scheme);
  }
  std::uint32_t bits_ = 0;
};

/// Schemes of a family's weights that an engine was seen to take: each engine has a model class and
/// a loader for each family.
struct EngineFamily {
  std::string_view family;  ///< Family::name
  Evidence evidence{};
  SchemeSet schemes;
};

/// One version of one engine.
struct EngineRow {
  Engine engine{};
  std::string_view word;     ///< word of --for
  std::string_view version;  ///< version that was looked at; empty: any
  std::string_view name;     ///< name with the version, where there is one: "vLLM 0.32"
  /// True if the engine's refusals are known (`limits`): plans and `check` judge by them.
  bool is_judged = false;
  std::string_view command;       ///< command that serves a checkpoint: before the directory
  std::string_view ranks_option;  ///< option for the number of devices; empty: none is needed
  std::string_view code_option;   ///< option to run Python code of the checkpoint; empty: none
  /// Option with which the engine starts without a tokenizer, and takes and gives ids; empty: it
  /// needs a tokenizer.
  std::string_view ids_option;
  /// Classes without a head of tokens (formats::head_of) that the engine has; empty: not known.
  std::span<const std::string_view> pooling_classes = {};
  /// Option with which the engine takes any other model without a head, as a model of embeddings.
  std::string_view pooling_option = {};
  /// Rows of one scheme are in the order in which --for takes them.
  std::span<const EngineLoad> loads;
  std::span<const EngineLimit> limits;
  /// docs/engines.md says how families were tried; of those without a row nothing is known.
  std::span<const EngineFamily> families;
  /// Families of an engine that is written for some families only; empty: any.
  std::span<const std::string_view> written_for = {};

  [[nodiscard]] bool is_written_for(std::string_view family) const;
  /// The row of a stored weight, or null.
  [[nodiscard]] const EngineLoad* find_load(const Dialect& dialect, SchemeId scheme,
                                            Activations activations) const;
  /// The best that is known of a scheme of a family: kNotOfFamily where no row has it.
  [[nodiscard]] Evidence family_evidence(std::string_view family, SchemeId scheme) const;
};

}  // namespace ingot::engines
