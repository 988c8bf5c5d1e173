#include "verify/report/sections.h"

#include <algorithm>

#include <fmt/format.h>

#include "report/figures.h"
#include "report/rows.h"

namespace ingot::verify {

using formats::Json;
using formats::json_list;

namespace {

constexpr std::size_t kPageWorst = 20;

// True for a perfect result: its subject, the first that was measured, is not worth naming.
bool is_perfect(const GateResult& result) {
  return result.passed && result.worst == (result.gate.bound == Bound::kAtLeast ? 1 : 0);
}

Section gates_section(const Report& report, Form form) {
  const bool is_text = form == Form::kText;
  std::vector<GateResult> gates = report.gates;
  const auto passed = std::stable_partition(
      gates.begin(), gates.end(), [](const GateResult& result) { return !result.passed; });
  if (is_text) gates.erase(passed, gates.end());
  const Json rows = json_list(gates, [](const GateResult& result) {
    Json row = row_of(result);
    row["gate"] = gate_text(result);
    row["beyond"] = fmt::format("{} of {}", count_text(result.failed), count_text(result.checked));
    if (result.checked == 0) row["worst"] = "not measured";
    if (is_perfect(result)) row["subject"] = "";
    return row;
  });
  const auto verdict = [](const Json& holds) {
    return holds == true ? Cell("holds", Style::kGood) : Cell("fails", Style::kBad);
  };
  const auto worst = [](const Json& value) {
    return value.is_string() ? value.get<std::string>() : exact_text(value);
  };
  return {"gates",
          "Gates",
          {table_of(rows, {{"", "passed", verdict, !is_text},
                           {is_text ? "failed gates" : "gate", "gate", in_style<Style::kCode>},
                           {number("worst"), "worst", worst},
                           {number("beyond it"), "beyond"},
                           {name("worst at"), "subject"},
                           {"set by", "origin"}})}};
}

std::string schemes_text(const CheckpointFacts& facts) {
  std::string text;
  for (const SchemeShare& share : facts.schemes) {
    text += fmt::format("{}{}: {} tensors, {}", text.empty() ? "" : "\n", share.scheme,
                        count_text(share.tensors), bytes_text(share.bytes));
  }
  return text;
}

Section compared_section(const Report& report) {
  Table table{.columns = {""}};
  if (report.source) table.columns.push_back("source");
  table.columns.push_back("output");
  const auto add = [&](std::string_view title, const auto& value, Style style = Style::kPlain) {
    std::vector<Cell> row = {Cell(std::string(title), Style::kLabel)};
    if (report.source) row.emplace_back(value(*report.source), style);
    row.emplace_back(value(report.output), style);
    const bool has_any = std::any_of(row.begin() + 1, row.end(),
                                     [](const Cell& cell) { return !cell.text.empty(); });
    if (has_any) table.rows.push_back(std::move(row));
  };
  for (const auto& [title, member] : {std::pair{"name", &CheckpointFacts::name},
                                      {"family", &CheckpointFacts::family},
                                      {"dialect", &CheckpointFacts::dialect},
                                      {"layout", &CheckpointFacts::layout},
                                      {"ranks", &CheckpointFacts::topology},
                                      {"made by", &CheckpointFacts::made_by}}) {
    add(title, [member = member](const CheckpointFacts& facts) { return facts.*member; });
  }
  add("size", [](const CheckpointFacts& facts) {
    return fmt::format("{} tensors in {} files, {}", count_text(facts.tensors),
                       count_text(facts.files), bytes_text(facts.bytes));
  });
  add("schemes", schemes_text);
  add("layers gated as", [](const CheckpointFacts& facts) { return facts.kind; });
  add(
      "fingerprint", [](const CheckpointFacts& facts) { return facts.fingerprint; }, Style::kCode);
  Section section{"sides", "The checkpoints", {std::move(table)}};
  if (!report.reference.empty())
    section.note(fmt::format("The source's activations were recorded by {}.", report.reference));
  section.note(
      "A fingerprint is the XXH3-128 of the names, dtypes, shapes and sizes of all stored "
      "tensors.");
  return section;
}

Section structure_section(const StructureReport& structure, Form form) {
  Section section{"findings", "Structure", {}};
  if (form != Form::kText) {
    section.note(fmt::format(
        "{} tensors were looked for, {}.", count_text(structure.tensors),
        structure.has_manifest
            ? fmt::format("{} compared with the manifest's hashes", count_text(structure.hashed))
            : "there is no manifest to compare hashes with"));
    if (structure.findings.empty()) section.add(Paragraph{"Nothing is wrong with the structure."});
  }
  section.add(findings_of(structure));
  section.add(remarks_of("note", structure.stacks));
  return section;
}

Document report_document(const Report& report, Form form, std::size_t n_worst) {
  Document document{.title = form == Form::kPage ? report.output.name : "Verification",
                    .verdict = std::string(verdict_word(report)),
                    .is_good = report.passed(),
                    .finding = verdict_sentence(report),
                    .subject = compared_sentence(report),
                    .remarks = remarks_of("not run", report.not_run),
                    .made_by = "ingot verify " + report.tool_version};
  const Remarks warnings = remarks_of("warning", report.warnings);
  document.remarks.insert(document.remarks.end(), warnings.begin(), warnings.end());
  if (!report.wanted.empty()) document.remarks.push_back({.kind = "note", .text = report.wanted});
  Sections& sections = document.sections;
  if (form != Form::kText) add_summary_section({.sides = {{"output", &report}}}, sections);
  sections.push_back(gates_section(report, form));
  if (form != Form::kText) sections.push_back(compared_section(report));
  if (report.structure) sections.push_back(structure_section(*report.structure, form));
  add_layer_sections(report, form, n_worst, sections);
  add_weight_sections(report, form, n_worst, sections);
  add_output_section(report, form, sections);
  return document;
}

}  // namespace

Remarks findings_of(const StructureReport& structure, std::string_view side) {
  Remarks remarks;
  for (const check::Finding& finding : structure.findings) {
    const bool is_error = finding.severity == check::Severity::kError;
    remarks.push_back({.style = is_error ? Style::kBad : Style::kMild,
                       .kind = fmt::format("{}{}{}", side, side.empty() ? "" : " ",
                                           check::severity_name(finding.severity)),
                       .name = finding.tensor.empty() ? finding.file : finding.tensor,
                       .text = finding.message,
                       .id = std::string(finding.rule)});
  }
  return remarks;
}

std::string report_text(const Report& report, std::optional<std::size_t> n_worst,
                        std::size_t width) {
  return write_text(report_document(report, Form::kText, n_worst.value_or(kScreenWorst)),
                    n_worst ? 0 : kScreenLines, width);
}

std::string report_markdown(const Report& report) {
  return write_markdown(report_document(report, Form::kCard, kScreenWorst));
}

std::string report_html(const Report& report) {
  return write_html(report_document(report, Form::kPage, kPageWorst));
}

}  // namespace ingot::verify
