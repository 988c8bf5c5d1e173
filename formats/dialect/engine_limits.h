#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "formats/dialect/engine_scopes.h"
#include "formats/dialect/engines.h"

// What released engines refuse of what the dialects can say, or compute wrongly: a plan refuses
// what all refuse, `check` reports it, and docs/formats.md prints it. A fact is a row, and a
// function of engine_scopes.h says which weights it is about.

namespace ingot::formats {

/// What an engine makes of the weights of a limit.
enum class EngineEffect : std::uint8_t {
  kRefused,        ///< an error while it loads or starts
  kGarbage,        ///< no error, and other numbers than the weights say
  kGarbageOption,  ///< the same where `option` is given, or was the default of another version
  kCoarser,        ///< it rounds them on by itself, and is right within that
};

/// A weight that an engine does not load as a dialect says it, or loads and computes otherwise.
struct EngineLimit {
  Engine engine{};
  std::string_view dialect;                ///< empty: any
  std::optional<SchemeId> scheme;          ///< nothing: any
  std::optional<Activations> activations;  ///< nothing: of any kind
  EngineScope scope{};
  std::string_view reason;   ///< what its code says
  std::string_view instead;  ///< what it loads
  /// kRefused: with which option the engine loads it all the same; empty: with none.
  /// kGarbageOption: with which option it is wrong.
  std::string_view option;
  /// The family whose loader it is; empty: that of every family.
  std::string_view family = {};
  /// The dialect is that of another engine: who does not ask for this one is not told.
  bool is_foreign = false;
  EngineEffect effect = EngineEffect::kRefused;
  /// Whether the engine does not load it, whatever the option, or loads it and is always wrong.
  [[nodiscard]] bool is_refusal() const {
    return effect == EngineEffect::kGarbage || (effect == EngineEffect::kRefused && option.empty());
  }
  /// With which option alone the engine loads it; empty: it needs none, or none helps.
  [[nodiscard]] std::string_view needed_option() const {
    return effect == EngineEffect::kRefused ? option : std::string_view();
  }
  /// Whether it is about a form that the engine refuses of every model, as opposed to the widths or
  /// the loader of some: a plan in a form that all engines refuse is refused.
  [[nodiscard]] bool is_of_form() const { return family.empty() && !is_of_widths(scope); }
};
std::span<const EngineLimit> engine_limits();

/// The limits that a weight of this dialect meets; of rows of one engine, family and scope the
/// first. Rows of BF16 are about every plain weight, since loaders cast these.
std::vector<const EngineLimit*> limits_of(const Dialect& dialect, const EngineWeight& weight);
/// The first refusal of one engine, else the first that needs an option; null: none.
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
/// "refused", "with OPTION", "garbage without an error", "garbage with OPTION", "rounded".
std::string engine_effect_text(const EngineLimit& limit);
/// The same, or without a limit "generated text".
std::string engine_support_text(const EngineSupport& support);

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
