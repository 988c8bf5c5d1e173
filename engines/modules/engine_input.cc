#include "engines/modules/engine_input.h"

#include <fmt/format.h>

#include "formats/config/nested_config.h"
#include "formats/json/json.h"
#include "formats/modules/module_patterns.h"

namespace ingot::engines {
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

// vLLM builds the head of a draft model under a name of its own, and Step's decoder one level
// deeper (step3p5_mtp.py:74; all others as models/deepseek_v32/nvidia/mtp.py:92 does).
std::string mtp_name_of(std::string_view module, std::uint32_t layer, std::string_view family) {
  const std::string prefix = fmt::format("model.layers.{}.", layer);
  if (!module.starts_with(prefix)) return {};
  const std::string_view rest = module.substr(prefix.size());
  if (std::string head = formats::mtp_head_alias(module); !head.empty()) return head;
  if (!family.starts_with("step3p") ||
      !(rest.starts_with("self_attn.") || rest.starts_with("mlp.")))
    return {};
  return fmt::format("{}mtp_block.{}", prefix, rest);
}

std::vector<LinearModule> find_modules(const Checkpoint& checkpoint) {
  const formats::ModelConfig& config = checkpoint.config();
  std::vector<LinearModule> modules;
  for (const LogicalTensor& tensor : checkpoint.tensors()) {
    LinearModule module;
    module.is_quantized = is_quantized(tensor);
    module.is_quantizable =
        module.is_quantized ||
        (tensor.rule != nullptr && is_quantized_by_silence(checkpoint.dialect(), *tensor.rule));
    if (!module.is_quantizable && !is_other_linear(tensor)) continue;
    if (!module.is_quantized && tensor.encoding.scheme == SchemeId::kRaw) continue;
    module.name = tensor.name;
    if (tensor.name.ends_with(kWeight)) module.name.resize(tensor.name.size() - kWeight.size());
    module.tensor = &tensor;
    if (tensor.layer && config.num_hidden_layers != 0 && *tensor.layer >= config.num_hidden_layers)
      module.mtp_name = mtp_name_of(module.name, *tensor.layer, checkpoint.family().name);
    module.draft_name = formats::draft_module_name(module.name, config.num_hidden_layers);
    modules.push_back(std::move(module));
  }
  return modules;
}

const Json* quantization_of(const Checkpoint& checkpoint) {
  const Json& block = formats::quantization_block(checkpoint.config());
  return block.is_object() ? &block : nullptr;
}

}  // namespace

EngineInput::EngineInput(const Checkpoint& checkpoint)
    : quantization(quantization_of(checkpoint)), modules(find_modules(checkpoint)) {
  if (quantization != nullptr && checkpoint.dialect().name == "compressed-tensors")
    groups.emplace(*quantization, &group_faults);
}

}  // namespace ingot::engines
