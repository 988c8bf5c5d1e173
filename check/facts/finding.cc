#include "check/facts/finding.h"

#include <algorithm>
#include <utility>

namespace ingot::check {

std::uint64_t count_findings(std::span<const Finding> findings, Severity severity) {
  return static_cast<std::uint64_t>(std::ranges::count(
      findings, severity, [](const Finding& finding) { return finding.severity; }));
}

Finding finding_of(const Error& error) {
  return {.code = error.code(),
          .file = error.file(),
          .tensor = error.tensor(),
          .message = error.message()};
}

Finding remark(std::string message, std::string_view file) {
  Finding finding = violation(ErrorCode::kMismatch, file, "", std::move(message));
  finding.severity = Severity::kWarning;
  return finding;
}

Finding violation(ErrorCode code, std::string_view file, std::string_view tensor,
                  std::string message) {
  return finding_of(Error(code, std::move(message)).in_file(file).in_tensor(tensor));
}

}  // namespace ingot::check
