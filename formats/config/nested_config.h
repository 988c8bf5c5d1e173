#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "formats/config/model_config.h"

// Models of several modalities keep the text model's keys in an object of their config.json.

namespace ingot::formats {

/// Keys under which a config may hold the config of its text model.
std::span<const std::string_view> text_config_keys();
/// The object of one of these keys, whose dots lead into objects; null where there is none.
const Json& text_object(const Json& document, std::string_view key);

/// The place of the text model in this document, and its keys; `prefix` is empty.
TextNesting text_nesting(const Json& document);

/// The key under which a text model's config has the number of its MTP layers, or would have it.
const std::string& mtp_layer_key(const Json& keys);

/// The keys that readers of the text model see, in the words of its releases (released_words.h).
const Json& text_keys(const ModelConfig& config);

/// The object of `document` that holds the text model's own keys; `document` is that of `config`,
/// or a copy with other values.
Json& text_section(const ModelConfig& config, Json& document);
/// The object of a whole config.json that holds the text model's own keys; `document` itself where
/// its model is not nested.
Json& text_section(Json& document);

/// `quantization_config`, at any place, else `compression_config`, as engines look for it; null
/// without one.
const Json& quantization_block(const ModelConfig& config);
/// The quantization block of a document without a typed view; null without one.
const Json& quantization_block(const Json& document);

/// The places of all objects that describe a quantization, whoever reads them: paths of keys with
/// dots, as `vision_config.quantization_config`, in the order of the document.
std::vector<std::string> quantization_blocks(const Json& document);

/// Puts `block` where the loader of the model looks, and removes all others; null removes all.
void set_quantization_block(const ModelConfig& config, Json& document, Json block);

}  // namespace ingot::formats
