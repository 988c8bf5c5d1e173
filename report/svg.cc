#include "report/svg.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <vector>

#include <fmt/format.h>

#include "report/document.h"

namespace ingot {
namespace {

constexpr double kShrink = 0.8;  // factor at which 12 px are still legible

}  // namespace

Svg::Svg(double width, double height, std::string_view label, bool fluid)
    : text_(fmt::format(
          "<svg role=\"img\" aria-label=\"{}\" viewBox=\"0 0 {:.0f} {:.0f}\" {}>\n",
          html_text(label), width, height,
          fluid ? fmt::format("style=\"width:100%;min-width:{:.0f}px\"", kShrink * width)
                : fmt::format("width=\"{:.0f}\" height=\"{:.0f}\"", width, height))) {}

void Svg::line(SvgPoint from, SvgPoint to, std::string_view style) {
  text_ +=
      fmt::format("<line class=\"{}\" x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\"/>\n",
                  style, from.x, from.y, to.x, to.y);
}

void Svg::polyline(const std::vector<SvgPoint>& points, std::string_view style) {
  if (points.size() < 2) return;
  text_ += fmt::format("<polyline class=\"{}\" points=\"", style);
  for (const SvgPoint& point : points) text_ += fmt::format("{:.1f},{:.1f} ", point.x, point.y);
  text_.back() = '"';
  text_ += "/>\n";
}

void Svg::circle(SvgPoint centre, double radius, std::string_view style, std::string_view title) {
  shape("circle", style, title,
        fmt::format("cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"{:.1f}\"", centre.x, centre.y, radius));
}

void Svg::rect(SvgPoint corner, double width, double height, std::string_view style,
               std::string_view title) {
  shape("rect", style, title,
        fmt::format("x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\"", corner.x,
                    corner.y, width, height));
}

void Svg::diamond(SvgPoint centre, double radius, std::string_view style, std::string_view title) {
  shape("polygon", style, title,
        fmt::format("points=\"{:.1f},{:.1f} {:.1f},{:.1f} {:.1f},{:.1f} {:.1f},{:.1f}\"",
                    centre.x - radius, centre.y, centre.x, centre.y - radius, centre.x + radius,
                    centre.y, centre.x, centre.y + radius));
}

void Svg::text(SvgPoint at, std::string_view style, std::string_view text) {
  text_ += fmt::format("<text class=\"{}\" x=\"{:.1f}\" y=\"{:.1f}\">{}</text>\n", style, at.x,
                       at.y, html_text(text));
}

void Svg::vertical_text(SvgPoint at, std::string_view style, std::string_view text) {
  text_ += fmt::format(
      "<text class=\"{}\" transform=\"translate({:.1f} {:.1f}) rotate(-90)\">{}</text>\n", style,
      at.x, at.y, html_text(text));
}

void Svg::shape(std::string_view element, std::string_view style, std::string_view title,
                std::string_view attributes) {
  text_ += fmt::format("<{} class=\"{}\" {}", element, style, attributes);
  text_ +=
      title.empty() ? "/>\n" : fmt::format("><title>{}</title></{}>\n", html_text(title), element);
}

std::vector<std::size_t> spread_ticks(std::size_t count, std::size_t most) {
  constexpr std::array<std::size_t, 3> kRound = {1, 2, 5};
  std::size_t step = 1;
  for (std::size_t decade = 1, i = 0; (count + step - 1) / step > most; ++i) {
    if (i > 0 && i % kRound.size() == 0) decade *= 10;
    step = kRound[i % kRound.size()] * decade;
  }
  std::vector<std::size_t> ticks;
  for (std::size_t at = 0; at < count; at += step) ticks.push_back(at);
  return ticks;
}

std::string power_of_ten(int exponent) {
  constexpr std::array kDigits = {"⁰", "¹", "²", "³", "⁴", "⁵", "⁶", "⁷", "⁸", "⁹"};
  if (exponent == 0) return "1";
  std::string text = "10";
  for (const char c : std::to_string(exponent))
    text += c == '-' ? "⁻" : kDigits[static_cast<std::size_t>(c - '0')];
  return text;
}

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
