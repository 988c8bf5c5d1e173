#pragma once

#include <span>
#include <string_view>

namespace ingot::formats {

/// How logical tensors become files. A row in a table.
struct Layout {
  std::string_view name;
  std::string_view summary;
  bool is_sliced = false;  ///< several ranks
};

std::span<const Layout> layouts();
const Layout* find_layout(std::string_view name);

}  // namespace ingot::formats
