#include "formats/dialect/modelopt_algos.h"

#include <algorithm>
#include <array>

#include "formats/dialect/dialect_table.h"

namespace ingot::formats {
namespace {

constexpr std::array kAlgos = {
    ModeloptAlgo{"W4A16_NVFP4", SchemeId::kNvfp4, Activations::kWeightOnly, 16},
    ModeloptAlgo{"NVFP4", SchemeId::kNvfp4, Activations::kStatic, 16},
    ModeloptAlgo{"FP8", SchemeId::kFp8Tensor, Activations::kStatic, 0},
    ModeloptAlgo{"FP8_PER_CHANNEL_PER_TOKEN", SchemeId::kFp8Channel, Activations::kDynamic, 0},
};

/// hf_quant_config.json keeps everything below one key.
const Json& body_of(const Json& block) {
  const auto nested = block.find("quantization");
  return nested != block.end() && nested->is_object() ? *nested : block;
}

const ModeloptAlgo* algo_in(const Json& owner) {
  const auto name = owner.find("quant_algo");
  return name != owner.end() && name->is_string()
             ? find_modelopt_algo(name->get_ref<const std::string&>())
             : nullptr;
}

ModuleList excluded_in(const Json& body) {
  std::vector<std::string> entries = string_list(body, "exclude_modules");
  const std::vector<std::string> ignored = string_list(body, "ignore");
  entries.insert(entries.end(), ignored.begin(), ignored.end());
  return {entries, PatternSyntax::kGlob};
}

}  // namespace

const ModeloptAlgo* find_modelopt_algo(std::string_view name) {
  for (const ModeloptAlgo& algo : kAlgos) {
    if (algo.name == name) return &algo;
  }
  return nullptr;
}

const ModeloptAlgo* find_modelopt_algo(SchemeId scheme, Activations activations) {
  for (const ModeloptAlgo& algo : kAlgos) {
    if (algo.scheme == scheme && algo.activations == activations) return &algo;
  }
  return nullptr;
}

ModeloptBlock::ModeloptBlock(const Json& block)
    : algo_(algo_in(body_of(block))), excluded_(excluded_in(body_of(block))) {
  const auto layers = body_of(block).find("quantized_layers");
  if (layers == body_of(block).end() || !layers->is_object()) return;
  layers_.emplace();
  for (const auto& [module, layer] : layers->items())
    layers_->emplace(module, layer.is_object() ? algo_in(layer) : nullptr);
}

const ModeloptAlgo* ModeloptBlock::algo_of(std::string_view module) const {
  if (excluded_.covers_for_any(module)) return nullptr;
  if (!layers_) return algo_;
  const auto layer = layers_->find(module);
  return layer != layers_->end() ? layer->second : nullptr;
}

}  // namespace ingot::formats
