#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace ingot::formats {

enum class LayoutId : std::uint8_t { kHf, kRanks, kDeepseekMp };

/// How logical tensors become files. A row in a table.
struct Layout {
  LayoutId id{};
  std::string_view name;
  std::string_view summary;
  bool is_sliced = false;             ///< several ranks
  bool has_rank_directories = false;  ///< each rank has a directory that is complete in itself
  bool takes_mp = false;              ///< one number, --mp, says how it is cut
};

std::span<const Layout> layouts();
const Layout* find_layout(std::string_view name);

}  // namespace ingot::formats
