#include <algorithm>

#include <fmt/format.h>

#include "verify/report/figures.h"
#include "verify/report/report.h"
#include "verify/report/verdict.h"

namespace ingot::verify {
namespace {

constexpr std::size_t kFindings = 20;

// Text on one line, with nothing in it that Markdown or HTML would read.
std::string plain(std::string_view text) {
  constexpr std::string_view kEscaped = "\\`*_[]|#";
  std::string out;
  for (const char c : printable_text(text)) {
    if (c == '<') {
      out += "&lt;";
    } else if (c == '&') {
      out += "&amp;";
    } else if (c == '\n') {
      out += ' ';
    } else {
      if (kEscaped.find(c) != std::string_view::npos) out += '\\';
      out += c;
    }
  }
  return out;
}

// A name in code style, where only what ends it matters.
std::string code(std::string_view text) {
  std::string out;
  for (const char c : printable_text(text)) out += c == '`' || c == '\n' ? ' ' : c;
  return "`" + out + "`";
}

std::string gates_part(const Report& report) {
  if (report.gates.empty()) return {};
  std::string text = "\n| gate | worst | of | |\n|---|---:|---:|---|\n";
  for (const GateResult& result : report.gates) {
    text += fmt::format("| `{}` | {} | {} | {} |\n", gate_text(result.gate),
                        result.checked == 0 ? "not measured" : exact_text(result.worst),
                        count_text(result.checked), result.passed ? "holds" : "**fails**");
  }
  return text;
}

std::string findings_part(const Report& report) {
  if (!report.structure || report.structure->findings.empty()) return {};
  const auto& findings = report.structure->findings;
  std::string text = "\n";
  for (std::size_t i = 0; i < std::min(findings.size(), kFindings); ++i) {
    const formats::Finding& finding = findings[i];
    const std::string& subject = finding.tensor.empty() ? finding.file : finding.tensor;
    text += fmt::format("- {}{}{}\n",
                        finding.severity == formats::Severity::kError ? "**error** " : "warning ",
                        subject.empty() ? "" : code(subject) + ": ", plain(finding.message));
  }
  if (findings.size() > kFindings)
    text += fmt::format("- and {} more\n", count_text(findings.size() - kFindings));
  return text;
}

std::string weights_part(const Report& report) {
  if (!report.weights) return {};
  std::string text =
      "\n| weights | role | tensors | identical | cosine | rel. error | SQNR dB | misrounded |\n"
      "|---|---|---:|---:|---:|---:|---:|---:|\n";
  for (const WeightGroup& group : by_scheme_and_role(*report.weights)) {
    text += fmt::format("| {} | {} | {} | {} | {} | {} | {} | {} |\n",
                        group.from == group.to ? group.to : group.from + " → " + group.to,
                        plain(group.role), count_text(group.tensors), count_text(group.identical),
                        cosine_text(group.sums.cosine()), short_text(group.sums.relative_error()),
                        decibel_text(group.sums.sqnr_db()), count_text(group.sums.misrounded));
  }
  return text;
}

std::string layers_part(const Report& report) {
  if (!report.layers) return {};
  const LayersReport& layers = *report.layers;
  const LayerAgreement* worst = nullptr;
  for (const LayerAgreement& layer : layers.layers) {
    if (worst == nullptr || !(layer.isolated.mean >= worst->isolated.mean)) worst = &layer;
  }
  std::string text = fmt::format("\nOn {} tokens of {} prompts (source in {}, output in {}):\n\n",
                                 count_text(layers.tokens), count_text(layers.prompts),
                                 layers.source_profile, layers.output_profile);
  if (worst != nullptr) {
    text += fmt::format(
        "- least mean cosine of a layer's output given the source's input: {} at "
        "layer {}{}\n",
        cosine_text(worst->isolated.mean), worst->layer, worst->is_mtp ? " (MTP)" : "");
    text += fmt::format("- after the last layer, each on its own: {}\n",
                        cosine_text(layers.layers.back().accumulated.mean));
  }
  if (layers.logits.tokens == 0) return text;
  text += fmt::format("- KL divergence {} nats per token, same likeliest token {:.2f}%\n",
                      short_text(layers.logits.mean_kl), 100 * layers.logits.top1);
  return text;
}

std::string outputs_part(const Report& report) {
  std::string text;
  if (report.text) {
    text += fmt::format("\nPerplexity {:.4f}", report.text->output.perplexity());
    if (report.text->source)
      text += fmt::format(" (source {:.4f})", report.text->source->perplexity());
    text += fmt::format(" on {} tokens.\n", count_text(report.text->output.tokens));
  }
  if (report.greedy) {
    text +=
        fmt::format("\nGreedy answers to {} prompts: {} equal, {} inconclusive, {} different.\n",
                    report.greedy->prompts.size(), report.greedy->equal,
                    report.greedy->inconclusive, report.greedy->different);
  }
  return text;
}

}  // namespace

std::string report_markdown(const Report& report) {
  const std::string_view word = verdict_word(report);
  std::string text = fmt::format("## Verification: {}\n\n{}.\n\n{}.\n",
                                 word == "PASS"   ? "pass"
                                 : word == "FAIL" ? "FAIL"
                                                  : "not judged",
                                 plain(compared_sentence(report)), plain(verdict_sentence(report)));
  text += gates_part(report);
  text += findings_part(report);
  text += weights_part(report);
  text += layers_part(report);
  text += outputs_part(report);
  const auto line = [](std::string_view side, const SideFacts& facts) {
    return fmt::format("- {}: {}, {} bytes, fingerprint `{}`\n", side, code(facts.name),
                       count_text(facts.bytes), facts.fingerprint);
  };
  text += "\n";
  if (report.source) text += line("source", *report.source);
  text += line("output", report.output);
  text += fmt::format("- verified by ingot {}\n", report.tool_version);
  return text;
}

}  // namespace ingot::verify
