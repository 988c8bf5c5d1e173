#include <array>
#include <map>
#include <string>
#include <string_view>

#include "formats/dialect/dialect_table.h"
#include "formats/json/json.h"

// The format that vLLM-Ascend and MindIE load: docs/formats.md, "Dialects".

namespace ingot::formats {
namespace {

constexpr std::array kDynamicParts = {
    PartRow{Part::kWeight, ".weight", DType::kI8, PartShape::kCodes},
    PartRow{Part::kScale, ".weight_scale", DType::kF32, PartShape::kColumn},
    PartRow{Part::kOffset, ".weight_offset", DType::kF32, PartShape::kColumn},
};
// The weight's scale is in deq_scale, the product with that of the activations.
constexpr std::array kStaticParts = {
    PartRow{Part::kWeight, ".weight", DType::kI8, PartShape::kCodes},
    PartRow{Part::kInputScale, ".input_scale", DType::kF32, PartShape::kOne},
    PartRow{Part::kInputOffset, ".input_offset", DType::kF32, PartShape::kOne},
    PartRow{Part::kQuantBias, ".quant_bias", DType::kI32, PartShape::kPerRow},
    PartRow{Part::kDeqScale, ".deq_scale", DType::kF32, PartShape::kPerRow},
};
constexpr std::array kStorage = {
    StorageRow{SchemeId::kInt8Channel, Activations::kDynamic, "W8A8_DYNAMIC", kDynamicParts},
    StorageRow{SchemeId::kInt8Channel, Activations::kStatic, "W8A8", kStaticParts},
};

/// How a description calls the owner of a tensor.
struct TypeName {
  std::string_view name;
  bool is_static = false;
};
constexpr std::string_view kFloat = "FLOAT";
// From the least to the most: the highest of those present names the whole checkpoint.
constexpr std::array kTypes = {
    TypeName{kStorage.front().config_name, false},
    TypeName{"W8A8_MIX", true},  // holds the parts of both
    TypeName{kStorage.back().config_name, true},
};

const TypeName* find_type(std::string_view name) {
  for (const TypeName& type : kTypes) {
    if (type.name == name) return &type;
  }
  return nullptr;
}

/// The types that the source's description gives, by tensor. A map of its own: descriptions have an
/// entry per stored tensor, and Json finds a key by going through all of them.
std::map<std::string_view, const TypeName*> types_of(const Json* source) {
  std::map<std::string_view, const TypeName*> types;
  if (source == nullptr) return types;
  for (const auto& [key, value] : source->items()) {
    if (!value.is_string()) continue;
    const TypeName* type = find_type(value.get_ref<const std::string&>());
    if (type != nullptr) types.emplace(key, type);
  }
  return types;
}

// Loaders take the quantization from the description, and would follow a block in config.json.
Json quantization_config(const WrittenModel&) {
  return nullptr;
}

Json description(const WrittenModel& model) {
  if (!any_quantized(model.tensors)) return nullptr;
  const auto told = types_of(model.description);
  const TypeName* highest = nullptr;
  std::map<std::string_view, std::string_view> entries;
  for (const WrittenTensor& tensor : model.tensors) {
    std::string_view name = kFloat;
    if (scheme_facts(tensor.scheme).quantized) {
      const bool is_static = tensor.activations == Activations::kStatic;
      const TypeName* type = is_static ? &kTypes.back() : &kTypes.front();
      // The source's own word for it, if it still holds.
      if (const auto found = told.find(tensor.name);
          found != told.end() && found->second->is_static == is_static)
        type = found->second;
      if (highest == nullptr || highest < type) highest = type;
      name = type->name;
    }
    for (const std::string& stored : tensor.stored) entries.emplace(stored, name);
  }
  Json result = {{"model_quant_type", highest->name},
                 {"version", "1.0.0"},
                 {"group_size", 0},
                 {"metadata", Json::object()},
                 {"optional", Json::object()}};
  auto& members = result.get_ref<Json::object_t&>();
  for (const auto& [name, type] : entries) members.emplace_back(std::string(name), Json(type));
  return result;
}

}  // namespace

const Dialect kModelslimDialect = {
    .name = "modelslim",
    .summary =
        "quant_model_description.json, and INT8 weights with weight_scale and weight_offset, or "
        "with deq_scale",
    .storage = kStorage,
    .description_file = "quant_model_description.json",
    .quantization_config = quantization_config,
    .description = description};

}  // namespace ingot::formats
