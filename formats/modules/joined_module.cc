#include "formats/modules/joined_module.h"

namespace ingot::formats {
namespace {

std::string_view fused_name(Fuse fuse) {
  switch (fuse) {
    case Fuse::kQaKva:
      return "/qkv_a";
    case Fuse::kGateUp:
      return "/gate_up";
    case Fuse::kQkv:
      return "/qkv";
    default:
      return {};
  }
}

std::string_view parent_of(std::string_view name) {
  const std::size_t dot = name.rfind('.');
  return dot == std::string_view::npos ? std::string_view() : name.substr(0, dot);
}

/// The module that holds all experts of a layer.
std::string all_experts(std::string_view weight) {
  constexpr std::string_view kExperts = ".experts";
  const std::size_t at = weight.rfind(kExperts);
  return std::string(at == std::string_view::npos ? parent_of(parent_of(weight))
                                                  : weight.substr(0, at + kExperts.size()));
}

}  // namespace

std::string joined_module(std::string_view weight, const TensorRule* rule, ExpertJoin experts) {
  if (rule == nullptr || rule->role == Role::kAttentionBias || is_expert_bias(rule->role))
    return {};
  if (experts == ExpertJoin::kLayer && is_routed_expert(rule->role)) return all_experts(weight);
  if (experts == ExpertJoin::kMatrix) {
    if (rule->role == Role::kExpertGate || rule->role == Role::kExpertUp)
      return all_experts(weight).append("/w13");
    if (rule->role == Role::kExpertDown) return all_experts(weight).append("/w2");
  }
  const std::string_view name = fused_name(rule->fuse);
  if (name.empty()) return {};
  constexpr std::string_view kWeight = ".weight";
  if (weight.ends_with(kWeight)) weight.remove_suffix(kWeight.size());
  return std::string(parent_of(weight)).append(name);
}

}  // namespace ingot::formats
