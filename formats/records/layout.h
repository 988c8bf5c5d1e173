#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>

namespace ingot::formats {

enum class LayoutId : std::uint8_t { kHf, kRanks, kDeepseekMp, kShardedState };

/// How logical tensors become files. A row in a table.
struct Layout {
  LayoutId id{};
  std::string_view name;
  std::string_view summary;
  bool is_sliced = false;             ///< several ranks
  bool has_rank_directories = false;  ///< each rank has a directory that is complete in itself
  bool takes_mp = false;              ///< true: one number, --mp, says how the model is cut
  bool keeps_blocks = false;          ///< FP8 blocks stay as released
  bool keeps_widths = false;          ///< no width is padded
  bool cuts_experts_by_tp = false;    ///< --tp cuts experts as well as the rest
  std::string_view engine = {};       ///< the word of the engine whose own format it is
  /// True if the files of all ranks are in one directory.
  [[nodiscard]] constexpr bool has_shards() const { return is_sliced && !has_rank_directories; }
};

inline constexpr std::array kLayouts = {
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
           .takes_mp = true,
           .keeps_blocks = true},
    Layout{.id = LayoutId::kShardedState,
           .name = "vllm-sharded",
           .summary = "model-rank-{r}-part-0.safetensors, what vLLM 0.32 or later loads with "
                      "--load-format sharded_state",
           .is_sliced = true,
           .keeps_blocks = true,
           .keeps_widths = true,
           .cuts_experts_by_tp = true,
           .engine = "vllm"},
    Layout{.id = LayoutId::kShardedState,
           .name = "sglang-sharded",
           .summary = "model-rank-{r}-part-0.safetensors, what SGLang 0.5.23 loads with "
                      "--load-format sharded_state",
           .is_sliced = true,
           .keeps_blocks = true,
           .keeps_widths = true,
           .cuts_experts_by_tp = true,
           .engine = "sglang"},
};

constexpr std::span<const Layout> layouts() {
  return kLayouts;
}

constexpr const Layout* find_layout(std::string_view name) {
  for (const Layout& row : kLayouts) {
    if (row.name == name) return &row;
  }
  return nullptr;
}

}  // namespace ingot::formats
