#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

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

/// How many of them are of this severity.
std::uint64_t count_findings(std::span<const Finding> findings, Severity severity);
/// The same fact as an error of the checkpoint's structure.
Finding finding_of(const Error& error);
/// A warning without a rule: something of `file`, which may be empty, is not as it was promised.
Finding remark(std::string message, std::string_view file = {});
/// A finding without a rule; `file` and `tensor` may be empty.
Finding violation(ErrorCode code, std::string_view file, std::string_view tensor,
                  std::string message);

}  // namespace ingot::check
