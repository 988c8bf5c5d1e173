// Two outputs in pairs: the sections of `ingot compare`. Without a reference they are those of a
// verification without gates.
#include <algorithm>
#include <cmath>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "report/figures.h"
#include "report/rows.h"
#include "verify/compare/comparison.h"
#include "verify/report/sections.h"

namespace ingot::verify {

using formats::Json;

namespace {

constexpr std::size_t kComparisonWorst = 20;

std::string signed_text(double value) {
  return fmt::format("{}{}", value > 0 ? "+" : "", short_text(value));
}

std::string closer_text(const PairedFigure& figure) {
  const Closer closer = figure.closer();
  if (closer == Closer::kNeither) return {};
  if (closer == Closer::kEqual) return "equal";
  if (closer == Closer::kUndecided) return "not told apart";
  if (figure.interval || figure.a_closer + figure.b_closer == 1)
    return closer == Closer::kA ? "A" : "B";
  return fmt::format("A in {}, B in {}", count_text(figure.a_closer), count_text(figure.b_closer));
}

std::string over_text(const PairedFigure& figure) {
  if (figure.clusters > 0) {
    return fmt::format("{} tokens of {} {}", count_text(figure.tokens), count_text(figure.clusters),
                       figure.drawn);
  }
  return figure.pairs == 1 ? "" : fmt::format("{} pairs", count_text(figure.pairs));
}

Json shown_row(const PairedFigure& figure) {
  Json row = row_of(figure);
  row["closer"] = closer_text(figure);
  row["over"] = over_text(figure);
  if (figure.interval)
    row["interval"] = fmt::format("{} to {}", signed_text(figure.interval->low),
                                  signed_text(figure.interval->high));
  return row;
}

// Figures that are equal in both come last on a page, and are only named elsewhere.
Section figures_section(std::vector<PairedFigure> figures, Form form) {
  const bool is_page = form == Form::kPage;
  std::stable_partition(figures.begin(), figures.end(), [](const PairedFigure& figure) {
    return figure.closer() != Closer::kEqual;
  });
  std::vector<std::string> equal;
  if (!is_page) {
    std::erase_if(figures, [&](const PairedFigure& figure) {
      const bool is_equal = figure.closer() == Closer::kEqual;
      if (is_equal) equal.push_back(figure.name);
      return is_equal;
    });
  }
  const Json rows = formats::json_list(figures, shown_row);
  constexpr auto kName = in_style<Style::kCode>;
  Table table = table_of(rows, {{is_page ? "figure" : "figures", "figure", kName},
                                {"A", "a", exact_text},
                                {"B", "b", exact_text},
                                {"B − A", "difference", signed_text},
                                {number("95% of it"), "interval"},
                                {"closer"},
                                {"over"}});
  table.least_rows = 8;
  Section section{"figures", "Every figure of both", {std::move(table)}};
  if (!equal.empty()) section.note(fmt::format("equal in both: {}", fmt::join(equal, ", ")));
  if (!is_page) return section;
  section.note(
      "Figures of many pairs are means over them. The interval is of the paired difference; its "
      "independent samples are prompts or documents, not tokens. Where it holds 0, these samples "
      "do not tell A and B apart.");
  Table meanings = table_of(rows, {{"figure", "figure", kName},
                                   {"meaning", "summary"},
                                   {name("farthest apart at"), "farthest"}});
  meanings.summary = "Their meaning, and where A and B are farthest apart";
  section.add(std::move(meanings));
  return section;
}

// Demands and their results.
Section demands_section(const Comparison& comparison) {
  const Json rows = formats::json_list(judge_demands(comparison), [](const DemandResult& result) {
    Json row = row_of(result);
    row["demand"] = demand_text(result.demand);
    return row;
  });
  const auto verdict = [](const Json& holds) {
    return holds == true ? Cell("holds", Style::kGood) : Cell("fails", Style::kBad);
  };
  return {"gates",
          "Demands",
          {table_of(rows, {{"", "passed", verdict},
                           {"demand", "demand", in_style<Style::kCode>},
                           {"figures", "reason"}})}};
}

// First the groups that decide about the error of the whole.
std::vector<PairedGroup> weightiest_first(std::vector<PairedGroup> groups) {
  const auto weight = [](const PairedGroup& group) {
    return std::abs(group.b.error2 - group.a.error2);
  };
  std::stable_sort(groups.begin(), groups.end(), [&](const PairedGroup& a, const PairedGroup& b) {
    return weight(a) > weight(b);
  });
  return groups;
}

std::string closer_text(const PairedGroup& group) {
  if (group.a_closer + group.b_closer == 0) return "equal";
  if (group.tensors == 1) return group.a_closer > 0 ? "A" : "B";
  return fmt::format("A in {}, B in {}", count_text(group.a_closer), count_text(group.b_closer));
}

Section roles_section(const std::vector<PairedTensor>& tensors, Form form) {
  const bool is_page = form == Form::kPage;
  std::vector<PairedGroup> groups = weightiest_first(paired_groups(tensors, {.by_role = true}));
  const auto is_equal = [](const PairedGroup& group) {
    return group.a_closer + group.b_closer == 0;
  };
  const auto n_equal = std::ranges::count_if(groups, is_equal);
  if (!is_page) std::erase_if(groups, is_equal);
  Table table = table_of(formats::json_list(groups,
                                            [](const PairedGroup& group) {
                                              Json row = row_of(group);
                                              row["closer"] = closer_text(group);
                                              return row;
                                            }),
                         {{is_page ? "role" : "weights by role", "role"},
                          {"A", "a_schemes"},
                          {"B", "b_schemes"},
                          {"tensors"},
                          {"rel. error A", "a.relative_error", short_text, is_page},
                          {"B", "b.relative_error", short_text, is_page},
                          {"SQNR dB A", "a.sqnr_db", decibel_text},
                          {"B", "b.sqnr_db", decibel_text},
                          {"B − A", "difference_db", signed_decibels},
                          {"closer"}});
  table.least_rows = 4;
  Section section{"roles", "Weights by role", {std::move(table)}};
  if (n_equal > 0)
    section.note(fmt::format("{} {} equally close in both", n_equal,
                             n_equal == 1 ? "role is" : "roles are"));
  return section;
}

Section tensors_section(std::vector<PairedTensor> tensors, Form form, std::size_t n_worst) {
  std::stable_sort(tensors.begin(), tensors.end(),
                   [](const PairedTensor& a, const PairedTensor& b) {
                     return std::abs(a.difference()) > std::abs(b.difference());
                   });
  tensors.resize(std::min(tensors.size(), n_worst));
  Table table{.columns = {name(form == Form::kPage ? "tensor" : "farthest apart"), "A", "B",
                          number("rel. error A"), number("B"), number("B − A")},
              .least_rows = 3};
  for (const PairedTensor& tensor : tensors) {
    if (tensor.difference() == 0) continue;
    table.rows.push_back(
        {tensor.a->name, tensor.a->to, tensor.b->to, short_text(tensor.a->sums.relative_error()),
         short_text(tensor.b->sums.relative_error()), signed_text(tensor.difference())});
  }
  return {"worst", "Tensors farthest apart", {std::move(table)}};
}

Section answers_section(const GreedyReport& a, const GreedyReport& b, Form form) {
  const auto counts = [](const GreedyReport& greedy) {
    return fmt::format("{} equal, {} inconclusive, {} different", greedy.equal, greedy.inconclusive,
                       greedy.different);
  };
  Section section{"outputs",
                  "Answers",
                  {Paragraph{fmt::format("greedy answers to {} prompts: A {}; B {}",
                                         a.prompts.size(), counts(a), counts(b))}}};
  if (form != Form::kPage) return section;
  std::string html;
  for (std::size_t i = 0; i < std::min(a.prompts.size(), b.prompts.size()); ++i)
    html += prompt_html(i + 1, {"reference", "A", "B"}, {&a.prompts[i], &b.prompts[i]});
  section.add(Drawing{std::move(html)});
  return section;
}

Section findings_section(const Comparison& comparison) {
  Remarks remarks;
  for (const auto& [side, report] : {std::pair{"A", &*comparison.a}, {"B", &comparison.b}}) {
    if (!report->structure) continue;
    const Remarks found = findings_of(*report->structure, side);
    remarks.insert(remarks.end(), found.begin(), found.end());
  }
  return {"findings", "Structure", {std::move(remarks)}};
}

// Differences between the structures of A and B, and loaders' remarks on B.
Section differences_section(const StructureReport& structure) {
  Remarks remarks = findings_of(structure, "B");
  for (Remark& remark : remarks) {
    if (!remark.id.starts_with("structure.")) continue;
    remark.kind = "difference";
    remark.style = Style::kMild;
  }
  return {"findings", "Structure", {std::move(remarks)}};
}

void add_paired_sections(const Comparison& comparison, Form form, std::size_t n_worst,
                         Sections& sections) {
  const Report &a = *comparison.a, &b = comparison.b;
  const std::vector<PairedTensor> tensors = paired_tensors(a, b);
  if (!comparison.demands.empty()) sections.push_back(demands_section(comparison));
  sections.push_back(figures_section(paired_figures(a, b), form));
  sections.push_back(roles_section(tensors, form));
  sections.push_back(paired_layers_section(comparison, tensors, form, n_worst));
  if (form == Form::kPage) sections.push_back(difference_map_section(tensors));
  sections.push_back(tensors_section(tensors, form, n_worst));
  if (a.greedy && b.greedy) sections.push_back(answers_section(*a.greedy, *b.greedy, form));
  sections.push_back(findings_section(comparison));
}

Document comparison_document(const Comparison& comparison, Form form, std::size_t n_worst) {
  const Report& b = comparison.b;
  const CheckpointFacts& of_a = comparison.a ? comparison.a->output : *b.source;
  const auto side = [](const CheckpointFacts& facts) {
    return fmt::format("{}, {}", side_text(facts), bytes_text(facts.bytes));
  };
  Document document{.title = "Comparison",
                    .finding = comparison_sentence(comparison),
                    .subject = fmt::format("A is {}; B is {}", side(of_a), side(b.output)),
                    .made_by = "ingot compare " + b.tool_version};
  if (form == Form::kPage) document.title = fmt::format("{} and {}", of_a.name, b.output.name);
  document.subject += comparison.a ? "; the reference is " + side(*b.source)
                                   : "; below, A is called the source and B the output";
  if (!comparison.demands.empty()) {
    document.is_good = comparison.passed();
    document.verdict = document.is_good ? "PASS" : "FAIL";
  }
  document.remarks = remarks_of("warning", warnings_of(comparison));
  Sections& sections = document.sections;
  if (form != Form::kText) {
    Summary summary{.source_title = "A", .sides = {{"B", &b}}, .is_judged = false};
    if (comparison.a)
      summary = {.source_title = "reference",
                 .sides = {{"A", &*comparison.a}, {"B", &b}},
                 .is_judged = false};
    add_summary_section(summary, sections);
  }
  if (comparison.a) {
    add_paired_sections(comparison, form, n_worst, sections);
    return document;
  }
  if (b.structure) sections.push_back(differences_section(*b.structure));
  add_layer_sections(b, form, n_worst, sections);
  add_weight_sections(b, form, n_worst, sections);
  add_output_section(b, form, sections);
  return document;
}

}  // namespace

std::vector<std::string> warnings_of(const Comparison& comparison) {
  std::vector<std::string> warnings = comparison.a ? comparison.a->warnings : comparison.b.warnings;
  for (const std::string& warning : comparison.b.warnings) {
    if (std::find(warnings.begin(), warnings.end(), warning) == warnings.end())
      warnings.push_back(warning);
  }
  return warnings;
}

std::string comparison_text(const Comparison& comparison, std::optional<std::size_t> n_worst,
                            std::size_t width) {
  return write_text(comparison_document(comparison, Form::kText, n_worst.value_or(kScreenWorst)),
                    n_worst ? 0 : kScreenLines, width);
}

std::string comparison_markdown(const Comparison& comparison) {
  return write_markdown(comparison_document(comparison, Form::kCard, kScreenWorst));
}

std::string comparison_html(const Comparison& comparison) {
  return write_html(comparison_document(comparison, Form::kPage, kComparisonWorst));
}

}  // namespace ingot::verify
