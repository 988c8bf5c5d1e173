#include "engines/modules/engine_input.h"

#include "formats/base/error.h"
#include "formats/config/nested_config.h"
#include "formats/family/text_names.h"
#include "formats/json/json.h"
#include "formats/modules/mtp_names.h"
#include "formats/storage/encoding.h"

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

std::string built_name(const LinearModule& module, const formats::ModelConfig& config) {
  constexpr std::string_view kModel = "model.";
  if (!config.text.bare_words.empty()) return formats::text_model_name(module.name, config.text);
  const bool is_tower = formats::role_of(module.tensor->rule) == Role::kOtherModality;
  return is_tower && module.name.starts_with(kModel) ? module.name.substr(kModel.size())
                                                     : std::string();
}

std::optional<formats::InputMajorLayout> packed_of(const Checkpoint& checkpoint) {
  try {
    return formats::input_major_layout(checkpoint.config());
  } catch (const Error&) {
    return std::nullopt;
  }
}

std::vector<LinearModule> find_modules(const Checkpoint& checkpoint, bool is_packed) {
  const formats::ModelConfig& config = checkpoint.config();
  const bool has_block = checkpoint.family().name.starts_with("step3p");
  std::vector<LinearModule> modules;
  for (const LogicalTensor& tensor : checkpoint.tensors()) {
    if (formats::is_decoded(tensor.encoding) && !is_packed) continue;
    LinearModule module;
    module.scheme = held_scheme(checkpoint, tensor);
    module.is_quantized = is_quantized(module.scheme);
    module.is_quantizable =
        module.is_quantized ||
        (tensor.rule != nullptr && is_quantized_by_silence(checkpoint.dialect(), *tensor.rule));
    if (!module.is_quantizable && !is_other_linear(tensor)) continue;
    if (!module.is_quantized && tensor.encoding.scheme == SchemeId::kRaw) continue;
    module.name = tensor.name;
    if (tensor.name.ends_with(kWeight)) module.name.resize(tensor.name.size() - kWeight.size());
    module.tensor = &tensor;
    module.built_name = built_name(module, config);
    const std::string of_text = formats::text_model_name(tensor.name, config.text);
    module.is_class_head =
        tensor.rule != nullptr && tensor.rule == formats::class_head_rule(of_text, config);
    module.is_nameless = module.is_class_head && formats::has_nameless_head(config);
    formats::MtpNames names = formats::mtp_names(module.name, config.num_hidden_layers);
    if (has_block && names.head.empty()) names.head = std::move(names.block);
    module.mtp_name = std::move(names.head);
    module.draft_name = std::move(names.draft);
    modules.push_back(std::move(module));
  }
  return modules;
}

std::optional<formats::SourceActivations> activations_of(const Checkpoint& checkpoint) {
  try {
    return formats::SourceActivations(checkpoint.config(), checkpoint.dialect(),
                                      checkpoint.description());
  } catch (const Error&) {
    return std::nullopt;
  }
}

}  // namespace

SchemeId held_scheme(const Checkpoint& checkpoint, const LogicalTensor& tensor) {
  const formats::Encoding& encoding = tensor.encoding;
  if (!formats::is_decoded(encoding) ||
      formats::input_major_dialect(checkpoint.config()) == nullptr)
    return encoding.scheme;
  const formats::StoredTensor& scales = checkpoint.stored()[encoding.stored[formats::Part::kScale]];
  return scales.shape.back() == 1 ? SchemeId::kInt8Channel : SchemeId::kInt8Block;
}

EngineInput::EngineInput(const Checkpoint& checkpoint)
    : quantization(&formats::quantization_block(checkpoint.config())),
      packed(packed_of(checkpoint)),
      activations(activations_of(checkpoint)),
      modules(find_modules(checkpoint, packed.has_value())) {
  if (!quantization->is_object()) quantization = nullptr;
  has_older_key =
      quantization != nullptr &&
      quantization == &formats::json_member(*checkpoint.config().raw, "compression_config");
  if (quantization != nullptr && checkpoint.dialect().has_config_groups)
    groups.emplace(*quantization, &group_faults);
  const Json& description = checkpoint.description();
  if (!description.is_object()) return;
  for (const auto& [key, value] : description.get_ref<const Json::object_t&>())
    described.emplace(key, &value);
}

}  // namespace ingot::engines
