#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "report/figures.h"
#include "verify/gates/report.h"
#include "verify/report/sections.h"

namespace ingot::verify {
namespace {

std::string counted(std::uint64_t n, std::string_view one, std::string_view many) {
  return fmt::format("{} {}", count_text(n), n == 1 ? one : many);
}

// Why values of the subject are misrounded, where that is known.
std::string cause_text(const Report& report, const GateResult& result) {
  if (!report.weights || !result.gate.metric.starts_with("weights.")) return {};
  const auto& tensors = report.weights->tensors;
  const auto subject = std::find_if(tensors.begin(), tensors.end(), [&](const auto& tensor) {
    return tensor.name == result.subject;
  });
  return subject == tensors.end() ? std::string() : subject->cause;
}

std::string failure_text(const Report& report, const GateResult& result) {
  const std::string gate = gate_text(result);
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
  const bool is_cosine = result.gate.metric.ends_with("cosine");
  std::string text = fmt::format("{} does not hold: {}", gate,
                                 is_cosine ? cosine_text(result.worst) : short_text(result.worst));
  if (!result.subject.empty()) text += " at " + result.subject;
  if (const std::string cause = cause_text(report, result); !cause.empty())
    text += fmt::format(" ({})", cause);
  if (result.checked > 1) {
    text += fmt::format(", worst of {} among {}", count_text(result.failed),
                        count_text(result.checked));
  }
  return text;
}

// The subject of a level, and the metrics by which it is judged.
struct Looked {
  std::string what;
  std::vector<std::string_view> metrics;  // beginnings of names
};

std::vector<Looked> looked_at(const Report& report) {
  std::vector<Looked> looked;
  if (report.structure) {
    looked.push_back({"structure of " + counted(report.structure->tensors, "tensor", "tensors"),
                      {"structure."}});
  }
  if (report.weights) {
    looked.push_back({"weights of " + counted(report.weights->tensors.size(), "tensor", "tensors"),
                      {"weights."}});
  }
  // Without a text, the perplexity is that of the prompts.
  const std::string_view prompts = report.text ? "layers." : "outputs.";
  if (report.layers) {
    looked.push_back({counted(report.layers->layers.size(), "layer", "layers") + " on " +
                          counted(report.layers->tokens, "token", "tokens"),
                      {"layers.", "mtp.", "cache.", "outputs.kl", "outputs.top", prompts}});
  }
  if (report.greedy) {
    looked.push_back(
        {"answers to " + counted(report.greedy->prompts.size(), "prompt", "prompts"), {"greedy."}});
  }
  if (report.draft)
    looked.push_back({counted(report.draft->tokens, "draft", "drafts"), {"draft."}});
  if (report.text) {
    looked.push_back({"perplexity of " + counted(report.text->output.tokens, "token", "tokens"),
                      {"outputs.perplexity", "text."}});
  }
  return looked;
}

bool is_judged(const Report& report, const Looked& looked) {
  return std::any_of(report.gates.begin(), report.gates.end(), [&](const GateResult& result) {
    return result.checked > 0 &&
           std::any_of(looked.metrics.begin(), looked.metrics.end(), [&](std::string_view begin) {
             return result.gate.metric.starts_with(begin);
           });
  });
}

std::string success_text(const Report& report) {
  const Coverage coverage = coverage_of(report);
  std::string text = "nothing was judged";
  if (!coverage.judged.empty())
    text = fmt::format("{} compared, {} held", fmt::join(coverage.judged, ", "),
                       counted(report.gates.size(), "gate", "gates"));
  if (!coverage.measured.empty())
    text += fmt::format("; {} only measured (no gate by default: --require makes one)",
                        fmt::join(coverage.measured, ", "));
  if (!coverage.not_judged.empty())
    text += fmt::format("; not judged by these levels: {}", fmt::join(coverage.not_judged, ", "));
  return text;
}

}  // namespace

bool Report::passed() const {
  return not_run.empty() && std::all_of(gates.begin(), gates.end(),
                                        [](const GateResult& result) { return result.passed; });
}

std::optional<std::size_t> first_bad_layer(const Report& report) {
  if (!report.layers) return std::nullopt;
  const auto is_below = [&](const LayerAgreement& layer) {
    const std::string_view metric = layer.is_mtp ? "mtp.cosine" : "layers.cosine";
    return std::any_of(report.gates.begin(), report.gates.end(), [&](const GateResult& result) {
      return result.gate.metric == metric && !result.passed && result.checked > 0 &&
             !(layer.isolated.mean >= result.gate.limit);  // NaN too
    });
  };
  const auto& layers = report.layers->layers;
  const auto bad = std::find_if(layers.begin(), layers.end(), is_below);
  return bad == layers.end() ? std::nullopt : std::optional(bad->layer);
}

Coverage coverage_of(const Report& report) {
  Coverage coverage;
  for (const Looked& looked : looked_at(report))
    (is_judged(report, looked) ? coverage.judged : coverage.measured).push_back(looked.what);
  // Static scales are judged by hashes of a manifest, or by the forward pass, which rounds by them.
  const bool is_compared =
      report.structure && (report.structure->hashed > 0 || report.structure->input_scales > 0);
  if (report.output.static_inputs > 0 && !is_compared && !report.layers) {
    coverage.not_judged.push_back(fmt::format(
        "{} of activations (no manifest was compared: give --activation-scales FILE, or --levels "
        "layers, which computes with them)",
        counted(report.output.static_inputs, "static scale", "static scales")));
  }
  return coverage;
}

std::string_view verdict_word(const Report& report) {
  if (!report.passed()) return "FAIL";
  return coverage_of(report).judged.empty() ? "NOT JUDGED" : "PASS";
}

std::string gate_text(const GateResult& result) {
  const Gate& gate = result.gate;
  return fmt::format("{}{} {} {}", gate.metric,
                     gate.group.empty() ? "" : fmt::format("[{}]", gate.group),
                     gate.bound == Bound::kAtLeast ? ">=" : "<=", result.limit);
}

std::string verdict_sentence(const Report& report) {
  if (!report.not_run.empty()) return "not everything could be run: " + report.not_run.front();
  const auto failed = [](const GateResult& result) { return !result.passed; };
  const auto first = std::find_if(report.gates.begin(), report.gates.end(), failed);
  if (first == report.gates.end()) return success_text(report);
  std::string text = failure_text(report, *first);
  const auto others = std::count_if(first + 1, report.gates.end(), failed);
  if (others > 0) {
    text += fmt::format(
        "; {}", counted(static_cast<std::uint64_t>(others), "more gate fails", "more gates fail"));
  }
  return text;
}

std::string side_text(const CheckpointFacts& facts) {
  std::string schemes;
  for (std::size_t i = 0; i < std::min<std::size_t>(facts.schemes.size(), 3); ++i)
    schemes += (i == 0 ? "" : ", ") + facts.schemes[i].scheme;
  return fmt::format("{} ({}: {})", facts.name, facts.dialect, schemes);
}

std::string compared_sentence(const Report& report) {
  std::string text = side_text(report.output);
  if (report.source) text += " against " + side_text(*report.source);
  if (!report.reference.empty()) text += " against activations recorded by " + report.reference;
  return text;
}

}  // namespace ingot::verify
