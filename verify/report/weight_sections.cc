#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <numeric>
#include <set>

#include <fmt/format.h>

#include "report/figures.h"
#include "report/rows.h"
#include "report/svg.h"
#include "verify/report/sections.h"

namespace ingot::verify {

using formats::Json;

namespace {

// True if no value changed.
bool is_exact(const WeightGroup& group) {
  return group.sums.exact + group.sums.source_nonfinite == group.sums.elements;
}

// Exact groups come after the rest.
std::vector<WeightGroup>::iterator partition_exact(std::vector<WeightGroup>& groups) {
  return std::stable_partition(groups.begin(), groups.end(),
                               [](const auto& group) { return !is_exact(group); });
}

// Where little is to be read, it takes a row per pair of schemes.
std::vector<WeightGroup> summed_up(std::vector<WeightGroup> groups) {
  const auto rest = partition_exact(groups);
  std::vector<WeightGroup> shown(groups.begin(), rest);
  std::map<std::pair<std::string, std::string>, std::pair<std::size_t, std::size_t>> rows;
  for (auto group = rest; group != groups.end(); ++group) {
    const auto [row, is_new] = rows.try_emplace({group->from, group->to}, shown.size(), 0);
    if (is_new) shown.push_back({.from = group->from, .to = group->to});
    WeightGroup& sum = shown[row->second.first];
    sum.role =
        ++row->second.second == 1 ? group->role : fmt::format("{} roles", row->second.second);
    sum.tensors += group->tensors;
    sum.identical += group->identical;
    sum.sums.add(group->sums);
  }
  return shown;
}

Cell faults(const Json& count) {
  return {shown(count).text, count == 0 ? Style::kPlain : Style::kFault};
}

// The part of its elements that a row counts under `key`.
Field share_field(const char* key, bool is_shown) {
  return {number(key), "",
          [key](const Json& row) { return share_text(row.at(key), row.at("elements")); }, is_shown};
}

std::string scale_text(double scale) {
  return fmt::format("{:.4f}", scale);
}

Section schemes_section(const Report& report, Form form) {
  const WeightsReport& weights = *report.weights;
  const bool is_page = form == Form::kPage;
  // Neither of two outputs was rounded from the other.
  const bool is_rounded = !report.is_difference;
  std::vector<WeightGroup> groups = by_scheme_and_role(weights);
  if (is_page) {
    partition_exact(groups);
  } else {
    groups = summed_up(std::move(groups));
  }
  Table table =
      table_of(json_rows(groups), {change_field(is_page ? "scheme" : "weights"),
                                   {"role"},
                                   {"tensors"},
                                   {"identical"},
                                   {"cosine", "cosine", cosine_text},
                                   {"least", "least_cosine", cosine_text, is_page},
                                   {"rel. error", "relative_error", short_text},
                                   {"SQNR dB", "sqnr_db", decibel_text},
                                   {number("misrounded"), "misrounded", faults, is_rounded},
                                   share_field("saturated", is_rounded),
                                   share_field("zeroed", is_rounded && is_page),
                                   {"scale", "worst_scale", scale_text}});
  Section section{"schemes", "Weights by scheme and role", {std::move(table)}};
  if (form != Form::kText)
    section.note(fmt::format("{} tensors were compared", count_text(weights.tensors.size())));
  if (weights.unmatched > 0)
    section.note(fmt::format("{} tensors had no partner", count_text(weights.unmatched)));
  if (weights.sample < 1)
    section.note(fmt::format("{:g}% of the rows were looked at", 100 * weights.sample));
  return section;
}

Section worst_section(const Report& report, Form form, std::size_t n_worst) {
  std::vector<const TensorWeights*> worst = worst_tensors(*report.weights, n_worst);
  // Whatever has no error is no worse than the rest.
  std::erase_if(
      worst, [](const TensorWeights* tensor) { return tensor->relation == Relation::kIdentical; });
  const auto relation = [&](const Json& word) {
    const bool is_bad = !report.is_difference && (word == relation_name(Relation::kChanged) ||
                                                  word == relation_name(Relation::kNarrowed));
    return Cell(word.get<std::string>(), is_bad ? Style::kBad : Style::kPlain);
  };
  const bool is_page = form == Form::kPage;
  Table table = table_of(json_rows(worst),
                         {{name(is_page ? "tensor" : "worst tensors"), "tensor"},
                          change_field("scheme"),
                          {"", "relation", relation},
                          {"rel. error", "relative_error", short_text},
                          {"SQNR dB", "sqnr_db", decibel_text},
                          {"cosine", "cosine", cosine_text},
                          {number("misrounded"), "misrounded", faults, !report.is_difference},
                          {number("not finite"), "nonfinite", faults, is_page},
                          {"max. error", "max_error", short_text, is_page},
                          {"scale", "fitted_scale", scale_text}});
  table.least_rows = 5;
  return {"worst", "Worst tensors", {std::move(table)}};
}

// Upper ends of the steps of colour, in dB: 4-bit grids are near 20, 8-bit ones from 30 on.
constexpr std::array kSqnrSteps = {10.0, 15.0, 18.0, 21.0, 25.0, 32.0, 42.0};

std::size_t step_of(double sqnr) {
  return static_cast<std::size_t>(std::upper_bound(kSqnrSteps.begin(), kSqnrSteps.end(), sqnr) -
                                  kSqnrSteps.begin());
}

bool is_identical(const WeightGroup& group) {
  return group.identical == group.tensors;
}

std::string cell_title(const WeightGroup& group) {
  std::string text = fmt::format("layer {}, {}: ", *group.layer, group.role);
  if (is_identical(group)) return text + "identical";
  text += fmt::format("{} dB, least cosine {}", decibel_text(group.sums.sqnr_db()),
                      cosine_text(group.least_cosine));
  if (group.tensors > 1) text += fmt::format(", {} tensors", count_text(group.tensors));
  if (group.sums.misrounded > 0)
    text += fmt::format(", {} misrounded", count_text(group.sums.misrounded));
  if (group.sums.nonfinite > 0)
    text += fmt::format(", {} not finite", count_text(group.sums.nonfinite));
  return text;
}

// Tensors outside the layers are not drawn.
std::vector<HeatCell> heat_cells(const Report& report) {
  std::set<std::pair<std::uint32_t, std::string_view>> faulty;
  for (const TensorWeights& tensor : report.weights->tensors) {
    if (tensor.layer && !report.is_difference && is_fault(tensor))
      faulty.emplace(*tensor.layer, tensor.role);
  }
  std::vector<HeatCell> cells;
  for (const WeightGroup& group : by_layer_and_role(*report.weights)) {
    if (!group.layer) continue;
    const double sqnr = group.sums.sqnr_db();
    cells.push_back({.layer = *group.layer,
                     .role = group.role,
                     .style = is_identical(group)
                                  ? "same"
                                  : fmt::format("h{}", std::isnan(sqnr) ? 0 : step_of(sqnr)),
                     .title = cell_title(group),
                     .has_fault = faulty.contains({*group.layer, group.role})});
  }
  return cells;
}

std::string legend(bool has_faults) {
  std::string text = "<p class=\"legend\">SQNR, dB: ";
  for (std::size_t i = 0; i <= kSqnrSteps.size(); ++i) {
    const std::string range = i == 0 ? fmt::format("under {}", kSqnrSteps[0])
                              : i == kSqnrSteps.size()
                                  ? fmt::format("over {}", kSqnrSteps.back())
                                  : fmt::format("{}–{}", kSqnrSteps[i - 1], kSqnrSteps[i]);
    text += swatch_html(fmt::format("k{}", i), range);
  }
  text += swatch_html("k-same", "identical");
  if (has_faults) text += swatch_html("k-flaw", "has a fault", "◆");
  return text + "</p>\n";
}

constexpr double kWidth = 420, kHeight = 250, kLeft = 62, kRight = 16, kTop = 22, kBottom = 46;
constexpr int kLowDecade = -7;        // least share that is drawn
constexpr std::size_t kHalfStep = 8;  // number of bins below half a step
constexpr double kBinsPerStep = 16;

using Histogram = std::array<std::uint64_t, kStepBins>;

struct SchemeErrors {
  std::string scheme;
  Histogram bins{};
  // Values in the bins from `first` on.
  [[nodiscard]] std::uint64_t count(std::size_t first = 0) const {
    return std::accumulate(bins.begin() + first, bins.end(), std::uint64_t{0});
  }
};

// Errors of values rounded to a grid: by the output's scheme, in order of first appearance.
std::vector<SchemeErrors> errors_by_scheme(const WeightsReport& weights) {
  std::vector<SchemeErrors> all;
  for (const TensorWeights& tensor : weights.tensors) {
    if (tensor.relation != Relation::kQuantized && tensor.relation != Relation::kChanged) continue;
    auto found = std::find_if(all.begin(), all.end(), [&](const SchemeErrors& errors) {
      return errors.scheme == tensor.to;
    });
    if (found == all.end()) found = all.insert(all.end(), {.scheme = tensor.to});
    for (std::size_t i = 0; i < kStepBins; ++i) found->bins[i] += tensor.sums.step_histogram[i];
  }
  std::erase_if(all, [](const SchemeErrors& errors) { return errors.count() == 0; });
  return all;
}

double x_of(double bin) {
  return kLeft + (kWidth - kLeft - kRight) * bin / static_cast<double>(kStepBins);
}

// Shares are on a logarithmic axis: it must show one value in a million beyond half a step.
double y_of(double decade) {
  const double part = std::clamp((decade - kLowDecade) / -kLowDecade, 0.0, 1.0);
  return kHeight - kBottom - part * (kHeight - kBottom - kTop);
}

std::string bin_title(std::size_t bin, std::uint64_t values, std::uint64_t all) {
  const double low = static_cast<double>(bin) / kBinsPerStep;
  const std::string range =
      bin + 1 == kStepBins ? fmt::format("{} steps and more", low)
                           : fmt::format("{:.4g} to {:.4g} steps", low, low + 1 / kBinsPerStep);
  return fmt::format("{}: {} values, {}", range, count_text(values), share_text(values, all));
}

std::string drawing(const SchemeErrors& errors) {
  Svg svg(kWidth, kHeight, fmt::format("errors of {} in grid steps", errors.scheme), true);
  const std::uint64_t all = errors.count();
  for (int decade = kLowDecade; decade <= 0; ++decade) {
    svg.line({kLeft, y_of(decade)}, {kWidth - kRight, y_of(decade)},
             decade == kLowDecade ? "axis" : "grid");
    svg.text({kLeft - 7, y_of(decade) + 4}, "end", power_of_ten(decade));
  }
  for (std::size_t bin = 0; bin < kStepBins; ++bin) {
    if (errors.bins[bin] == 0) continue;
    const double share = static_cast<double>(errors.bins[bin]) / static_cast<double>(all);
    const double top = std::min(y_of(std::log10(share)), y_of(kLowDecade) - 2);
    svg.rect({x_of(static_cast<double>(bin)) + 1, top}, x_of(1) - x_of(0) - 2,
             y_of(kLowDecade) - top, bin < kHalfStep ? "a" : "fault",
             bin_title(bin, errors.bins[bin], all));
  }
  for (const double steps : {0.0, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5}) {
    svg.text({x_of(steps * kBinsPerStep), y_of(kLowDecade) + 17}, "mid", fmt::format("{}", steps));
  }
  svg.line({x_of(kHalfStep), y_of(0) - 8}, {x_of(kHalfStep), y_of(kLowDecade)}, "limit");
  svg.text({x_of(kHalfStep) + 6, y_of(0) - 7}, "limit-text", "half a step");
  svg.text({(kLeft + kWidth - kRight) / 2, kHeight - 6}, "mid soft",
           "error in steps of the output's grid");
  svg.vertical_text({14, (y_of(0) + y_of(kLowDecade)) / 2}, "mid soft", "share of values");
  return svg.finish();
}

Drawing draw_heat_map(const Report& report) {
  const std::vector<HeatCell> cells = heat_cells(report);
  if (cells.empty()) return {};
  return {legend(!report.is_difference) +
          heat_map_html(cells, "SQNR in decibels by layer and role")};
}

Drawing draw_histograms(const WeightsReport& weights) {
  std::string html;
  for (const SchemeErrors& errors : errors_by_scheme(weights)) {
    const std::uint64_t all = errors.count(), beyond = errors.count(kHalfStep);
    html += fmt::format(
        "<figure>\n<figcaption><b>{}</b> {} values, {} beyond half a step</figcaption>\n{}"
        "</figure>\n",
        html_text(errors.scheme), count_text(all),
        beyond == 0 ? "none" : html_text(share_text(beyond, all)), html_scroll(drawing(errors)));
  }
  if (html.empty()) return {"<p>No tensor was rounded to another grid.</p>\n"};
  return {fmt::format("<div class=\"figures\">\n{}</div>\n", html)};
}

}  // namespace

void add_weight_sections(const Report& report, Form form, std::size_t n_worst, Sections& sections) {
  if (!report.weights) return;
  const WeightsReport& weights = *report.weights;
  sections.push_back(schemes_section(report, form));
  if (form == Form::kPage) {
    sections.push_back(
        {"heatmap",
         "Weights by layer and role",
         {draw_heat_map(report),
          Paragraph{
              fmt::format("Signal to quantization noise of all tensors of a role in a layer "
                          "(columns), against the {}",
                          report.is_difference
                              ? "values of A."
                              : "source's values. Faults: changed, narrowed, misrounded, coarse or "
                                "not finite."),
              true}}});
  }
  if (form == Form::kPage && !report.is_difference) {
    sections.push_back(
        {"histogram",
         "Errors in grid steps",
         {draw_histograms(weights),
          Paragraph{
              "Some rows of every tensor, evenly spread. Rounding to the nearest ends at half a "
              "step; beyond it are faults and values larger than the largest code.",
              true}}});
  }
  sections.push_back(worst_section(report, form, n_worst));
}

}  // namespace ingot::verify
