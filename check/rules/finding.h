#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "formats/base/error.h"

namespace ingot::check {

enum class Severity : std::uint8_t {
  kError,    ///< every loader of the dialect refuses it, or garbage results
  kWarning,  ///< some loaders refuse it; the row names them
};
constexpr std::string_view severity_name(Severity severity) {
  return severity == Severity::kError ? "error" : "warning";
}

/// A fact found wrong. `code` and `rule` are stable.
struct Finding {
  Severity severity{};
  ErrorCode code{};
  std::string file, tensor, message;
  std::string_view rule;  ///< id of the loader rule; empty for structure and hashes
};

/// Findings of several tests, each of which is said once.
class Findings {
 public:
  /// Paths in findings and messages become relative to `directory`; empty: they stay.
  explicit Findings(const std::filesystem::path& directory = {});

  /// Adds a finding. One of a kind that was added before is only counted: a fault of one tensor is
  /// a fault of its sisters in every layer.
  void add(Finding finding, std::optional<const void*> kind = std::nullopt);
  /// `rule` must outlive the findings.
  void tell(Severity severity, std::string_view rule, const Error& fact);
  void error(std::string_view rule, const Error& fact) { tell(Severity::kError, rule, fact); }
  void warning(std::string_view rule, const Error& fact) { tell(Severity::kWarning, rule, fact); }

  /// Errors first, and those of a kind, which say how many more there are, behind the others;
  /// otherwise in the order added. A finding that two places made, by one rule at one tensor in the
  /// same words, comes once. Leaves this empty.
  std::vector<Finding> take();

 private:
  std::string prefix_, name_;
  std::vector<Finding> findings_;
  std::vector<std::pair<Finding, std::size_t>> by_kind_;
  std::map<const void*, std::size_t> places_;  // of kinds in by_kind_
};

/// How many of them are of this severity.
std::uint64_t count_findings(std::span<const Finding> findings, Severity severity);
/// Returns the fact as an error of the checkpoint's structure.
Finding finding_of(const Error& error);
/// A warning without a rule: something of `file`, which may be empty, is not as it was promised.
Finding remark(std::string message, std::string_view file = {});
/// A finding without a rule; `file` and `tensor` may be empty.
Finding violation(ErrorCode code, std::string_view file, std::string_view tensor,
                  std::string message);

}  // namespace ingot::check
