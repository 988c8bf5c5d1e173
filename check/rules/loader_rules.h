#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "check/rules/finding.h"
#include "engines/row/engine.h"
#include "formats/checkpoint/checkpoint.h"
#include "formats/json/json_fwd.h"
#include "formats/records/layout.h"

namespace ingot::engines {
struct EngineInput;
struct EngineVerdict;
struct LinearModule;
}  // namespace ingot::engines

namespace ingot::check {

/// The most bytes of a tensor that is read where only small ones are: numbers of a tensor or an
/// expert, scales of rows, and of blocks of FP8, but none of groups of 16 or 32.
inline constexpr std::uint64_t kSmallBytes = std::uint64_t{64} << 10;

/// How much to look at.
struct RuleOptions {
  bool deep = false;  ///< read every FP8 weight for NaN codes
  std::size_t threads = 1;
  /// Scales of more bytes are not read; 0: headers and JSON are all that is read.
  std::uint64_t most_bytes = UINT64_MAX;
  /// False: a weights file by itself, and nothing is known of the files that belong to it.
  bool is_folder = true;
  /// Ranks that tensor parallelism cuts the weights into; 1: none or not known.
  std::uint64_t tensor_parallel = 1;
};

struct RuleInput;

/// Reports the violations in a checkpoint; or in one weight, of each in the row's schemes; or in
/// one linear layer, of all. Severity and rule are filled in by run_loader_rules.
using RuleTest = std::variant<void (*)(const RuleInput&),
                              void (*)(const RuleInput&, const formats::LogicalTensor&),
                              void (*)(const RuleInput&, const engines::LinearModule&)>;

/// One test that a loader makes, as a row.
struct LoaderRule {
  std::string_view name;     ///< stable id, e.g. "fp8.scale-shape"
  std::string_view dialect;  ///< dialect of the checkpoints that it is about; empty: any
  std::string_view loaders;  ///< who refuses: "all", "vLLM", "vLLM, SGLang"
  Severity severity{};
  std::string_view rule;  ///< condition that must hold, one line
  RuleTest test;
  /// The schemes of weights that the row is about; null: any.
  bool (*schemes)(const formats::SchemeFacts& scheme) = nullptr;
  /// False: headers and JSON are all that the test reads. True: scales too, and weights when
  /// `deep`; left out where RuleOptions::most_bytes is 0.
  bool reads_values = false;
  /// Its findings are refusals of some engine that another may not share: `--allow engine-refuses`
  /// accepts it.
  bool is_allowable = false;
  std::optional<engines::Engine> engine = std::nullopt;  ///< engine that such a test is about
  std::string_view except = {};  ///< a dialect whose own rows say this; empty: none
  /// The option of an engine with which it takes a checkpoint that breaks the rule; null: none.
  std::string_view engines::EngineRow::*option = nullptr;
  /// True if loaders show no error, and compute with other numbers than the files have.
  bool is_silent = false;
};

/// The rows of all tables (rule_input.h).
std::span<const LoaderRule> loader_rules();
/// The row of this id, or null.
const LoaderRule* find_loader_rule(std::string_view name);

/// A finding as documents have it: its code, file and tensor (null where it has none), message, its
/// rule, and who refuses it by a loader rule.
formats::Json fault_json(const Finding& finding);
/// The findings of a severity, at most so many.
formats::Json faults_json(std::span<const Finding> findings, Severity severity,
                          std::size_t most = SIZE_MAX);
/// Remarks about a file or directory (empty: none) as such warnings.
formats::Json remarks_json(const std::vector<std::string>& remarks, std::string_view file = {});

/// The findings that are of structure, or of rows that name the engine or all. A row about what
/// this engine refuses makes errors; one about an option of it warns.
std::vector<Finding> findings_for(engines::Engine engine, std::span<const Finding> findings);

/// Removes findings about lists of modules where they name none of the `misread` weights: each
/// engine reads such lists in its own way.
void keep_misread(const std::set<std::string, std::less<>>& misread,
                  std::vector<Finding>& findings);

/// One voice: an engine about which the findings have an error does not load the checkpoint,
/// whatever its verdict was.
void deny_by_errors(std::span<const Finding> findings,
                    std::vector<engines::EngineVerdict>& verdicts);

/// True if a row says something of a layout. Slices are loaded by no engine but the one whose own
/// their layout is, so rows about other engines do not.
bool is_about_layout(const LoaderRule& rule, const formats::Layout& layout);

class RuleFacts;

/// Tensors that were not read.
struct Unread {
  std::uint64_t n_tensors = 0, n_bytes = 0;
};

/// The rows over one checkpoint, which must outlive this. Facts that several rows need are found
/// once, when the first row is asked.
class LoaderRules {
 public:
  LoaderRules(const formats::Checkpoint& checkpoint, RuleOptions options);
  ~LoaderRules();
  LoaderRules(const LoaderRules&) = delete;
  LoaderRules& operator=(const LoaderRules&) = delete;

  /// The findings of every row for the checkpoint's dialect or for any, in table order.
  std::vector<Finding> run();
  /// The findings of one row.
  std::vector<Finding> run(const LoaderRule& row);
  /// The part of the checkpoint that engines see.
  const engines::EngineInput& engine_input();
  /// The tensors that the rows so far would have read, and that are too large for most_bytes.
  Unread unread();

 private:
  const RuleFacts& facts();

  const formats::Checkpoint& checkpoint_;
  RuleOptions options_;
  std::unique_ptr<const RuleFacts> facts_;
};

/// LoaderRules::run() of a checkpoint.
std::vector<Finding> run_loader_rules(const formats::Checkpoint& checkpoint,
                                      const RuleOptions& options);

}  // namespace ingot::check
