#include "formats/config/nested_config.h"

#include <algorithm>
#include <array>
#include <utility>

#include <fmt/format.h>

#include "formats/config/keys.h"
#include "formats/json/json.h"

namespace ingot::formats {
namespace {

constexpr std::array<std::string_view, 4> kTextKeys = {
    "text_config", "llm_config", "language_config", "thinker_config.text_config"};
constexpr const char* kQuantization = "quantization_config";
// Other words for such a block. Engines look under the first, at the top, where there is no
// quantization_config; MLX writes the second next to one.
constexpr const char* kCompression = "compression_config";
constexpr std::array<std::string_view, 4> kOtherBlocks = {kCompression, "quantization",
                                                          "quant_config", "quantize_config"};

// Whole models whose releases have the block among the text model's keys. Engines look at the top
// first, then there.
constexpr std::array<std::string_view, 1> kQuantizedInText = {"kimi_k25"};
// Other models, whose classes in SGLang 0.5.23 take the block from the text model's keys.
constexpr std::array<std::string_view, 2> kLiftedFromText = {"glm5_next", "kimi_k3"};

// Objects of towers in configs that are not nested: Qwen2-VL, Qwen2.5-VL.
constexpr std::array<std::string_view, 4> kTowerKeys = {"vision_config", "visual_config",
                                                        "audio_config", "speech_config"};

Json& section_at(std::string_view key, Json& document) {
  std::string_view rest = key;
  Json* section = &document;
  while (!rest.empty()) {
    const std::size_t dot = std::min(rest.find('.'), rest.size());
    section = &(*section)[std::string(rest.substr(0, dot))];
    rest.remove_prefix(std::min(dot + 1, rest.size()));
  }
  return *section;
}

bool is_block(std::string_view key, const Json& value) {
  if (!value.is_object()) return false;
  if (key == kQuantization) return true;
  // These keys may be about something else, such as the quantization of a codec.
  return std::ranges::find(kOtherBlocks, key) != kOtherBlocks.end() &&
         std::ranges::any_of(std::array{"quant_method", "bits", "w_bit", "quant_algo",
                                        "config_groups", "group_size"},
                             [&](const char* word) { return value.contains(word); });
}

void find_blocks(const Json& object, const std::string& path, std::vector<std::string>& places) {
  if (!object.is_object()) return;
  for (const auto& [key, value] : object.items()) {
    const std::string place = path.empty() ? key : fmt::format("{}.{}", path, key);
    if (is_block(key, value)) {
      places.push_back(place);
    } else if (key.find('.') == std::string::npos) {
      find_blocks(value, place, places);
    }
  }
}

void erase_at(const std::string& place, Json& document) {
  const std::size_t dot = place.rfind('.');
  if (dot == std::string::npos) {
    document.erase(place);
  } else {
    section_at(place.substr(0, dot), document).erase(place.substr(dot + 1));
  }
}

}  // namespace

std::span<const std::string_view> text_config_keys() {
  return kTextKeys;
}

const Json& text_object(const Json& document, std::string_view key) {
  const std::size_t dot = key.find('.');
  if (dot == std::string_view::npos) return json_member(document, key);
  return text_object(json_member(document, key.substr(0, dot)), key.substr(dot + 1));
}

TextNesting text_nesting(const Json& document) {
  TextNesting nesting;
  const auto key = std::ranges::find_if(kTextKeys, [&](std::string_view candidate) {
    return text_object(document, candidate).is_object();
  });
  nesting.has_towers =
      key != kTextKeys.end() || std::ranges::any_of(kTowerKeys, [&](std::string_view tower) {
        return json_member(document, tower).is_object();
      });
  if (key == kTextKeys.end()) return nesting;
  nesting.key = *key;
  Json keys = text_object(document, nesting.key);
  nesting.model_type = text_at(keys, "model_type");
  const bool is_on_top = !json_member(document, kQuantization).is_null();
  const std::string whole = text_at(document, "model_type");
  const bool is_of_5 = text_at(document, "transformers_version").starts_with("5.");
  const bool is_in_text = !json_member(keys, kQuantization).is_null();
  const auto is_one_of = [&](const auto& models) {
    return std::ranges::find(models, whole) != models.end();
  };
  nesting.holds_quantization =
      !is_on_top && (is_one_of(kQuantizedInText) || (is_in_text && is_one_of(kLiftedFromText)));
  for (const auto& [name, value] : document.items()) {
    // transformers 5 ties the head by the outer key, and saves the default of the inner one.
    const bool is_tie =
        name == "tie_word_embeddings" && (value == true || (is_of_5 && value.is_boolean()));
    const bool is_outer = (name == kQuantization && is_on_top) || is_tie;
    if (name != nesting.key && (is_outer || json_member(keys, name).is_null())) keys[name] = value;
  }
  nesting.keys = std::move(keys);
  return nesting;
}

const std::string& mtp_layer_key(const Json& keys) {
  const std::vector<std::string>& names = find_key("num_nextn_predict_layers")->spellings;
  const auto key = std::ranges::find_if(
      names, [&](const std::string& name) { return keys.is_object() && keys.contains(name); });
  return key == names.end() ? names.front() : *key;
}

const Json& text_keys(const ModelConfig& config) {
  return config.text.keys.is_null() ? *config.raw : *config.text.keys;
}

Json& text_section(const ModelConfig& config, Json& document) {
  return section_at(config.text.key, document);
}

Json& text_section(Json& document) {
  return section_at(text_nesting(document).key, document);
}

const Json& quantization_block(const ModelConfig& config) {
  const Json& block = json_member(text_keys(config), kQuantization);
  return block.is_null() ? json_member(*config.raw, kCompression) : block;
}

const Json& quantization_block(const Json& document) {
  const Json& on_top = json_member(document, kQuantization);
  if (!on_top.is_null()) return on_top;
  for (const std::string_view key : kTextKeys) {
    const Json& text = text_object(document, key);
    if (text.is_object() && !json_member(text, kQuantization).is_null())
      return json_member(text, kQuantization);
  }
  return json_member(document, kCompression);
}

std::vector<std::string> quantization_blocks(const Json& document) {
  std::vector<std::string> places;
  find_blocks(document, "", places);
  return places;
}

void set_quantization_block(const ModelConfig& config, Json& document, Json block) {
  const bool is_in_text = !config.text.key.empty() && config.text.holds_quantization;
  const std::string place =
      is_in_text ? fmt::format("{}.{}", config.text.key, kQuantization) : kQuantization;
  const std::vector<std::string> places = quantization_blocks(document);
  // The older key stays where its block does. A second block would speak of the source.
  const bool is_in_place =
      places.size() == 1 && (places.front() == place || places.front() == kCompression);
  if (is_in_place && !block.is_null() && block == quantization_block(document)) return;
  for (const std::string& other : places) {
    if (other != place || block.is_null()) erase_at(other, document);
  }
  if (block.is_null()) return;
  (is_in_text ? text_section(config, document) : document)[kQuantization] = std::move(block);
}

}  // namespace ingot::formats
