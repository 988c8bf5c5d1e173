#include "cli/verify_report.h"

#include <algorithm>

#include <fmt/format.h>

#include "cli/terminal.h"
#include "verify/report/figures.h"
#include "verify/report/verdict.h"

namespace ingot::cli {

using verify::by_scheme_and_role;
using verify::cosine_text;
using verify::decibel_text;
using verify::ElementSums;
using verify::exact_text;
using verify::GateResult;
using verify::GreedyPrompt;
using verify::GreedyReport;
using verify::LayerAgreement;
using verify::LayersReport;
using verify::LogitAgreement;
using verify::printable_text;
using verify::Relation;
using verify::Report;
using verify::share_text;
using verify::short_text;
using verify::StructureReport;
using verify::TensorWeights;
using verify::WeightGroup;
using verify::WeightsReport;
using verify::worst_tensors;

namespace {

constexpr std::size_t kWorst = 20;
constexpr std::size_t kFindings = 50;

using Rows = std::vector<std::vector<std::string>>;

std::string change_of(std::string_view from, std::string_view to) {
  return from == to ? std::string(to) : fmt::format("{} to {}", from, to);
}

std::string weights_text(const WeightsReport& weights) {
  Rows rows = {{"weights", "role", "tensors", "identical", "cosine", "rel. error", "SQNR dB",
                "misrounded", "saturated", "scale"}};
  for (const WeightGroup& group : by_scheme_and_role(weights)) {
    const ElementSums& sums = group.sums;
    rows.push_back({change_of(group.from, group.to), printable_text(group.role),
                    with_commas(group.tensors), with_commas(group.identical),
                    cosine_text(sums.cosine()), short_text(sums.relative_error()),
                    decibel_text(sums.sqnr_db()), with_commas(sums.misrounded),
                    share_text(sums.saturated, sums.elements),
                    fmt::format("{:.4f}", group.worst_scale)});
  }
  std::string text =
      text_table(rows, {false, false, true, true, true, true, true, true, true, true});
  if (weights.unmatched > 0)
    text += fmt::format("  {} tensors without a partner\n", with_commas(weights.unmatched));
  if (weights.sample < 1)
    text += fmt::format("  {:g}% of the rows were looked at\n", 100 * weights.sample);
  return text;
}

std::string worst_text(const WeightsReport& weights) {
  Rows rows = {
      {"worst tensors", "scheme", "", "rel. error", "SQNR dB", "cosine", "misrounded", "scale"}};
  for (const TensorWeights* tensor : worst_tensors(weights, kWorst)) {
    // Whatever has no error is no worse than the rest.
    if (tensor->relation == Relation::kIdentical) continue;
    rows.push_back({printable_text(tensor->name), change_of(tensor->from, tensor->to),
                    std::string(relation_name(tensor->relation)),
                    short_text(tensor->sums.relative_error()), decibel_text(tensor->sums.sqnr_db()),
                    cosine_text(tensor->sums.cosine()), with_commas(tensor->sums.misrounded),
                    fmt::format("{:.4f}", tensor->sums.fitted_scale())});
  }
  if (rows.size() == 1) return {};
  return text_table(rows, {false, false, false, true, true, true, true, true});
}

std::string overlap_text(const std::optional<double>& overlap) {
  return overlap ? fmt::format("{:.2f}%", 100 * *overlap) : "";
}

std::string layers_text(const Report& report) {
  const LayersReport& layers = *report.layers;
  Rows rows = {
      {"layers", "isolated mean", "worst", "accumulated mean", "worst", "experts", "positions"}};
  for (const LayerAgreement& layer : layers.layers) {
    rows.push_back({fmt::format("{}{}", layer.is_mtp ? "MTP " : "", layer.layer),
                    cosine_text(layer.isolated.mean), cosine_text(layer.isolated.worst),
                    cosine_text(layer.accumulated.mean), cosine_text(layer.accumulated.worst),
                    overlap_text(layer.router_overlap), overlap_text(layer.indexer_overlap)});
  }
  std::string text = text_table(rows, {true, true, true, true, true, true, true});
  text += fmt::format("  {} tokens of {} prompts; source in {}, output in {}\n",
                      with_commas(layers.tokens), layers.prompts, layers.source_profile,
                      layers.output_profile);
  if (const auto bad = first_bad_layer(report))
    text += fmt::format("  layer {} is the first below its gate\n", *bad);
  return text;
}

std::string outputs_text(const Report& report) {
  std::string text;
  const auto logits_line = [&](std::string_view name, const LogitAgreement& logits) {
    if (logits.tokens == 0) return;
    text += fmt::format("{}  KL {} mean, {} worst; top 1 {:.2f}%, top 5 {:.2f}%\n", name,
                        short_text(logits.mean_kl), short_text(logits.worst_kl), 100 * logits.top1,
                        100 * logits.top5);
  };
  if (report.layers) {
    logits_line("logits     ", report.layers->logits);
    if (report.layers->mtp_logits) logits_line("MTP logits ", *report.layers->mtp_logits);
  }
  if (report.text) {
    text += fmt::format("perplexity   {:.5f}", report.text->output.perplexity());
    if (report.text->source)
      text += fmt::format(", source {:.5f}", report.text->source->perplexity());
    text += fmt::format(" on {} tokens of {} documents", with_commas(report.text->output.tokens),
                        with_commas(report.text->documents));
    if (report.text->documents < report.text->output.documents)
      text +=
          fmt::format(" in {} windows of the context", with_commas(report.text->output.documents));
    text += "\n";
  }
  return text;
}

std::string greedy_text(const GreedyReport& greedy) {
  std::string text =
      fmt::format("greedy       {} prompts: {} equal, {} inconclusive, {} different\n",
                  greedy.prompts.size(), greedy.equal, greedy.inconclusive, greedy.different);
  for (std::size_t i = 0; i < greedy.prompts.size(); ++i) {
    const GreedyPrompt& prompt = greedy.prompts[i];
    if (!prompt.first_difference) continue;
    text += fmt::format("  prompt {}: {} at token {} (top-2 gap {}, limit {})\n", i + 1,
                        greedy_outcome_name(prompt.outcome), *prompt.first_difference,
                        short_text(prompt.gap), short_text(prompt.limit));
  }
  return text;
}

std::string failed_gates_text(const Report& report) {
  Rows rows = {{"failed gates", "worst", "beyond it", "worst at", "set by"}};
  for (const GateResult& result : report.gates) {
    if (result.passed) continue;
    rows.push_back(
        {gate_text(result.gate), result.checked == 0 ? "not measured" : exact_text(result.worst),
         fmt::format("{} of {}", with_commas(result.failed), with_commas(result.checked)),
         printable_text(result.subject), printable_text(result.gate.origin)});
  }
  return rows.size() == 1 ? "" : text_table(rows, {false, true, true, false, false});
}

std::string findings_text(const StructureReport& structure) {
  std::string text;
  const auto& findings = structure.findings;
  for (std::size_t i = 0; i < std::min(findings.size(), kFindings); ++i) {
    const formats::Finding& finding = findings[i];
    const std::string& subject = finding.tensor.empty() ? finding.file : finding.tensor;
    text += fmt::format(
        "{}: {}{}{}\n", finding.severity == formats::Severity::kError ? "error" : "warning",
        subject.empty() ? "" : printable_text(subject) + ": ", printable_text(finding.message),
        finding.rule.empty() ? "" : fmt::format(" ({})", finding.rule));
  }
  if (findings.size() > kFindings)
    text += fmt::format("and {} more findings\n", with_commas(findings.size() - kFindings));
  return text;
}

}  // namespace

std::string verify_text(const Report& report) {
  std::string text = fmt::format("{}: {}\n", verify::verdict_word(report),
                                 printable_text(verdict_sentence(report)));
  text += printable_text(compared_sentence(report)) + "\n";
  const auto add = [&](const std::string& part) {
    if (!part.empty()) text += "\n" + part;
  };
  if (report.weights) add(weights_text(*report.weights));
  if (report.layers) add(layers_text(report));
  add(outputs_text(report));
  if (report.greedy) add(greedy_text(*report.greedy));
  if (report.weights) add(worst_text(*report.weights));
  add(failed_gates_text(report));
  if (report.structure) add(findings_text(*report.structure));
  std::string remarks;
  for (const std::string& reason : report.not_run)
    remarks += "not run: " + printable_text(reason) + "\n";
  for (const std::string& warning : report.warnings)
    remarks += "warning: " + printable_text(warning) + "\n";
  add(remarks);
  return text;
}

}  // namespace ingot::cli
