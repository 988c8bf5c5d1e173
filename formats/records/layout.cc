#include "formats/records/layout.h"

#include <array>

namespace ingot::formats {
namespace {

constexpr std::array kLayouts = {
    Layout{.name = "hf",
           .summary = "one directory of safetensors files with an index, as on the hub"},
    Layout{.name = "ranks",
           .summary = "a directory per rank with what it loads, under the names of the hub",
           .is_sliced = true},
    Layout{.name = "deepseek-mp",
           .summary = "model{i}-mp{N}.safetensors, the names that DeepSeek's inference code loads",
           .is_sliced = true},
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
