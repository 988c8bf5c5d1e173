#include "formats/layout.h"

#include <array>

namespace ingot::formats {
namespace {

constexpr std::array kLayouts = {
    Layout{.name = "hf",
           .summary = "one directory of safetensors files with an index, as on the hub"},
};

}  // namespace

std::span<const Layout> layouts() {
  return kLayouts;
}

const Layout* find_layout(std::string_view name) {
  for (const Layout& row : kLayouts) {
    if (row.name == name) return &row;
  }
  return nullptr;
}

}  // namespace ingot::formats
