#include "check/rules/finding.h"

#include <algorithm>
#include <set>
#include <tuple>
#include <utility>

#include <fmt/format.h>

namespace ingot::check {

Findings::Findings(const std::filesystem::path& directory)
    : prefix_((directory / "").string()), name_(directory.string()) {}

void Findings::add(Finding finding, std::optional<const void*> kind) {
  for (std::string* text : {&finding.file, &finding.message}) {
    for (std::size_t at = 0; !name_.empty() && (at = text->find(prefix_, at)) != std::string::npos;)
      text->erase(at, prefix_.size());
  }
  if (finding.file == name_) finding.file.clear();
  if (!kind) return findings_.push_back(std::move(finding));
  const auto [known, is_new] = places_.try_emplace(*kind, by_kind_.size());
  if (is_new) by_kind_.emplace_back(std::move(finding), 0);
  ++by_kind_[known->second].second;
}

void Findings::tell(Severity severity, std::string_view rule, const Error& fact) {
  Finding finding = finding_of(fact);
  finding.severity = severity;
  finding.rule = rule;
  add(std::move(finding));
}

std::vector<Finding> Findings::take() {
  for (auto& [finding, n] : by_kind_) {
    if (n > 1) finding.message += fmt::format(" (so do {} more of this kind)", n - 1);
    findings_.push_back(std::move(finding));
  }
  std::ranges::stable_sort(findings_, {}, &Finding::severity);
  std::set<std::tuple<std::string_view, std::string, std::string>> reported;
  std::erase_if(findings_, [&](const Finding& finding) {
    // Without a tensor, the file is its subject.
    const std::string& subject = finding.tensor.empty() ? finding.file : finding.tensor;
    return !reported.emplace(finding.rule, subject, finding.message).second;
  });
  return std::exchange(*this, Findings()).findings_;
}

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
