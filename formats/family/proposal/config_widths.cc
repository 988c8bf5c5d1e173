#include "formats/family/proposal/config_widths.h"

#include <algorithm>
#include <cctype>
#include <iterator>

#include <fmt/format.h>

#include "formats/base/error.h"
#include "formats/config/keys.h"
#include "formats/config/nested_config.h"
#include "formats/family/proposal/named_layers.h"
#include "formats/family/width.h"
#include "formats/json/json.h"
#include "formats/json/json_fields.h"

namespace ingot::formats {
namespace {

constexpr std::string_view kOfHeads = " * head_dim";

constexpr std::string_view kHeads = "num_attention_heads", kKeyHeads = "num_key_value_heads";

bool can_be_width(const Json& value) {
  const auto number = whole_number(value, ConfigKeys::kMaxWidth);
  return number && *number > 1;
}

}  // namespace

ConfigWidths::ConfigWidths(const ModelConfig& config) : config_(config) {
  for (const auto& [key, value] : text_keys(config_).items()) {
    // An output in another scheme has another block, or none.
    if (&value == &quantization_block(config_)) continue;
    if (can_be_width(value)) offer(key);
    for (const std::string_view heads : {kHeads, kKeyHeads}) {
      if (!key.ends_with(heads) || key.size() == heads.size()) continue;
      std::string prefix = key.substr(0, key.size() - heads.size());
      if (std::ranges::find(prefixes_, prefix) == prefixes_.end())
        prefixes_.push_back(std::move(prefix));
    }
    const bool has_all =
        is_per_layer(value, {config_.num_hidden_layers, config_.num_nextn_predict_layers});
    if (has_all && std::ranges::all_of(value, can_be_width) && size_of(key, 0) != 0)
      by_layer_.push_back(key);
    if (!value.is_object()) continue;
    for (const auto& [inner, number] : value.items()) {
      if (can_be_width(number)) offer(fmt::format("{}.{}", key, inner));
    }
  }
  for (const char* text : {"head_dim", "num_attention_heads * head_dim",
                           "num_key_value_heads * head_dim", "num_attention_heads * v_head_dim",
                           "kv_lora_rank + qk_rope_head_dim", "shared_intermediate_size",
                           "n_routed_experts", "2 * moe_intermediate_size", "2 * hidden_size", "1"})
    offer(text);
}

std::uint64_t ConfigWidths::size_of(const std::string& text,
                                    std::optional<std::uint32_t> layer) const {
  try {
    const Width width = Width::parse(text);
    if (!layer && width.differs_by_layer(config_)) return 0;
    return width.size(config_, layer);
  } catch (const Error&) {
    // No key that an expression can name, or no number.
    return 0;
  }
}

void ConfigWidths::offer(const std::string& text) {
  if (const std::uint64_t size = size_of(text); size != 0) widths_.emplace(size, text);
}

std::vector<std::string> ConfigWidths::texts_of(std::string_view likely) const {
  const auto is_of_word = [](char c) {
    return c == '_' || std::isalnum(static_cast<unsigned char>(c)) != 0;
  };
  std::vector<std::string> texts = split(likely, ", ");
  const std::size_t n = texts.size();
  for (const std::string& prefix : prefixes_) {
    for (std::size_t i = 0; i < n; ++i) {
      const std::string text = texts[i];
      std::string other;
      for (std::size_t at = 0; at < text.size();) {
        std::size_t end = at;
        while (end < text.size() && is_of_word(text[end]) == is_of_word(text[at])) ++end;
        const std::string word = text.substr(at, end - at);
        other += is_of_word(text[at]) && text_keys(config_).contains(prefix + word) ? prefix + word
                                                                                    : word;
        at = end;
      }
      if (other != text) texts.push_back(std::move(other));
    }
  }
  return texts;
}

bool ConfigWidths::is_one_of(std::uint64_t size, std::string_view likely) const {
  return std::ranges::any_of(texts_of(likely),
                             [&](const std::string& text) { return size_of(text) == size; });
}

std::string ConfigWidths::side(std::uint64_t size, std::string_view likely,
                               std::string& guesses) const {
  for (const std::string& text : texts_of(likely)) {
    if (size_of(text) == size) return text;
  }
  const auto [begin, end] = widths_.equal_range(size);
  if (begin == end) {
    guesses += fmt::format("; no width of the config is {}", size);
    return std::to_string(size);
  }
  if (!likely.empty() || std::next(begin) != end)
    guesses += fmt::format("; {} may be another width", size);
  return begin->second;
}

std::string ConfigWidths::side_by_layer(const ShapesByLayer& layers, std::size_t at,
                                        std::string_view likely) const {
  const auto fits = [&](const std::string& text) {
    return std::ranges::all_of(layers, [&](const auto& entry) {
      const auto& [layer, shape] = entry;
      return size_of(text, layer) == (*shape)[at];
    });
  };
  std::vector<std::string> texts = texts_of(likely);
  for (const std::string& key : by_layer_) {
    texts.push_back(key);
    texts.push_back(std::string(key).append(kOfHeads));
  }
  for (const auto& [size, text] : widths_) texts.push_back(text);
  const auto found = std::ranges::find_if(texts, fits);
  return found == texts.end() ? std::string() : *found;
}

std::string ConfigWidths::heads_of(std::string_view shape) const {
  const auto key = std::ranges::find_if(by_layer_, [&](const std::string& one) {
    return shape.find(std::string(one).append(kOfHeads)) != std::string_view::npos ||
           shape.find("[" + one + ",") != std::string_view::npos;
  });
  if (key != by_layer_.end()) return fmt::format(", heads: {}", *key);
  for (const std::string& prefix : prefixes_) {
    for (const std::string_view heads : {kKeyHeads, kHeads}) {
      const std::string own = prefix + std::string(heads);
      if (shape.find(own) != std::string_view::npos) return fmt::format(", heads: {}", own);
    }
  }
  return {};
}

}  // namespace ingot::formats
