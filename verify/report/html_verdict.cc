#include <algorithm>

#include <fmt/format.h>

#include "verify/report/figures.h"
#include "verify/report/html_sections.h"
#include "verify/report/html_text.h"
#include "verify/report/verdict.h"

namespace ingot::verify {
namespace {

constexpr std::size_t kFindings = 200;

std::string list_of(const std::vector<std::string>& lines, std::string_view word) {
  std::string text;
  for (const std::string& line : lines)
    text += fmt::format("<li><b>{}</b> {}</li>\n", word, html_text(line));
  return text;
}

// Nothing could be better: whoever was looked at first is not worth naming.
bool is_perfect(const GateResult& result) {
  return result.passed && result.worst == (result.gate.bound == Bound::kAtLeast ? 1 : 0);
}

std::string finding_row(const formats::Finding& finding) {
  const bool is_error = finding.severity == formats::Severity::kError;
  const std::string& subject = finding.tensor.empty() ? finding.file : finding.tensor;
  return fmt::format(
      "<li>{} {}{}{}</li>\n", html_badge(is_error ? "bad" : "mild", is_error ? "error" : "warning"),
      subject.empty() ? "" : fmt::format("<code>{}</code> ", html_text(subject)),
      html_text(finding.message),
      finding.rule.empty() ? "" : fmt::format(" <small>{}</small>", html_text(finding.rule)));
}

}  // namespace

std::string html_verdict(const Report& report) {
  const bool passed = report.passed();
  std::string text = fmt::format(
      "<header id=\"verdict\" class=\"{}\">\n<p class=\"verdict\">{}</p>\n<div>\n<h1>{}.</h1>\n"
      "<p>{}.</p>\n",
      passed ? "good" : "bad", fmt::format("{} {}", passed ? "✓" : "✗", verdict_word(report)),
      html_text(verdict_sentence(report)), html_text(compared_sentence(report)));
  const std::string remarks =
      list_of(report.not_run, "not run:") + list_of(report.warnings, "warning:");
  if (!remarks.empty()) text += fmt::format("<ul>\n{}</ul>\n", remarks);
  return text + "</div>\n</header>\n";
}

std::string html_gates(const Report& report) {
  if (report.gates.empty()) return {};
  std::vector<std::vector<std::string>> rows;
  for (const GateResult& result : report.gates) {
    const bool is_measured = result.checked > 0;
    rows.push_back({html_badge(result.passed ? "good" : "bad", result.passed ? "holds" : "fails"),
                    fmt::format("<code>{}</code>", html_text(gate_text(result.gate))),
                    is_measured ? exact_text(result.worst) : "not measured",
                    fmt::format("{} of {}", count_text(result.failed), count_text(result.checked)),
                    is_perfect(result) ? "" : html_text(result.subject),
                    html_text(result.gate.origin)});
  }
  return html_section("gates", "Gates",
                      html_table({{.title = ""},
                                  {.title = "gate"},
                                  {.title = "worst", .is_number = true},
                                  {.title = "beyond it", .is_number = true},
                                  {.title = "worst at", .is_name = true},
                                  {.title = "set by"}},
                                 rows));
}

std::string html_sides(const Report& report) {
  const auto scheme_list = [](const SideFacts& facts) {
    std::string text;
    for (const SchemeShare& share : facts.schemes) {
      text +=
          fmt::format("{}{}: {} tensors, {}", text.empty() ? "" : "<br/>", html_text(share.scheme),
                      count_text(share.tensors), bytes_text(share.bytes));
    }
    return text;
  };
  std::vector<std::vector<std::string>> rows;
  const auto add = [&](std::string_view title, const auto& value) {
    rows.push_back({fmt::format("<b>{}</b>", title)});
    if (report.source) rows.back().push_back(value(*report.source));
    rows.back().push_back(value(report.output));
  };
  const auto add_text = [&](std::string_view title, std::string SideFacts::*member) {
    const bool has_any =
        !(report.output.*member).empty() || (report.source && !((*report.source).*member).empty());
    if (has_any) add(title, [&](const SideFacts& facts) { return html_text(facts.*member); });
  };
  add_text("name", &SideFacts::name);
  add_text("family", &SideFacts::family);
  add_text("dialect", &SideFacts::dialect);
  add_text("layout", &SideFacts::layout);
  add_text("ranks", &SideFacts::topology);
  add_text("made by", &SideFacts::made_by);
  add("size", [](const SideFacts& facts) {
    return fmt::format("{} tensors in {} files, {}", count_text(facts.tensors),
                       count_text(facts.files), bytes_text(facts.bytes));
  });
  add("schemes", scheme_list);
  add_text("layers gated as", &SideFacts::kind);
  add("fingerprint", [](const SideFacts& facts) {
    return fmt::format("<code>{}</code>", html_text(facts.fingerprint));
  });
  std::vector<HtmlColumn> columns = {{.title = ""}};
  if (report.source) columns.push_back({.title = "source"});
  columns.push_back({.title = "output"});
  std::string body = html_table(columns, rows);
  if (!report.reference.empty()) {
    body +=
        html_note("The source's activations were recorded by " + html_text(report.reference) + ".");
  }
  return html_section("sides", "What was compared",
                      body + html_note("A fingerprint is the XXH3-128 of the names, dtypes, shapes "
                                       "and sizes of all stored tensors."));
}

std::string html_findings(const Report& report) {
  if (!report.structure) return {};
  const auto& findings = report.structure->findings;
  std::string body = html_note(fmt::format(
      "{} tensors were looked for, {}.", count_text(report.structure->tensors),
      report.structure->has_manifest ? fmt::format("{} compared with the manifest's hashes",
                                                   count_text(report.structure->hashed))
                                     : "there is no manifest to compare hashes with"));
  if (findings.empty()) body += "<p>Nothing is wrong with the structure.</p>\n";
  std::string list;
  for (std::size_t i = 0; i < std::min(findings.size(), kFindings); ++i)
    list += finding_row(findings[i]);
  if (findings.size() > kFindings)
    list += fmt::format("<li>and {} more</li>\n", count_text(findings.size() - kFindings));
  if (!list.empty()) body += fmt::format("<ul class=\"findings\">\n{}</ul>\n", list);
  return html_section("findings", "Structure", body);
}

}  // namespace ingot::verify
