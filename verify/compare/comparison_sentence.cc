#include <algorithm>
#include <cmath>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "formats/text/spelling.h"
#include "report/figures.h"
#include "verify/compare/comparison.h"

namespace ingot::verify {
namespace {

constexpr std::size_t kMostRoles = 4;

// "mean KL 2.3e-05 against 0.0003, B - A = ...".
std::string kl_sentence(const PairedFigure& kl) {
  std::string text =
      fmt::format("mean KL of A {}, of B {} nats", short_text(kl.a), short_text(kl.b));
  if (kl.interval) {
    text += fmt::format(" (B − A {}, 95% from {} to {})", short_text(kl.difference),
                        short_text(kl.interval->low), short_text(kl.interval->high));
  }
  return text;
}

// Where the side that loses on the whole is closer.
std::string exceptions(const std::vector<PairedTensor>& tensors, bool b_wins) {
  std::vector<std::string> roles;
  for (const PairedGroup& group : paired_groups(tensors, {.by_role = true})) {
    const double difference = group.difference_db();
    if (b_wins ? difference < 0 : difference > 0) roles.push_back(group.role);
  }
  if (roles.empty()) return {};
  const std::size_t n_more = roles.size() - std::min(roles.size(), kMostRoles);
  roles.resize(roles.size() - n_more);
  return fmt::format(", but not in {}{}", fmt::join(roles, ", "),
                     n_more == 0 ? "" : fmt::format(" and {} more roles", n_more));
}

std::string weights_sentence(const std::vector<PairedTensor>& tensors) {
  PairedGroup all;
  for (PairedGroup& group : paired_groups(tensors, {})) all = std::move(group);
  const double difference = all.difference_db();
  if (all.a_closer == 0 && all.b_closer == 0) {
    return fmt::format("the weights of both are equally close in all {} tensors",
                       count_text(all.tensors));
  }
  const bool b_wins = difference == 0 ? all.b_closer > all.a_closer : difference > 0;
  return fmt::format(
      "the weights of {} are closer, SQNR of A {}, of B {} dB; A is closer in {} and "
      "B in {} of {} tensors{}",
      b_wins ? "B" : "A", decibel_text(all.a.sqnr_db()), decibel_text(all.b.sqnr_db()),
      count_text(all.a_closer), count_text(all.b_closer), count_text(all.tensors),
      exceptions(tensors, b_wins));
}

std::string outputs_text(const PairedFigure& kl) {
  switch (kl.closer()) {
    case Closer::kA:
      return "the outputs of A are closer, " + kl_sentence(kl);
    case Closer::kB:
      return "the outputs of B are closer, " + kl_sentence(kl);
    case Closer::kEqual:
      return "the outputs of both are equally close";
    default:
      return fmt::format("the {} do not tell the outputs apart, {}", kl.drawn, kl_sentence(kl));
  }
}

std::vector<std::string> damage_of(const std::vector<PairedFigure>& figures) {
  std::vector<std::string> parts;
  for (const PairedFigure& figure : figures) {
    if (!is_in(kDamageMetrics, figure.name) || (figure.a == 0 && figure.b == 0)) continue;
    const auto n = static_cast<double>(figure.pairs);
    parts.push_back(fmt::format("{} of A {}, of B {}", figure.name, short_text(figure.a * n),
                                short_text(figure.b * n)));
  }
  return parts;
}

std::string difference_text(const Report& report) {
  std::string text;
  if (report.weights) {
    ElementSums all;
    std::uint64_t identical = 0;
    for (const TensorWeights& tensor : report.weights->tensors) {
      all.add(tensor.sums);
      identical += tensor.relation == Relation::kIdentical ? 1 : 0;
    }
    const std::uint64_t n_tensors = report.weights->tensors.size();
    text += fmt::format("the values of {} of {} tensors are stored otherwise, relative error {}; ",
                        count_text(n_tensors - identical), count_text(n_tensors),
                        short_text(all.relative_error()));
  }
  if (report.layers && report.layers->logits.tokens > 0) {
    text += fmt::format("mean KL(A, B) {} nats, {} of likeliest tokens the same; ",
                        short_text(report.layers->logits.mean_kl),
                        percent_text(report.layers->logits.top1));
  }
  return text + "this is a difference, not a quality (--reference SOURCE tells which is closer)";
}

}  // namespace

std::string comparison_sentence(const Comparison& comparison) {
  if (!comparison.a) return difference_text(comparison.b);
  const std::vector<PairedFigure> figures = paired_figures(*comparison.a, comparison.b);
  std::vector<std::string> parts = damage_of(figures);
  // A text has more documents than there are prompts.
  for (const std::string_view name : {"text.kl", "outputs.kl"}) {
    const auto kl = std::ranges::find(figures, name, &PairedFigure::name);
    if (kl == figures.end()) continue;
    parts.push_back(outputs_text(*kl));
    break;
  }
  const std::vector<PairedTensor> tensors = paired_tensors(*comparison.a, comparison.b);
  if (!tensors.empty()) parts.push_back(weights_sentence(tensors));
  if (parts.empty())
    return figures.empty() ? "no level gave a figure of both" : "no error in the structure of both";
  return fmt::format("{}", fmt::join(parts, "; "));
}

}  // namespace ingot::verify
