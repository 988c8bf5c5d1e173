#include <algorithm>
#include <array>
#include <map>
#include <string>
#include <string_view>

#include "formats/dialect/dialect_table.h"
#include "formats/dialect/dialect_words.h"
#include "formats/json/json.h"

// The format that vLLM-Ascend and MindIE load: docs/formats.md, "Dialects".

namespace ingot::formats {
namespace {

using enum DType;
using enum PartShape;

constexpr std::array kDynamicParts = {codes_part(kI8), scale_part(kF32, kColumn),
                                      PartRow{Part::kOffset, ".weight_offset", kF32, kColumn}};
// The weight's scale is in deq_scale, the product with that of the activations.
constexpr std::array kStaticParts = {
    codes_part(kI8),
    input_part(kOne),
    PartRow{Part::kInputOffset, ".input_offset", kF32, kOne},
    PartRow{Part::kQuantBias, ".quant_bias", kI32, kPerRow},
    PartRow{Part::kDeqScale, ".deq_scale", kF32, kPerRow},
};
constexpr std::array kModelslimStorage = {
    StorageRow{SchemeId::kInt8Channel, Activations::kDynamic, "W8A8_DYNAMIC", kDynamicParts},
    StorageRow{SchemeId::kInt8Channel, Activations::kStatic, "W8A8", kStaticParts},
};

// Holds the parts of both, but for offsets.
constexpr std::array kMixParts = {kStaticParts[1], kStaticParts[3], kStaticParts[4],
                                  kDynamicParts[1]};

constexpr std::string_view kFloat = "FLOAT";
constexpr std::array kTypes = {
    // From the least to the most: the highest of those present names the whole checkpoint.
    DescribedType{kModelslimStorage[0].config_name, SchemeId::kInt8Channel, Activations::kDynamic,
                  std::span(kDynamicParts).first<2>()},
    DescribedType{"W8A8_MIX", SchemeId::kInt8Channel, Activations::kStatic, kMixParts},
    DescribedType{kModelslimStorage[1].config_name, SchemeId::kInt8Channel, Activations::kStatic,
                  kStaticParts},
    // Types of single tensors: never of a whole model.
    DescribedType{kFloat, SchemeId::kBf16},
    DescribedType{"W8A16", SchemeId::kInt8Channel},
    DescribedType{"W16A16S", std::nullopt},
    DescribedType{"W8A8_MXFP8", std::nullopt},
    DescribedType{"WFP8AFP8_DYNAMIC", std::nullopt},
    DescribedType{"W4A8_DYNAMIC", std::nullopt},
    DescribedType{"W4A8_MXFP", std::nullopt},
    DescribedType{"W4A4_DYNAMIC", std::nullopt},
    DescribedType{"W4A4_MXFP4", std::nullopt},
    DescribedType{"W4A16", std::nullopt},
};
constexpr const DescribedType *kDynamicType = &kTypes[0], *kStaticType = &kTypes[2];

/// The words of a description, by tensor. A map of its own: descriptions have an entry per stored
/// tensor, and Json finds a key by going through all of them.
std::map<std::string_view, std::string_view> words_of(const Json* description) {
  std::map<std::string_view, std::string_view> words;
  if (description == nullptr || !description->is_object()) return words;
  for (const auto& [key, value] : description->get_ref<const Json::object_t&>())
    if (value.is_string()) words.emplace(key, value.get_ref<const std::string&>());
  return words;
}

ConfigForms described_forms(const ModelConfig&, const Json& description,
                            std::vector<std::string>*) {
  return [words = words_of(&description)](std::string_view weight) -> ConfigForm {
    const auto word = words.find(weight);
    if (word == words.end())
      return {.scheme = SchemeId::kBf16, .because = "not in the description"};
    const DescribedType* type = find_described_type(word->second);
    return {.scheme = type == nullptr ? std::nullopt : type->scheme,
            .because = std::string(word->second)};
  };
}

// Loaders take the quantization from the description, and would follow a block in config.json.
Json modelslim_block(const WrittenModel&) {
  return nullptr;
}

Json modelslim_description(const WrittenModel& model) {
  if (!any_quantized(model.tensors)) return nullptr;
  const auto described = words_of(model.description);
  const DescribedType* highest = nullptr;
  std::map<std::string_view, std::string_view> entries;
  for (const WrittenTensor& tensor : model.tensors) {
    std::string_view name = kFloat;
    if (scheme_facts(tensor.scheme).quantized) {
      const bool is_static = tensor.activations == Activations::kStatic;
      const DescribedType* type = is_static ? kStaticType : kDynamicType;
      // The source's own word for the tensor, if that word still holds.
      const auto word = described.find(tensor.name);
      const DescribedType* own =
          word == described.end() ? nullptr : find_described_type(word->second);
      if (own != nullptr && own->activations == type->activations) type = own;
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
    .storage = kModelslimStorage,
    .description_file = "quant_model_description.json",
    .quantization_config = modelslim_block,
    .description = modelslim_description,
    .config_forms = described_forms,
    .unread_type = "MXFP",
    .unread_holds = "msmodelslim's MX formats for Ascend"};

const DescribedType* find_described_type(std::string_view name) {
  const auto* const type = std::ranges::find(kTypes, name, &DescribedType::name);
  return type == kTypes.end() ? nullptr : type;
}

}  // namespace ingot::formats
