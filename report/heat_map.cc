#include "report/heat_map.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <vector>

#include <fmt/format.h>

#include "report/document.h"
#include "report/svg.h"

namespace ingot {
namespace {

constexpr double kRow = 20, kHead = 24;
// Widths of a column, and of all columns.
constexpr double kWidest = 44, kNarrowest = 13, kPreferred = 940;

struct HeatGrid {
  explicit HeatGrid(std::span<const HeatCell> all) : cells(all) {
    for (const HeatCell& of : cells) {
      layers.try_emplace(of.layer, 0);
      if (std::find(roles.begin(), roles.end(), of.role) == roles.end()) roles.push_back(of.role);
    }
    std::size_t column = 0;
    for (auto& [layer, at] : layers) at = column++;
    const auto count = static_cast<double>(std::max<std::size_t>(layers.size(), 1));
    side = std::floor(std::clamp(kPreferred / count, kNarrowest, kWidest));
  }

  [[nodiscard]] double height() const { return kHead + kRow * static_cast<double>(roles.size()); }

  std::span<const HeatCell> cells;
  std::map<std::uint32_t, std::size_t> layers;  // to columns
  std::vector<std::string_view> roles;
  double side = 0;  // side of a cell
};

std::string role_labels(const HeatGrid& grid) {
  std::size_t longest = 0;
  for (const std::string_view role : grid.roles) longest = std::max(longest, role.size());
  const double width = 10 + 7.3 * static_cast<double>(longest);
  Svg svg(width, grid.height(), "roles", false);
  for (std::size_t row = 0; row < grid.roles.size(); ++row) {
    svg.text({width - 6, kHead + kRow * static_cast<double>(row) + 14}, "end", grid.roles[row]);
  }
  return svg.finish();
}

std::string fields(const HeatGrid& grid, std::string_view label) {
  const double width = grid.side * static_cast<double>(grid.layers.size()) + 12;
  Svg svg(width, grid.height(), label, false);
  const auto most = static_cast<std::size_t>(width / 26);  // numbers need as much
  std::vector<std::uint32_t> numbers;
  for (const auto& [layer, column] : grid.layers) numbers.push_back(layer);
  for (const std::size_t column : spread_ticks(numbers.size(), std::max<std::size_t>(most, 1))) {
    svg.text({grid.side * (static_cast<double>(column) + 0.5), 15}, "mid",
             std::to_string(numbers[column]));
  }
  for (const HeatCell& cell : grid.cells) {
    const auto row = std::find(grid.roles.begin(), grid.roles.end(), cell.role);
    const SvgPoint corner{grid.side * static_cast<double>(grid.layers.at(cell.layer)),
                          kHead + kRow * static_cast<double>(row - grid.roles.begin())};
    svg.rect({corner.x + 0.5, corner.y + 0.5}, grid.side - 1, kRow - 1, cell.style, cell.title);
    if (!cell.has_fault) continue;
    svg.rect({corner.x + 1.5, corner.y + 1.5}, grid.side - 3, kRow - 3, "flaw", cell.title);
    svg.diamond({corner.x + grid.side / 2, corner.y + kRow / 2}, 4, "fault", cell.title);
  }
  return svg.finish();
}

}  // namespace

std::string heat_map_html(std::span<const HeatCell> cells, std::string_view label) {
  if (cells.empty()) return {};
  const HeatGrid grid(cells);
  return "<div class=\"heat\">\n" + role_labels(grid) + html_scroll(fields(grid, label)) +
         "</div>\n";
}

std::string swatch_html(std::string_view style, std::string_view word, std::string_view sign) {
  return fmt::format("<span class=\"nowrap\"><span class=\"swatch {}\">{}</span>{}</span> ", style,
                     sign, html_text(word));
}

}  // namespace ingot
