#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <set>

#include <fmt/format.h>

#include "verify/report/figures.h"
#include "verify/report/html_sections.h"
#include "verify/report/html_text.h"
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

bool has_fault(const TensorWeights& tensor) {
  return tensor.relation == Relation::kChanged || tensor.relation == Relation::kNarrowed ||
         tensor.sums.misrounded > 0 || tensor.sums.nonfinite > 0;
}

bool is_identical(const WeightGroup& group) {
  return group.identical == group.tensors;
}

// Roles from top to bottom, layers from left to right, in order of first appearance; tensors
// outside the layers are not drawn.
struct HeatGrid {
  explicit HeatGrid(const WeightsReport& weights) : groups(by_layer_and_role(weights)) {
    for (const TensorWeights& tensor : weights.tensors) {
      if (tensor.layer && has_fault(tensor)) faulty.emplace(*tensor.layer, tensor.role);
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

}  // namespace

std::string html_heatmap(const Report& report) {
  if (!report.weights) return {};
  const HeatGrid grid(*report.weights);
  if (grid.layers.empty()) return {};
  return html_section(
      "heatmap", "Weights by layer and role",
      legend() + "<div class=\"heat\">\n" + role_labels(grid) + html_scroll(cells(grid)) +
          "</div>\n" +
          html_note("Signal to quantization noise of all tensors of a role in a layer (columns), "
                    "against the source's values. Faults: changed, "
                    "narrowed, misrounded or not finite."));
}

}  // namespace ingot::verify
