#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace ingot::cli {

/// A GPU by its name, and its memory as nvidia-smi shows it.
struct Gpu {
  std::string_view name;
  std::uint64_t memory_mib;
  std::string_view summary;
};

inline constexpr std::array kGpus = {
    Gpu{"a100", 81920, "A100, sold as 80 GB"}, Gpu{"h100", 81559, "H100, sold as 80 GB"},
    Gpu{"h200", 143771, "H200, sold as 141 GB"}, Gpu{"b200", 183359, "B200, sold as 180 GB"}};

}  // namespace ingot::cli
