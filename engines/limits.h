#pragma once

#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engines/versions/versions.h"

// The forms that engines refuse or compute wrongly: a plan refuses a form that all
// refuse, `check` reports it, and `ingot list engines` prints it. A fact is a row of a version,
// and a function of row/scope.h says which weights it is about.

namespace ingot::engines {

/// The limits of an engine that a weight of this dialect meets; of rows of one family and scope the
/// first. Rows of BF16 are about every plain weight, since loaders cast these.
std::vector<const EngineLimit*> limits_of(const EngineRow& engine, const Dialect& dialect,
                                          const EngineWeight& weight);
/// The limits of the newest versions of all engines that a weight of this dialect meets.
std::vector<std::pair<const EngineRow*, const EngineLimit*>> limits_of_all(
    const Dialect& dialect, const EngineWeight& weight);
/// The first refusal, else the first that needs an option; null: none.
const EngineLimit* limit_of(const EngineRow& engine, const Dialect& dialect,
                            const EngineWeight& weight);

/// True unless the engine is not known to take stacks of experts of a family (EngineRow::stacks).
bool takes_stacks(const EngineRow& engine, std::string_view family);
/// The cost of plain stacks of experts that have their inputs first, as a part of a sentence.
/// Source: vllm-project/vllm issue 31624.
inline constexpr std::string_view kCostOfTurnedStacks =
    "with their inputs first, and loaders transpose each (495 s of a load of Llama-4 in one thread "
    "were reported)";
/// True if the engine is known to load experts of a family one by one: it loads a scheme whose
/// dialects hold only single experts, and no limit demands the form of releases.
bool takes_singles(const EngineRow& engine, const formats::Family& family);

/// The knowledge about an engine and the weights of one kind: a form that some dialect writes, or
/// those of its weights that are refused.
struct EngineSupport {
  const EngineRow* engine = nullptr;
  std::string_view dialect;                 ///< empty: any
  std::optional<SchemeId> scheme;           ///< nullopt: any
  std::optional<Activations> activations;   ///< nullopt: of any kind, and of plain schemes
  Evidence evidence = Evidence::kNotTried;  ///< evidence that the engine reads them
  /// Limit by which the engine refuses the weights, or needs an option; null: none.
  const EngineLimit* limit = nullptr;
  const EngineLoad* load = nullptr;  ///< row of the form; null: none
};
/// Per version: each form, followed by the limits of some of its weights unless the engine refuses
/// all; then the limits of widths and families. A form without a row is kNotTried.
std::vector<EngineSupport> engine_support(std::span<const EngineRow* const> versions = engines());
/// engine_effect_text(), or without a limit "generated text".
std::string engine_support_text(const EngineSupport& support);

/// The limits of the newest versions of engines that the weights of one checkpoint meet.
class EngineLimitsMet {
 public:
  explicit EngineLimitsMet(const Dialect& dialect)
      : dialect_(&dialect), may_load_(judged_versions()) {}
  void add(const EngineWeight& weight);

  struct LimitHit {
    const EngineRow* engine = nullptr;
    const EngineLimit* limit = nullptr;
    std::string first;  ///< name of a weight
    SchemeId scheme{};  ///< scheme of that weight
    std::size_t count = 0;
  };
  [[nodiscard]] std::span<const LimitHit> hits() const { return hits_; }
  /// Every version that is judged refuses the form of some weight.
  [[nodiscard]] bool is_refused_by_all() const { return may_load_.empty(); }

 private:
  const Dialect* dialect_;
  std::vector<LimitHit> hits_;              // limits in the order in which they were met
  std::vector<const EngineRow*> may_load_;  // versions that refuse no weight so far
};

/// A limit that was met, as the end of a sentence about its first weight:
/// "is fp8-channel with dynamic activations, which vLLM 0.32 refuses: ...". `ranks` of tensor
/// parallelism are said where the limit is about widths.
std::string limit_hit_text(const EngineLimitsMet::LimitHit& hit, std::uint64_t ranks);

}  // namespace ingot::engines
