#include "verify/report/verdict.h"

#include <algorithm>

#include <fmt/format.h>

#include "verify/report/figures.h"

namespace ingot::verify {
namespace {

std::string counted(std::uint64_t n, std::string_view one, std::string_view many) {
  return fmt::format("{} {}", count_text(n), n == 1 ? one : many);
}

std::string failure_text(const Report& report, const GateResult& result) {
  const std::string gate = gate_text(result.gate);
  if (result.checked == 0) return fmt::format("{} was demanded, and nothing was measured", gate);
  if (result.gate.metric == "structure.errors") {
    return fmt::format("{} in the structure, first {}",
                       counted(report.structure->errors(), "error", "errors"), result.subject);
  }
  if (const auto layer = first_bad_layer(report);
      layer && (result.gate.metric == "layers.cosine" || result.gate.metric == "mtp.cosine")) {
    return fmt::format("layer {} is the first below {} ({} of {} are, worst {} at {})", *layer,
                       gate, result.failed, result.checked, cosine_text(result.worst),
                       result.subject);
  }
  std::string text = fmt::format("{} does not hold: {}", gate, short_text(result.worst));
  if (result.gate.metric.ends_with("cosine")) {
    text = fmt::format("{} does not hold: {}", gate, cosine_text(result.worst));
  }
  if (!result.subject.empty()) text += " at " + result.subject;
  if (result.checked > 1) {
    text += fmt::format(", worst of {} among {}", count_text(result.failed),
                        count_text(result.checked));
  }
  return text;
}

std::string measured_text(const Report& report) {
  std::string text;
  const auto add = [&](const std::string& part) { text += (text.empty() ? "" : ", ") + part; };
  if (report.structure)
    add("structure of " + counted(report.structure->tensors, "tensor", "tensors"));
  if (report.weights)
    add("weights of " + counted(report.weights->tensors.size(), "tensor", "tensors"));
  if (report.layers) {
    add(counted(report.layers->layers.size(), "layer", "layers") + " on " +
        counted(report.layers->tokens, "token", "tokens"));
  }
  if (report.greedy)
    add("answers to " + counted(report.greedy->prompts.size(), "prompt", "prompts"));
  if (report.text) add("perplexity of " + counted(report.text->output.tokens, "token", "tokens"));
  return text.empty() ? "nothing" : text;
}

}  // namespace

std::string gate_text(const Gate& gate) {
  return fmt::format("{}{} {} {}", gate.metric,
                     gate.group.empty() ? "" : fmt::format("[{}]", gate.group),
                     gate.bound == Bound::kAtLeast ? ">=" : "<=", gate.limit);
}

std::string verdict_sentence(const Report& report) {
  if (!report.not_run.empty()) return "not everything could be run: " + report.not_run.front();
  const auto failed = [](const GateResult& result) { return !result.passed; };
  const auto first = std::find_if(report.gates.begin(), report.gates.end(), failed);
  if (first == report.gates.end()) {
    return fmt::format("{} compared, {} held", measured_text(report),
                       counted(report.gates.size(), "gate", "gates"));
  }
  std::string text = failure_text(report, *first);
  const auto others = std::count_if(first + 1, report.gates.end(), failed);
  if (others > 0) {
    text += fmt::format(
        "; {}", counted(static_cast<std::uint64_t>(others), "more gate fails", "more gates fail"));
  }
  return text;
}

std::string compared_sentence(const Report& report) {
  const auto side = [](const SideFacts& facts) {
    std::string schemes;
    for (std::size_t i = 0; i < std::min<std::size_t>(facts.schemes.size(), 3); ++i)
      schemes += (i == 0 ? "" : ", ") + facts.schemes[i].scheme;
    return fmt::format("{} ({}: {})", facts.name, facts.dialect, schemes);
  };
  std::string text = side(report.output);
  if (report.source) text += " against " + side(*report.source);
  if (!report.reference.empty()) text += " against activations recorded by " + report.reference;
  return text;
}

}  // namespace ingot::verify
