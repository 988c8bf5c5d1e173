#include <algorithm>
#include <set>
#include <tuple>
#include <utility>

#include "verify/structure/structure_comparisons.h"

namespace ingot::verify {

using check::Finding;
using check::Severity;

namespace {

void replace_all(std::string& text, const std::string& from, const std::string& to) {
  for (std::size_t at = text.find(from); at != std::string::npos; at = text.find(from, at))
    text.replace(at, from.size(), to);
}

}  // namespace

StructureFindings::StructureFindings(const std::filesystem::path& directory)
    : prefix_((directory / "").string()), name_(directory.string()) {}

void StructureFindings::error(std::string_view rule, const Error& fact) {
  Finding finding = check::finding_of(fact);
  finding.severity = Severity::kError;
  finding.rule = rule;
  add(std::move(finding));
}

void StructureFindings::warning(std::string_view rule, const Error& fact) {
  Finding finding = check::finding_of(fact);
  finding.severity = Severity::kWarning;
  finding.rule = rule;
  add(std::move(finding));
}

void StructureFindings::add(Finding finding) {
  for (std::string* text : {&finding.file, &finding.message}) replace_all(*text, prefix_, "");
  if (finding.file == name_) finding.file.clear();
  findings_.push_back(std::move(finding));
}

std::vector<Finding> StructureFindings::take() {
  std::set<std::tuple<std::string_view, std::string, std::string>> told;
  std::erase_if(findings_, [&](const Finding& finding) {
    // Without a tensor, the file is what it is about.
    const std::string& subject = finding.tensor.empty() ? finding.file : finding.tensor;
    return !told.emplace(finding.rule, subject, finding.message).second;
  });
  std::stable_sort(findings_.begin(), findings_.end(), [](const Finding& a, const Finding& b) {
    return a.severity == Severity::kError && b.severity != Severity::kError;
  });
  return std::exchange(findings_, {});
}

}  // namespace ingot::verify
