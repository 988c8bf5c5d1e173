#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace ingot {

/// A point in units of the drawing, y downwards.
struct SvgPoint {
  double x = 0, y = 0;
};

/// An inline drawing. Colours and fonts come from the page's style by class; `title` is shown on
/// hovering. Texts are escaped, coordinates have one digit after the point.
class Svg {
 public:
  /// `fluid` drawings fill the width of their box, but shrink no further than is legible.
  Svg(double width, double height, std::string_view label, bool fluid);

  void line(SvgPoint from, SvgPoint to, std::string_view style);
  void polyline(const std::vector<SvgPoint>& points, std::string_view style);
  void circle(SvgPoint centre, double radius, std::string_view style, std::string_view title = {});
  void rect(SvgPoint corner, double width, double height, std::string_view style,
            std::string_view title = {});
  /// A square on its corner.
  void diamond(SvgPoint centre, double radius, std::string_view style, std::string_view title = {});
  void text(SvgPoint at, std::string_view style, std::string_view text);
  /// Read from below.
  void vertical_text(SvgPoint at, std::string_view style, std::string_view text);

  [[nodiscard]] std::string finish() const { return text_ + "</svg>\n"; }

 private:
  void shape(std::string_view element, std::string_view style, std::string_view title,
             std::string_view attributes);

  std::string text_;
};

/// Up to `most` indices of [0, count) at an even, round distance, 0 first.
std::vector<std::size_t> spread_ticks(std::size_t count, std::size_t most);

/// "10⁻³".
std::string power_of_ten(int exponent);

/// One field of a map of roles (from top to bottom) by layers (from left to right).
struct HeatCell {
  std::uint32_t layer = 0;
  std::string role;
  std::string style;  ///< name in the page's style sheet: the cell's colour
  std::string title;  ///< shown on hovering
  bool has_fault = false;
};

/// The map in HTML, with roles in order of first appearance; empty without cells.
std::string heat_map_html(std::span<const HeatCell> cells, std::string_view label);

/// An entry of a legend: a swatch of this style with its word.
std::string swatch_html(std::string_view style, std::string_view word, std::string_view sign = "");

}  // namespace ingot
