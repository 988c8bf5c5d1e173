#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <numeric>
#include <set>

#include <fmt/format.h>

#include "formats/base/figures.h"
#include "verify/report/sections.h"
#include "verify/report/svg.h"

namespace ingot::verify {

namespace {

// Nothing was lost.
bool is_exact(const WeightGroup& group) {
  return group.sums.exact + group.sums.source_nonfinite == group.sums.elements;
}

// Where little is to be read, what is exact takes a row per pair of schemes, after the rest.
std::vector<WeightGroup> summed_up(std::vector<WeightGroup> groups) {
  const auto rest = std::stable_partition(groups.begin(), groups.end(),
                                          [](const auto& group) { return !is_exact(group); });
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

// "fp8-block → nvfp4", or the one scheme.
std::string change_text(std::string_view from, std::string_view to) {
  return from == to ? std::string(to) : fmt::format("{} → {}", from, to);
}

Cell faults(std::uint64_t count) {
  return {count_text(count), count == 0 ? Style::kPlain : Style::kFault};
}

Section schemes_section(const WeightsReport& weights, Form form) {
  Table table{.columns = {form == Form::kPage ? "scheme" : "weights", "role", number("tensors"),
                          number("identical"), number("cosine"), number("least"),
                          number("rel. error"), number("SQNR dB"), number("misrounded"),
                          number("saturated"), number("zeroed"), number("scale")}};
  std::vector<WeightGroup> groups = by_scheme_and_role(weights);
  if (form != Form::kPage) groups = summed_up(std::move(groups));
  for (const WeightGroup& group : groups) {
    const ElementSums& sums = group.sums;
    table.rows.push_back(
        {change_text(group.from, group.to), group.role, count_text(group.tensors),
         count_text(group.identical), cosine_text(sums.cosine()), cosine_text(group.least_cosine),
         short_text(sums.relative_error()), decibel_text(sums.sqnr_db()), faults(sums.misrounded),
         share_text(sums.saturated, sums.elements), share_text(sums.zeroed, sums.elements),
         fmt::format("{:.4f}", group.worst_scale)});
  }
  if (form != Form::kPage) table.keep({0, 1, 2, 3, 4, 6, 7, 8, 9, 11});
  Section section{"schemes", "Weights by scheme and role", {std::move(table)}};
  const auto note = [&](std::string text) {
    section.blocks.push_back(Paragraph{std::move(text), true});
  };
  if (form != Form::kText)
    note(fmt::format("{} tensors were compared", count_text(weights.tensors.size())));
  if (weights.unmatched > 0)
    note(fmt::format("{} tensors had no partner", count_text(weights.unmatched)));
  if (weights.sample < 1)
    note(fmt::format("{:g}% of the rows were looked at", 100 * weights.sample));
  return section;
}

Section worst_section(const WeightsReport& weights, Form form, std::size_t n_worst) {
  Table table{
      .columns = {name(form == Form::kPage ? "tensor" : "worst tensors"), "scheme", "",
                  number("rel. error"), number("SQNR dB"), number("cosine"), number("misrounded"),
                  number("not finite"), number("max. error"), number("scale")},
      .least_rows = 5};
  for (const TensorWeights* tensor : worst_tensors(weights, n_worst)) {
    // Whatever has no error is no worse than the rest.
    if (tensor->relation == Relation::kIdentical) continue;
    const ElementSums& sums = tensor->sums;
    const bool is_bad =
        tensor->relation == Relation::kChanged || tensor->relation == Relation::kNarrowed;
    table.rows.push_back(
        {tensor->name, change_text(tensor->from, tensor->to),
         Cell(std::string(relation_name(tensor->relation)), is_bad ? Style::kBad : Style::kPlain),
         short_text(sums.relative_error()), decibel_text(sums.sqnr_db()),
         cosine_text(sums.cosine()), faults(sums.misrounded), faults(sums.nonfinite),
         short_text(sums.max_error), fmt::format("{:.4f}", sums.fitted_scale())});
  }
  if (form != Form::kPage) table.keep({0, 1, 2, 3, 4, 5, 6, 9});
  return {"worst", "Worst tensors", {std::move(table)}};
}

// Upper ends of the steps of colour, in dB: 4-bit grids are near 20, 8-bit ones from 30 on.
constexpr std::array kSteps = {10.0, 15.0, 18.0, 21.0, 25.0, 32.0, 42.0};

constexpr double kRow = 20, kHead = 24;
constexpr double kWidest = 44, kNarrowest = 13, kPreferred = 940;  // of a column; of all of them

std::size_t step_of(double sqnr) {
  return static_cast<std::size_t>(std::upper_bound(kSteps.begin(), kSteps.end(), sqnr) -
                                  kSteps.begin());
}

bool is_identical(const WeightGroup& group) {
  return group.identical == group.tensors;
}

// Roles from top to bottom, layers from left to right, in order of first appearance; tensors
// outside the layers are not drawn.
struct HeatGrid {
  explicit HeatGrid(const WeightsReport& weights) : groups(by_layer_and_role(weights)) {
    for (const TensorWeights& tensor : weights.tensors) {
      if (tensor.layer && is_fault(tensor)) faulty.emplace(*tensor.layer, tensor.role);
    }
    for (const WeightGroup& group : groups) {
      if (!group.layer) continue;
      layers.try_emplace(*group.layer, 0);
      if (std::find(roles.begin(), roles.end(), group.role) == roles.end())
        roles.push_back(group.role);
    }
    std::size_t column = 0;
    for (auto& [layer, at] : layers) at = column++;
    const auto count = static_cast<double>(std::max<std::size_t>(layers.size(), 1));
    cell = std::floor(std::clamp(kPreferred / count, kNarrowest, kWidest));
  }

  [[nodiscard]] double height() const { return kHead + kRow * static_cast<double>(roles.size()); }

  std::vector<WeightGroup> groups;
  std::map<std::uint32_t, std::size_t> layers;  // to columns
  std::vector<std::string> roles;
  std::set<std::pair<std::uint32_t, std::string>> faulty;
  double cell = 0;
};

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

std::string role_labels(const HeatGrid& grid) {
  std::size_t longest = 0;
  for (const std::string& role : grid.roles) longest = std::max(longest, role.size());
  const double width = 10 + 7.3 * static_cast<double>(longest);
  Svg svg(width, grid.height(), "roles", false);
  for (std::size_t row = 0; row < grid.roles.size(); ++row) {
    svg.text({width - 6, kHead + kRow * static_cast<double>(row) + 14}, "end", grid.roles[row]);
  }
  return svg.finish();
}

std::string cells(const HeatGrid& grid) {
  const double width = grid.cell * static_cast<double>(grid.layers.size()) + 12;
  Svg svg(width, grid.height(), "SQNR in decibels by layer and role", false);
  const auto most = static_cast<std::size_t>(width / 26);  // numbers need as much
  std::vector<std::uint32_t> numbers;
  for (const auto& [layer, column] : grid.layers) numbers.push_back(layer);
  for (const std::size_t column : spread_ticks(numbers.size(), std::max<std::size_t>(most, 1))) {
    svg.text({grid.cell * (static_cast<double>(column) + 0.5), 15}, "mid",
             std::to_string(numbers[column]));
  }
  for (const WeightGroup& group : grid.groups) {
    if (!group.layer) continue;
    const auto row = std::find(grid.roles.begin(), grid.roles.end(), group.role);
    const SvgPoint corner{grid.cell * static_cast<double>(grid.layers.at(*group.layer)),
                          kHead + kRow * static_cast<double>(row - grid.roles.begin())};
    const double sqnr = group.sums.sqnr_db();
    const std::string style =
        is_identical(group) ? "same" : fmt::format("h{}", std::isnan(sqnr) ? 0 : step_of(sqnr));
    svg.rect({corner.x + 0.5, corner.y + 0.5}, grid.cell - 1, kRow - 1, style, cell_title(group));
    if (!grid.faulty.contains({*group.layer, group.role})) continue;
    svg.rect({corner.x + 1.5, corner.y + 1.5}, grid.cell - 3, kRow - 3, "flaw", cell_title(group));
    svg.diamond({corner.x + grid.cell / 2, corner.y + kRow / 2}, 4, "fault", cell_title(group));
  }
  return svg.finish();
}

std::string legend() {
  std::string text = "<p class=\"legend\">SQNR, dB: ";
  for (std::size_t i = 0; i <= kSteps.size(); ++i) {
    const std::string range = i == 0               ? fmt::format("under {}", kSteps[0])
                              : i == kSteps.size() ? fmt::format("over {}", kSteps.back())
                                                   : fmt::format("{}–{}", kSteps[i - 1], kSteps[i]);
    text += fmt::format("<span class=\"nowrap\"><span class=\"swatch k{}\"></span>{}</span> ", i,
                        range);
  }
  return text +
         "<span class=\"nowrap\"><span class=\"swatch k-same\"></span>identical</span> "
         "<span class=\"nowrap\"><span class=\"swatch k-flaw\">◆</span>has a fault</span></p>\n";
}

constexpr double kWidth = 420, kHeight = 250, kLeft = 62, kRight = 16, kTop = 22, kBottom = 46;
constexpr int kLowDecade = -7;        // least share that is drawn
constexpr std::size_t kHalfStep = 8;  // bins up to half a step
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

// Errors of what was rounded to a grid: by the output's scheme, in order of first appearance.
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

// Shares stand on a logarithmic axis: one value in a million beyond half a step is what to see.
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

Drawing draw_heat_map(const WeightsReport& weights) {
  const HeatGrid grid(weights);
  if (grid.layers.empty()) return {};
  return {legend() + "<div class=\"heat\">\n" + role_labels(grid) + html_scroll(cells(grid)) +
          "</div>\n"};
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
  sections.push_back(schemes_section(weights, form));
  if (form == Form::kPage) {
    sections.push_back(
        {"heatmap",
         "Weights by layer and role",
         {draw_heat_map(weights),
          Paragraph{"Signal to quantization noise of all tensors of a role in a layer (columns), "
                    "against the source's values. Faults: changed, narrowed, misrounded, coarse or "
                    "not finite.",
                    true}}});
    sections.push_back(
        {"histogram",
         "Errors in grid steps",
         {draw_histograms(weights),
          Paragraph{
              "Some rows of every tensor, evenly spread. Rounding to the nearest ends at half a "
              "step; beyond it are faults and values larger than the largest code.",
              true}}});
  }
  sections.push_back(worst_section(weights, form, n_worst));
}

}  // namespace ingot::verify
