#include "inference/family/parameters.h"

#include "formats/base/words.h"
#include "formats/config/nested_config.h"
#include "formats/json/json.h"
#include "inference/family/spec_parts.h"

namespace ingot::inference {

using formats::ForwardValue;
using formats::Json;

namespace {

constexpr std::string_view kDefault = " default ";
constexpr std::string_view kLacks = "lacks ";

// The keys before the last one, and that.
std::pair<std::string_view, std::string_view> split_path(std::string_view path) {
  const std::size_t dot = path.rfind('.');
  if (dot == std::string_view::npos) return {"", path};
  return {path.substr(0, dot), path.substr(dot + 1)};
}

}  // namespace

void Parameters::refuse(int line, const std::string& fact) const {
  throw Error(ErrorCode::kInvalidArgument, "line {}: {}", line, fact)
      .in_file(fmt::format("family {}", family_.name));
}

const Json& value_of(const formats::ModelConfig& config, std::string_view key) {
  for (std::size_t at = key.find('.'); at != std::string_view::npos; at = key.find('.', at + 1)) {
    const Json& outer = formats::config_value(config, key.substr(0, at));
    if (!outer.is_null() && !outer.is_structured())
      refuse(fmt::format("'{}' is not an object", key.substr(0, at)));
    const std::string_view word = key.substr(at + 1, key.find('.', at + 1) - at - 1);
    const auto entry = number_from<std::uint64_t>(word);
    if (outer.is_array() && (!entry || *entry >= outer.size()))
      refuse(fmt::format("'{}' has {} entries, and none of number {}", key.substr(0, at),
                         outer.size(), word));
  }
  return formats::config_value(config, key);
}

std::uint64_t Parameters::whole(std::string_view name, std::uint64_t usual,
                                std::optional<bool> is_flag) {
  const ForwardValue* value = find(name);
  if (value == nullptr) return usual;
  const std::string& text = text_of(*value);
  if (text == "true" || text == "false") return text == "true" ? 1 : 0;
  if (text.starts_with(kLacks)) {
    const auto [outer, key] = split_path(std::string_view(text).substr(kLacks.size()));
    const Json& object = outer.empty() ? formats::text_keys(config_) : value_of(config_, outer);
    return formats::json_member(object, key).is_null() ? 1 : 0;
  }
  if (text == "rope_layers" && layer_)
    return rope_layers(spec_fields(config_), config_.num_hidden_layers).at(*layer_) ? 1 : 0;
  try {
    const formats::Width width = formats::Width::parse(text, family_.widths);
    for (const std::string& key : formats::keys_of(width)) {
      const Json& is = value_of(config_, key);
      if (!is_flag || is.is_null() || is.is_array() || is.is_boolean() == *is_flag) continue;
      // A flag may be a factor within an expression.
      if (is.is_boolean() && key != this->key(name)) continue;
      inference::refuse(fmt::format("'{}' is {}, {}", key, is.dump(),
                                    *is_flag ? "not true or false" : "not a whole number"));
    }
    return width.size(config_, layer_);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kInvalidArgument) throw;
    refuse(value->line, error.message());
  }
}

bool Parameters::is_set(std::string_view name, bool usual) {
  if (const ForwardValue* value = find(name)) {
    const Json* said = &value_of(config_, text_of(*value));
    if (said->is_array() && layer_ && *layer_ < said->size()) said = &(*said)[*layer_];
    if (said->is_number_float()) return said->get<double>() != 0;
  }
  return whole(name, usual ? 1 : 0, std::nullopt) != 0;
}

std::string Parameters::key(std::string_view name) {
  const ForwardValue* value = find(name);
  const std::string text = value == nullptr ? std::string(name) : text_of(*value);
  return text.substr(0, text.find(kDefault));
}

std::size_t Parameters::count(std::string_view name, std::size_t usual, Limits limits) {
  const std::uint64_t is = number(name, usual);
  if (static_cast<double>(is) > limits.most)
    inference::refuse(
        fmt::format("'{}' is {}, at most {} is plausible", key(name), is, limits.most));
  if (static_cast<double>(is) >= limits.least) return static_cast<std::size_t>(is);
  required(is, key(name));
  inference::refuse(
      fmt::format("'{}' is {}, at least {} is plausible", key(name), is, limits.least));
  return static_cast<std::size_t>(is);
}

std::optional<double> Parameters::real(std::string_view name, Limits limits) {
  const ForwardValue* value = find(name);
  if (value == nullptr) return std::nullopt;
  const std::string& text = text_of(*value);
  if (text.find_first_of("0123456789-") == 0) return literal(*value, text);
  const std::size_t at = text.find(kDefault);
  const std::string key = text.substr(0, at);
  const Json* said = &value_of(config_, key);
  if (said->is_array() && layer_) {
    if (*layer_ >= said->size())
      inference::refuse(
          fmt::format("'{}' is not a list for {} layers", key, config_.num_hidden_layers));
    said = &(*said)[*layer_];
    if (said->is_null()) return 0;
  }
  // transformers 5 writes {"__float__": "Infinity"} for no limit.
  const bool is_endless = formats::text_at(*said, "__float__") == "Infinity";
  if (said->is_null() || is_endless) {
    if (at == std::string::npos) return std::nullopt;
    return literal(*value, std::string_view(text).substr(at + kDefault.size()));
  }
  const double number = said->is_number() ? said->get<double>() : std::nan("");
  if (number >= limits.least && number <= limits.most) return number;
  inference::refuse(fmt::format("'{}' is {}, no number from {} to {}", key, said->dump(),
                                limits.least, limits.most));
}

std::string Parameters::kind() {
  const ForwardValue* value = find("kind");
  if (value == nullptr) refuse(part_.line, "a mixer lacks its kind");
  return value->text;
}

void Parameters::require_all_asked() const {
  for (const auto& [name, value] : part_.parameters) {
    if (std::ranges::find(asked_, name) != asked_.end()) continue;
    refuse(value.line,
           fmt::format("there is no parameter '{}'{}", name, did_you_mean(name, asked_)));
  }
}

const ForwardValue* Parameters::find(std::string_view name) {
  if (std::ranges::find(asked_, name) == asked_.end()) asked_.push_back(name);
  const auto found =
      std::ranges::find(part_.parameters, name, &formats::ForwardParameters::value_type::first);
  return found == part_.parameters.end() ? nullptr : &found->second;
}

const std::string& Parameters::text_of(const ForwardValue& value) const {
  if (value.key.empty()) return value.text;
  const std::string word = spec_fields(config_).text(value.key.c_str(), value.text);
  std::string known;
  for (const auto& [choice, text] : value.choices) {
    if (choice == word) return text;
    known += (known.empty() ? "" : ", ") + choice;
  }
  inference::refuse(ErrorCode::kUnsupported, fmt::format("'{}' is '{}'; family {} knows {}",
                                                         value.key, word, family_.name, known));
}

double Parameters::literal(const ForwardValue& value, std::string_view text) const {
  const auto number = number_from<double>(text);
  if (!number) refuse(value.line, fmt::format("'{}' is no number", text));
  return *number;
}

}  // namespace ingot::inference
