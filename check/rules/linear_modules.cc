#include "check/rules/linear_modules.h"

#include <fmt/format.h>

namespace ingot::formats {
namespace {

constexpr std::string_view kWeight = ".weight";

bool is_other_linear(const LogicalTensor& tensor) {
  if (tensor.rule == nullptr) {
    const std::string_view name = tensor.name;
    return tensor.shape.size() == 2 && name.ends_with(kWeight) && !name.ends_with("norm.weight") &&
           name.find("embed") == std::string_view::npos;
  }
  switch (tensor.rule->role) {
    case Role::kHead:
    case Role::kRouter:
    case Role::kIndexerWeights:
    case Role::kMtpProj:
    case Role::kMtpHead:
      return true;
    default:
      return false;
  }
}

// vLLM puts the decoder of a multi-token prediction layer one level deeper.
std::string mtp_name_of(std::string_view module, std::uint32_t layer) {
  const std::string prefix = fmt::format("model.layers.{}.", layer);
  if (!module.starts_with(prefix)) return {};
  const std::string_view rest = module.substr(prefix.size());
  if (std::string head = mtp_head_alias(module); !head.empty()) return head;
  if (!rest.starts_with("self_attn.") && !rest.starts_with("mlp.")) return {};
  return fmt::format("{}mtp_block.{}", prefix, rest);
}

}  // namespace

std::vector<LinearModule> linear_modules(const Checkpoint& checkpoint) {
  const ModelConfig& config = checkpoint.config();
  std::vector<LinearModule> modules;
  for (const LogicalTensor& tensor : checkpoint.tensors()) {
    LinearModule module;
    module.is_quantized = scheme_facts(tensor.encoding.scheme).quantized;
    module.is_quantizable =
        module.is_quantized ||
        (tensor.rule != nullptr && is_quantized_by_silence(checkpoint.dialect(), *tensor.rule));
    if (!module.is_quantizable && !is_other_linear(tensor)) continue;
    if (!module.is_quantized && tensor.encoding.scheme == SchemeId::kRaw) continue;
    module.name = tensor.name;
    if (tensor.name.ends_with(kWeight)) module.name.resize(tensor.name.size() - kWeight.size());
    module.tensor = &tensor;
    if (tensor.layer && config.num_hidden_layers != 0 && *tensor.layer >= config.num_hidden_layers)
      module.mtp_name = mtp_name_of(module.name, *tensor.layer);
    modules.push_back(std::move(module));
  }
  return modules;
}

}  // namespace ingot::formats
