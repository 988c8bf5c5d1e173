#include "formats/config/routing.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>

#include <fmt/format.h>

#include "formats/base/error.h"
#include "formats/config/keys.h"
#include "formats/config/nested_config.h"
#include "formats/json/json_fields.h"

namespace ingot::formats {
namespace {

constexpr std::uint64_t kMaxGroups = std::uint64_t{1} << 20;

[[noreturn]] void refuse_routing(const std::string& fact) {
  throw Error(ErrorCode::kCorrupt,
              "{} (n_routed_experts, n_group, topk_group and num_experts_per_tok must go together)",
              fact)
      .in_file("config.json");
}

// DeepSeek-V2 takes the best expert of a group for the group, or has no groups.
bool sums_two_best(const ModelConfig& config) {
  if (config.topk_method.empty()) return config.scoring_func != "softmax";
  return config.topk_method == "noaux_tc";
}

std::uint64_t routing_number(const ModelConfig& config, std::string_view key,
                             std::uint64_t largest, std::optional<std::uint32_t> layer) {
  const auto found = layer ? config.by_layer.find(key) : config.by_layer.end();
  return found == config.by_layer.end() || *layer >= found->second.size() ? largest
                                                                          : found->second[*layer];
}

constexpr std::string_view kExpertsKey = "n_routed_experts";

}  // namespace

std::uint64_t experts_of(const ModelConfig& config, std::optional<std::uint32_t> layer) {
  return routing_number(config, kExpertsKey, config.n_routed_experts, layer);
}

bool has_uneven_experts(const ModelConfig& config) {
  return config.by_layer.contains(kExpertsKey);
}

Routing read_routing(const ModelConfig& config, std::optional<std::uint32_t> layer) {
  const JsonFields fields(text_keys(config), "config.json");
  const auto count = [&](const char* key) {
    const std::string& spelling = spelling_in(text_keys(config), key);
    const std::uint64_t groups = fields.optional_number(spelling.c_str(), kMaxGroups).value_or(1);
    return static_cast<std::size_t>(std::max<std::uint64_t>(groups, 1));
  };
  const bool has_groups = config.topk_method != "greedy";
  const Routing routing{.experts = static_cast<std::size_t>(experts_of(config, layer)),
                        .topk = static_cast<std::size_t>(routing_number(
                            config, "num_experts_per_tok", config.num_experts_per_tok, layer)),
                        .groups = has_groups ? count("n_group") : 1,
                        .topk_groups = has_groups ? count("topk_group") : 1};
  if (routing.topk > routing.experts) {
    refuse_routing(fmt::format("'num_experts_per_tok' is {}, but there are {} experts",
                               routing.topk, routing.experts));
  }
  const std::size_t width = routing.experts / routing.groups;
  if (routing.experts % routing.groups != 0 || routing.topk_groups > routing.groups ||
      routing.topk_groups * width < routing.topk) {
    refuse_routing(
        fmt::format("{} experts in {} groups, of which {} are kept, cannot give {} per token",
                    routing.experts, routing.groups, routing.topk_groups, routing.topk));
  }
  if (routing.groups > 1 && width == 1 && sums_two_best(config)) {
    refuse_routing(fmt::format("{} groups have one expert each, and are judged by their two best",
                               routing.groups));
  }
  return routing;
}

}  // namespace ingot::formats
