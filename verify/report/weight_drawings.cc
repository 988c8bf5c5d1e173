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
  std::erase_if(all, [](const SchemeErrors& errors) {
    return std::accumulate(errors.bins.begin(), errors.bins.end(), std::uint64_t{0}) == 0;
  });
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
  const auto all = std::accumulate(errors.bins.begin(), errors.bins.end(), std::uint64_t{0});
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

}  // namespace

Drawing draw_heat_map(const WeightsReport& weights) {
  const HeatGrid grid(weights);
  if (grid.layers.empty()) return {};
  return {legend() + "<div class=\"heat\">\n" + role_labels(grid) + html_scroll(cells(grid)) +
          "</div>\n"};
}

Drawing draw_histograms(const WeightsReport& weights) {
  std::string html;
  for (const SchemeErrors& errors : errors_by_scheme(weights)) {
    const auto all = std::accumulate(errors.bins.begin(), errors.bins.end(), std::uint64_t{0});
    const auto beyond =
        std::accumulate(errors.bins.begin() + kHalfStep, errors.bins.end(), std::uint64_t{0});
    html += fmt::format(
        "<figure>\n<figcaption><b>{}</b> {} values, {} beyond half a step</figcaption>\n{}"
        "</figure>\n",
        html_text(errors.scheme), count_text(all),
        beyond == 0 ? "none" : html_text(share_text(beyond, all)), html_scroll(drawing(errors)));
  }
  if (html.empty()) return {"<p>No tensor was rounded to another grid.</p>\n"};
  return {fmt::format("<div class=\"figures\">\n{}</div>\n", html)};
}

}  // namespace ingot::verify
