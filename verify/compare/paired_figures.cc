#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <map>
#include <span>
#include <tuple>
#include <utility>

#include "verify/compare/comparison.h"

// A metric has a value per tensor, layer or prompt, or one for the whole report. Values of the same
// subject are pairs. Figures that are measured token by token have an interval, too: means of a few
// prompts differ by chance.

namespace ingot::verify {
namespace {

// The figures that matter most for a deployment come first, behind those of damage.
constexpr std::array<std::string_view, 7> kOrder = {"outputs.", "text.",   "greedy.", "draft.",
                                                    "mtp.",     "layers.", "weights."};

// A value of a metric as an error, whose best is 0.
double error_of(std::string_view metric, std::optional<Bound> good, double value) {
  if (metric == "weights.sqnr") return std::pow(10, -value / 20);
  return good == Bound::kAtLeast ? 1 - value : value;
}

struct Value {
  std::string subject;
  double value = 0;
};

std::vector<Value> values_of(const Metric& metric, const Report& report) {
  std::vector<Value> values;
  metric.values(report, [&](double value, std::string_view, const std::string& subject) {
    values.push_back({subject, value});
  });
  return values;
}

// Means, counts and the farthest pair of a figure in the making.
class Pairs {
 public:
  explicit Pairs(PairedFigure figure) : figure_(std::move(figure)) {}

  void add(double a, double b, const std::string& subject) {
    ++figure_.pairs;
    last_ = {a, b};
    if (std::isfinite(a) && std::isfinite(b)) {
      figure_.a += a;
      figure_.b += b;
      ++n_finite_;
    }
    if (!are_apart(error_of(figure_.name, figure_.good, a),
                   error_of(figure_.name, figure_.good, b)))
      return;
    count_closer(a, b);
    const double apart = std::abs(b - a);
    if (!(apart <= farthest_)) {
      farthest_ = std::isnan(apart) ? HUGE_VAL : apart;
      figure_.farthest = subject;
    }
  }

  PairedFigure finish() {
    const double n = n_finite_ == 0 ? NAN : static_cast<double>(n_finite_);
    figure_.a /= n;
    figure_.b /= n;
    if (figure_.pairs == 1) {  // a single pair has no mean: its values are shown
      std::tie(figure_.a, figure_.b) = last_;
      figure_.farthest.clear();
    }
    figure_.difference = figure_.a == figure_.b ? 0 : figure_.b - figure_.a;
    return std::move(figure_);
  }

 private:
  // NaN is farther than every number.
  void count_closer(double a, double b) {
    if (!figure_.good) return;
    const bool is_larger = b > a;
    const bool b_is_closer =
        !std::isnan(b) && (std::isnan(a) || is_larger == (*figure_.good == Bound::kAtLeast));
    ++(b_is_closer ? figure_.b_closer : figure_.a_closer);
  }

