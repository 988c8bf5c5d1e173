#include "formats/checkpoint/uneven_experts.h"

#include <algorithm>
#include <vector>

#include <fmt/format.h>

#include "formats/checkpoint/part_names.h"
#include "formats/family/roles.h"

namespace ingot::formats {
namespace {

// A config has at most so many experts.
constexpr std::uint64_t kMostExperts = std::uint64_t{1} << 20;

// What names of routers end with.
std::vector<std::string_view> router_ends(const Family& family) {
  std::vector<std::string_view> ends;
  for (const TensorRule& rule : family.rules) {
    if (rule.role == Role::kRouter)
      ends.push_back(rule.pattern.substr(rule.pattern.rfind('}') + 1));
  }
  return ends;
}

}  // namespace

std::map<std::uint32_t, std::uint64_t> uneven_experts(const Family& family,
                                                      const ModelConfig& config,
                                                      std::span<const StoredTensor> stored) {
  std::map<std::uint32_t, std::uint64_t> uneven;
  if (config.n_routed_experts == 0) return uneven;
  ModelConfig any = config;
  any.n_routed_experts = kMostExperts;
  const NameGrammar grammar(family, any);
  const std::vector<std::string_view> ends = router_ends(family);
  for (const StoredTensor& tensor : stored) {
    if (tensor.shape.empty() || tensor.shape[0] == config.n_routed_experts ||
        std::ranges::none_of(ends,
                             [&](std::string_view end) { return tensor.name.ends_with(end); }))
      continue;
    const auto match = grammar.match(tensor.name);
    if (match && match->rule->role == Role::kRouter && match->layer)
      uneven[*match->layer] = tensor.shape[0];
  }
  if (uneven.empty()) return uneven;
  std::map<std::uint32_t, std::uint64_t> experts;
  for (const StoredTensor& tensor : stored) {
    const auto match = grammar.match(weight_name(tensor));
    if (!match || !match->layer || !uneven.contains(*match->layer)) continue;
    std::uint64_t& n_experts = experts[*match->layer];
    if (match->expert) {
      n_experts = std::max<std::uint64_t>(n_experts, std::uint64_t{*match->expert} + 1);
    } else if (is_routed_expert(match->rule->role) && !tensor.shape.empty()) {
      n_experts = std::max(n_experts, tensor.shape[0]);
    }
  }
  std::erase_if(uneven, [&](const auto& layer) { return experts[layer.first] != layer.second; });
  return uneven;
}

std::string uneven_text(std::uint32_t layer, std::uint64_t n_experts, const ModelConfig& config) {
  const bool is_mtp = layer >= config.num_hidden_layers;
  return fmt::format(
      "layer {}{} has {} experts, config.json says {}: one number for all layers ({})", layer,
      is_mtp ? " (MTP)" : "", n_experts, config.n_routed_experts,
      is_mtp ? "ingot convert --mtp drop leaves the layer out"
             : "prune the same number of experts in each layer");
}

}  // namespace ingot::formats
