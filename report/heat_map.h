#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace ingot {

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