  PairedFigure figure_;
  std::uint64_t n_finite_ = 0;
  double farthest_ = -1;
  std::pair<double, double> last_;
};

std::optional<PairedFigure> figure_of(const Metric& metric, const Report& a, const Report& b) {
  const std::vector<Value> of_a = values_of(metric, a), of_b = values_of(metric, b);
  if (of_a.empty() || of_b.empty()) return std::nullopt;
  Pairs pairs({.name = std::string(metric.name), .summary = metric.summary, .good = metric.bound});
  if (of_a.size() == 1 && of_b.size() == 1) {  // the subject says where the worst is
    pairs.add(of_a[0].value, of_b[0].value, {});
    return pairs.finish();
  }
  std::map<std::string_view, double> by_subject;
  for (const Value& value : of_b) by_subject.emplace(value.subject, value.value);
  bool has_any = false;
  for (const Value& value : of_a) {
    const auto partner = by_subject.find(value.subject);
    if (partner == by_subject.end()) continue;
    pairs.add(value.value, partner->second, value.subject);
    has_any = true;
  }
  return has_any ? std::optional(pairs.finish()) : std::nullopt;
}

constexpr std::string_view kPrompts = "prompts", kDocuments = "documents";

// The values of one sample on both sides: `count` tokens of a prompt or document.
struct Sample {
  std::size_t cluster = 0;
  std::uint64_t count = 1;
  double a = 0, b = 0;  // sums over the tokens
};

struct Sampled {
  std::string_view name, drawn;
  std::string_view summary = {};  // of a figure that is no metric
};

// Prompts are too few to be drawn anew, documents may have any distribution.
std::optional<Interval> interval_of(std::string_view drawn, std::span<const ClusterSum> clusters) {
  return drawn == kDocuments ? bootstrap_interval(clusters) : mean_interval(clusters);
}

// Attaches the interval to the metric's figure; a likelihood becomes a figure.
void add_samples(const Sampled& what, std::span<const Sample> samples,
                 std::vector<PairedFigure>& figures) {
  std::map<std::size_t, ClusterSum> by_cluster;
  double a = 0, b = 0;
  std::uint64_t tokens = 0;
  for (const Sample& sample : samples) {
    ClusterSum& cluster = by_cluster[sample.cluster];
    cluster.sum += sample.b - sample.a;
    cluster.count += sample.count;
    a += sample.a;
    b += sample.b;
    tokens += sample.count;
  }
  if (tokens == 0) return;
  auto figure = std::find_if(figures.begin(), figures.end(),
                             [&](const PairedFigure& other) { return other.name == what.name; });
  if (figure == figures.end()) {
    const auto n = static_cast<double>(tokens);
    figures.push_back({.name = std::string(what.name),
                       .summary = what.summary,
                       .pairs = tokens,
                       .a = a / n,
                       .b = b / n,
                       .difference = (b - a) / n});
    figure = figures.end() - 1;
  }
  std::vector<ClusterSum> clusters;
  for (const auto& [unused, cluster] : by_cluster) clusters.push_back(cluster);
  figure->tokens = tokens;
  figure->clusters = clusters.size();
  figure->drawn = what.drawn;
  figure->interval = interval_of(what.drawn, clusters);
}

// The value of a token, where it has one.
using OfToken = std::function<std::optional<double>(const TokenDivergence&)>;

std::vector<Sample> samples_of(const std::vector<TokenDivergence>& a,
                               const std::vector<TokenDivergence>& b, const OfToken& value) {
  std::vector<Sample> samples;
  for (std::size_t i = 0; i < a.size() && a.size() == b.size(); ++i) {
    const std::optional<double> of_a = value(a[i]), of_b = value(b[i]);
    if (of_a && of_b) samples.push_back({.cluster = a[i].prompt, .a = *of_a, .b = *of_b});
  }
  return samples;
}

void add_token_samples(const LayersReport& a, const LayersReport& b,
                       std::vector<PairedFigure>& figures) {
  struct Row {
    std::string_view name, summary;
    std::vector<TokenDivergence> LayersReport::*tokens;
    std::optional<double> (*value)(const TokenDivergence&);
  };
  static constexpr auto kKl = [](const TokenDivergence& token) { return std::optional(token.kl); };
  const std::array kRows = {
      Row{"outputs.kl", {}, &LayersReport::tokens_of_logits, kKl},
      Row{"outputs.top1",
          {},
          &LayersReport::tokens_of_logits,
          [](const TokenDivergence& token) { return std::optional(token.same_top ? 1.0 : 0.0); }},
      Row{"outputs.top5",
          {},
          &LayersReport::tokens_of_logits,
          [](const TokenDivergence& token) { return std::optional(token.top5); }},
      Row{"outputs.nll", "mean -ln(probability) of the prompts' next tokens",
          &LayersReport::tokens_of_logits,
          [](const TokenDivergence& token) { return token.output_nll; }},
      Row{"mtp.kl", {}, &LayersReport::tokens_of_mtp, kKl},
  };
  for (const Row& row : kRows) {
    add_samples({row.name, kPrompts, row.summary},
                samples_of(a.*row.tokens, b.*row.tokens, row.value), figures);
  }
}

// The metric of perplexity is the distance of ln(perplexity) from the source's, on whichever side
// of it the output is: a mean of the samples' distances with one sign.
void add_distances(std::string_view drawn, std::span<const Sample> samples,
                   std::span<const double> source, std::vector<PairedFigure>& figures) {
  double of_a = 0, of_b = 0;
  for (std::size_t i = 0; i < samples.size(); ++i) {
    of_a += samples[i].a - source[i];
    of_b += samples[i].b - source[i];
  }
  std::vector<Sample> distances(samples.begin(), samples.end());
  for (std::size_t i = 0; i < samples.size(); ++i) {
    distances[i].a = std::copysign(1, of_a) * (samples[i].a - source[i]);
    distances[i].b = std::copysign(1, of_b) * (samples[i].b - source[i]);
  }
  add_samples({"outputs.perplexity", drawn}, distances, figures);
}

void add_prompt_distances(const LayersReport& a, const LayersReport& b,
                          std::vector<PairedFigure>& figures) {
  const auto output = [](const TokenDivergence& token) { return token.output_nll; };
  std::vector<double> source;
  for (const TokenDivergence& token : a.tokens_of_logits)
    if (token.source_nll) source.push_back(*token.source_nll);
  const std::vector<Sample> samples = samples_of(a.tokens_of_logits, b.tokens_of_logits, output);
  if (samples.size() == source.size()) add_distances(kPrompts, samples, source, figures);
}

void add_text_samples(const TextReport& a, const TextReport& b,
                      std::vector<PairedFigure>& figures) {
  const std::vector<SequenceLikelihood>& of_a = a.output.sequences;
  const std::vector<SequenceLikelihood>& of_b = b.output.sequences;
  const auto of_text = [&](double SequenceLikelihood::*value) {
    std::vector<Sample> samples;
    for (std::size_t i = 0; i < of_a.size() && of_a.size() == of_b.size(); ++i) {
      samples.push_back({.cluster = of_a[i].document,
                         .count = of_a[i].tokens,
                         .a = of_a[i].*value,
                         .b = of_b[i].*value});
    }
    return samples;
  };
  if (a.source && b.source)
    add_samples({"text.kl", kDocuments}, of_text(&SequenceLikelihood::kl), figures);
  const std::vector<Sample> samples = of_text(&SequenceLikelihood::nll);
  add_samples(
      {"text.nll", kDocuments, "mean -ln(probability) of the text's tokens: ln(perplexity)"},
      samples, figures);
  std::vector<double> source;
  if (a.source)
    for (const SequenceLikelihood& sequence : a.source->sequences) source.push_back(sequence.nll);
  if (samples.size() == source.size()) add_distances(kDocuments, samples, source, figures);
}

std::size_t place_of(const PairedFigure& figure) {
  const auto damage = std::ranges::find(kDamageMetrics, figure.name);
  if (damage != kDamageMetrics.end())
    return static_cast<std::size_t>(damage - kDamageMetrics.begin());
  const auto at = std::ranges::find_if(
      kOrder, [&](std::string_view begin) { return figure.name.starts_with(begin); });
  return kDamageMetrics.size() + static_cast<std::size_t>(at - kOrder.begin());
}

}  // namespace

bool are_apart(double a, double b) {
  constexpr double kHundredthOfADecibel = 0.00115, kRounding = 1e-8;
  if (std::isnan(a) || std::isnan(b)) return std::isnan(a) != std::isnan(b);
  if (std::isinf(a) || std::isinf(b)) return a != b;
  return std::abs(a - b) >
         std::max(kRounding, kHundredthOfADecibel * std::max(std::abs(a), std::abs(b)));
}

Closer PairedFigure::closer() const {
  if (!good) return Closer::kNeither;
  if (a_closer == 0 && b_closer == 0) return Closer::kEqual;
  if (interval && interval->contains(0)) return Closer::kUndecided;
  if (difference == 0 || std::isnan(difference)) {  // only by infinite or undefined values
    if (a_closer == b_closer) return Closer::kUndecided;
    return a_closer > b_closer ? Closer::kA : Closer::kB;
  }
  return (difference > 0) == (*good == Bound::kAtLeast) ? Closer::kB : Closer::kA;
}

std::vector<PairedFigure> paired_figures(const Report& a, const Report& b) {
  std::vector<PairedFigure> figures;
  for (const Metric& metric : metrics()) {
    if (auto figure = figure_of(metric, a, b)) figures.push_back(std::move(*figure));
  }
  if (a.layers && b.layers) add_token_samples(*a.layers, *b.layers, figures);
  if (a.text && b.text) {
    add_text_samples(*a.text, *b.text, figures);
  } else if (a.layers && b.layers) {
    add_prompt_distances(*a.layers, *b.layers, figures);
  }
  std::stable_sort(figures.begin(), figures.end(),
                   [](const PairedFigure& one, const PairedFigure& other) {
                     return place_of(one) < place_of(other);
                   });
  return figures;
}

}  // namespace ingot::verify
