#include <algorithm>
#include <cmath>
#include <limits>

#include <fmt/format.h>

#include "formats/base/error.h"
#include "formats/base/words.h"
#include "formats/text/spelling.h"
#include "report/figures.h"
#include "verify/compare/comparison.h"

// A sample of documents can show that A is worse than B, or that it is not, or neither. A gate has
// to be sure: "no worse" is what the whole interval says, so that its bad end decides. Two outputs
// of the same quality pass with a margin, or with as many documents as make the interval narrow.

namespace ingot::verify {
namespace {

DemandResult judge_demand(const Demand& demand, std::span<const PairedFigure> figures) {
  DemandResult result{.demand = demand, .worse = std::numeric_limits<double>::quiet_NaN()};
  const auto figure = std::ranges::find(figures, demand.figure, &PairedFigure::name);
  if (figure == figures.end()) {
    result.reason = "not measured by these levels and texts";
    return result;
  }
  const bool more_is_worse = figure->good == Bound::kAtMost;
  const auto loss = [&](double b_less_a) { return more_is_worse ? -b_less_a : b_less_a; };
  result.reason =
      fmt::format("A {}, B {}", exact_text(figure->a), exact_text(figure->b));
  if (figure->closer() == Closer::kEqual) {
    result.worse = 0;
  } else if (figure->clusters == 0) {
    // Means leave out values that are no numbers, which are worse than any.
    const bool is_whole = std::isfinite(figure->a) && std::isfinite(figure->b);
    if (is_whole) result.worse = loss(figure->difference);
  } else if (!figure->interval) {
    const std::string_view one = figure->drawn.substr(0, figure->drawn.size() - 1);
    result.reason += fmt::format("; {}", figure->clusters > 1
                                             ? "no interval of values that are no numbers"
                                             : fmt::format("one {} gives no interval", one));
  } else {
    result.worse = more_is_worse ? -figure->interval->low : figure->interval->high;
    result.reason += fmt::format("; A is worse by {}, 95% at most {}",
                                 short_text(loss(figure->difference)), short_text(result.worse));
  }
  result.holds = result.worse <= demand.margin;
  return result;
}

}  // namespace

Demand parse_demand(std::string_view text) {
  const auto refuse = [&](std::string_view what) {
    return Error(ErrorCode::kInvalidArgument,
                 "--require '{}': {} (as in \"text.kl<=B\", \"text.kl<=B+1e-6\" or "
                 "\"outputs.top1>=B-0.01\")",
                 text, what);
  };
  const std::size_t bound = text.find_first_of("<>");
  if (bound == std::string_view::npos || !text.substr(bound + 1).starts_with("=B"))
    throw refuse("neither <=B nor >=B in it");
  const std::string_view name = text.substr(0, bound), margin = text.substr(bound + 3);
  const Metric* metric = find_metric(name);
  if (metric == nullptr) refuse_word("metric", name, metrics(), &Metric::name);
  const bool at_least = metric->bound == Bound::kAtLeast;
  if ((text[bound] == '>') != at_least)
    throw refuse(at_least ? "more of it is better: write >=B" : "less of it is better: write <=B");
  Demand demand{.figure = std::string(name)};
  if (margin.empty()) return demand;
  const auto value = number_from<double>(margin.substr(1));
  if (margin.front() != (at_least ? '-' : '+') || !value || !(*value >= 0) ||
      !std::isfinite(*value)) {
    throw refuse(at_least ? "the margin behind B is -NUMBER" : "the margin behind B is +NUMBER");
  }
  demand.margin = *value;
  return demand;
}

std::string demand_text(const Demand& demand) {
  const bool at_least = find_metric(demand.figure)->bound == Bound::kAtLeast;
  return fmt::format("{}{}B{}", demand.figure, at_least ? ">=" : "<=",
                     demand.margin == 0
                         ? ""
                         : fmt::format("{}{}", at_least ? "-" : "+", demand.margin));
}

std::vector<DemandResult> judge_demands(const Comparison& comparison) {
  std::vector<DemandResult> results;
  if (!comparison.a || comparison.demands.empty()) return results;
  const std::vector<PairedFigure> figures = paired_figures(*comparison.a, comparison.b);
  for (const Demand& demand : comparison.demands) results.push_back(judge_demand(demand, figures));
  return results;
}

bool Comparison::passed() const {
  return std::ranges::all_of(judge_demands(*this), &DemandResult::holds);
}

}  // namespace ingot::verify
