#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "formats/dialect/dialect.h"

// The engines that serve models, what each reads, and how that is known. What they refuse of it in
// particular is in engine_limits.h.

namespace ingot::formats {

enum class Engine : std::uint8_t { kVllm, kSglang, kTrtllm, kVllmAscend, kTransformers };

/// How it is known that an engine reads something, the best first.
enum class Evidence : std::uint8_t {
  kGenerated,    ///< it loaded an output and gave the right text or probabilities
  kLoaded,       ///< it took every weight of an output
  kReplaced,     ///< its loader did, with kernels replaced that might refuse it or be wrong
  kRead,         ///< its source or its documentation says so
  kNotOfFamily,  ///< known of other families, and not tried with this one
  kNotTried,     ///< its makers say so of such checkpoints; nobody looked here
};
std::string_view evidence_text(Evidence evidence);  ///< "generated text"

/// An engine, and how it is started.
struct EngineFacts {
  Engine engine{};
  std::string_view word;  ///< of --for
  std::string_view name;  ///< "vLLM 0.32": with the version that was looked at, where one was
  /// Its refusals are known (engine_limits.h): plans and `check` judge by them.
  bool is_judged = false;
  std::string_view before;        ///< the command before the directory
  std::string_view ranks_option;  ///< that says on how many devices; empty: it finds out itself
};
std::span<const EngineFacts> engines();
const EngineFacts& engine_facts(Engine engine);
std::string_view engine_name(Engine engine);  ///< EngineFacts::name
std::optional<Engine> find_engine(std::string_view word);
/// The engine of `word` or `word:version`, as in `vllm:0.32`. kInvalidArgument for another word,
/// kUnsupported for another version than the one that was looked at.
Engine engine_of(std::string_view text);

/// A scheme that an engine reads in a dialect.
struct EngineLoad {
  Engine engine{};
  std::string_view dialect;  ///< empty for plain schemes, which all dialects write alike
  SchemeId scheme{};
  std::optional<Activations> activations;  ///< nothing for plain schemes
  Evidence evidence{};
  std::string_view option = {};  ///< without which it does not; empty: none is needed
  /// Where kRead was read: a file, with the line of a release or with function and commit.
  std::string_view source = {};
};
/// Every row; those of one engine and scheme stand in the order in which --for takes them.
std::span<const EngineLoad> engine_loads();
/// The row of a stored weight, or null.
const EngineLoad* find_load(Engine engine, const Dialect& dialect, SchemeId scheme,
                            Activations activations);

}  // namespace ingot::formats
