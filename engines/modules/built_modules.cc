#include "engines/modules/built_modules.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

namespace ingot::engines {

namespace {

constexpr std::string_view kExperts = ".experts.";

/// Returns a layer's name: an engine's own for layers for multi-token prediction, or the stored
/// one.
std::string_view name_of(const LinearModule& layer, Engine engine, bool has_draft_names) {
  if (layer.is_nameless && is_vllm(engine)) return {};
  const bool is_as_stored = layer.built_name.empty() || engine == Engine::kTransformers;
  const std::string& name = is_as_stored ? layer.name : layer.built_name;
  if (!has_draft_names) return name;
  if (engine == Engine::kSglang && !layer.draft_name.empty()) return layer.draft_name;
  return is_vllm(engine) && !layer.mtp_name.empty() ? layer.mtp_name : name;
}

/// A layer on its way into a module.
struct Member {
  std::string_view name;
  Role role = Role::kOther;
  std::uint32_t expert = 0;
};

/// The module for a layer of this name, without its members.
BuiltModule built_of(const LogicalTensor& tensor, std::string_view name, Engine engine) {
  BuiltModule built;
  built.name = name;
  if (tensor.rule == nullptr) return built;
  const Role role = role_of(tensor);
  const std::size_t experts = name.rfind(kExperts);
  if (tensor.expert && is_routed_expert(role) && experts != std::string_view::npos) {
    built.kind = BuiltModule::Kind::kExperts;
    built.name.resize(experts + kExperts.size() - 1);
  } else if (role == Role::kHead || role == Role::kMtpHead || role == Role::kEmbedding) {
    built.kind = BuiltModule::Kind::kHead;
  } else if (const std::string_view leaf = joined_name(tensor, engine); !leaf.empty()) {
    built.name = std::string(parent_of(name)).append(leaf);
  }
  return built;
}

// Engines have their members in the order of roles: q, k, v; gate, up.
void set_members(BuiltModule& built, std::vector<Member> members) {
  if (built.kind == BuiltModule::Kind::kExperts) {
    const std::uint32_t first = std::ranges::min(members, {}, &Member::expert).expert;
    std::erase_if(members, [&](const Member& member) { return member.expert != first; });
  } else if (members.front().name == built.name) {
    return;  // made of one layer
  }
  std::ranges::stable_sort(members, {}, &Member::role);
  for (const Member& member : members) built.members.emplace_back(member.name);
}

}  // namespace

std::string_view parent_of(std::string_view name) {
  return name.substr(0, name.rfind('.') + 1);
}

bool is_vllm(Engine engine) {
  return engine == Engine::kVllm || engine == Engine::kVllmAscend;
}

std::string_view joined_name(const LogicalTensor& tensor, Engine engine) {
  if (tensor.rule == nullptr || engine == Engine::kTransformers) return {};
  const Role role = tensor.rule->role;
  if (role == Role::kExpertGate || role == Role::kExpertUp) return "experts.w13";
  if (role == Role::kExpertDown) return "experts.w2";
  switch (tensor.rule->fuse) {
    case formats::Fuse::kQaKva:
      return engine == Engine::kSglang ? "fused_qkv_a_proj_with_mqa" : "fused_qkv_a_proj";
    case formats::Fuse::kGateUp:
      return "gate_up_proj";
    case formats::Fuse::kQkv:
      return "qkv_proj";
    default:
      return {};
  }
}

BuiltModules::BuiltModules(const Checkpoint& checkpoint, std::span<const LinearModule> layers,
                           Engine engine, bool has_draft_names) {
  std::unordered_map<std::string, std::size_t> number_of;
  std::vector<std::vector<Member>> members;
  for (const LinearModule& layer : layers) {
    const std::string_view name = name_of(layer, engine, has_draft_names);
    BuiltModule built = built_of(*layer.tensor, name, engine);
    const auto [place, is_new] = number_of.try_emplace(built.name, modules_.size());
    if (is_new) {
      modules_.push_back(std::move(built));
      members.emplace_back();
    }
    module_of_.push_back(place->second);
    members[place->second].push_back(
        {.name = name, .role = role_of(*layer.tensor), .expert = layer.tensor->expert.value_or(0)});
  }
  // SGLang's DeepSeek knows only what its attention joins: models/deepseek_v2.py:3250, 3266.
  is_latent_ = std::ranges::any_of(checkpoint.family().rules, [](const formats::TensorRule& rule) {
    return rule.fuse == formats::Fuse::kQaKva;
  });
  for (std::size_t i = 0; i < modules_.size(); ++i) {
    BuiltModule& built = modules_[i];
    set_members(built, std::move(members[i]));
    const bool is_left_out =
        engine == Engine::kSglang && is_latent_ && built.name.ends_with("gate_up_proj");
    built.has_known_members =
        built.kind == BuiltModule::Kind::kLinear && !built.members.empty() && !is_left_out;
  }
}

}  // namespace ingot::engines
