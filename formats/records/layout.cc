#include "formats/records/layout.h"

#include <array>

namespace ingot::formats {
namespace {

constexpr std::array kLayouts = {
    Layout{.id = LayoutId::kHf,
           .name = "hf",
           .summary = "one directory of safetensors files with an index, as on the hub"},
    Layout{.id = LayoutId::kRanks,
           .name = "ranks",
           .summary = "a directory per rank with what it loads, under the names of the hub",
           .is_sliced = true,
           .has_rank_directories = true},
    Layout{.id = LayoutId::kDeepseekMp,
           .name = "deepseek-mp",
           .summary = "model{i}-mp{N}.safetensors, the names that DeepSeek's inference code loads",
           .is_sliced = true,
           .takes_mp = true},
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
