#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "formats/json/json.h"
#include "inference/chat/jinja/operators.h"
#include "inference/chat/python_text.h"
#include "inference/tokenizer/characters.h"

namespace ingot::inference::jinja {
namespace {

using formats::Json;

std::string escaped(std::string_view character, char quote) {
  const char32_t c = code_point_at(character, 0).value;
  const auto code = static_cast<std::uint32_t>(c);
  if (c == static_cast<char32_t>(quote) || c == '\\') return '\\' + std::string(character);
  if (c == '\n') return "\\n";
  if (c == '\r') return "\\r";
  if (c == '\t') return "\\t";
  if (is_printable(c)) return std::string(character);
  if (c <= 0xFF) return fmt::format("\\x{:02x}", code);
  return c <= 0xFFFF ? fmt::format("\\u{:04x}", code) : fmt::format("\\U{:08x}", code);
}

// Python's repr(): inside of containers, strings have quotes.
std::string represent(RenderState& state, const Value& value) {
  if (value.is(Kind::kUndefined)) return "Undefined";
  if (!value.is(Kind::kText)) return to_text(state, value);
  const std::string& text = value.text();
  state.charge(text.size());
  const bool is_double =
      text.find('\'') != std::string::npos && text.find('"') == std::string::npos;
  const char quote = is_double ? '"' : '\'';
  std::string out(1, quote);
  for (std::size_t i = 0; i < text.size();) {
    const std::size_t n = code_point_at(text, i).n_bytes;
    state.append(out, escaped(std::string_view(text).substr(i, n), quote));
    i += n;
  }
  state.append(out, {&quote, 1});
  return out;
}

std::string sequence_text(RenderState& state, const Sequence& sequence) {
  const bool is_tuple = sequence.form == Sequence::Form::kTuple;
  std::string out(1, is_tuple ? '(' : '[');
  for (const Value& item : sequence.items) {
    if (out.size() > 1) state.append(out, ", ");
    state.append(out, represent(state, item));
  }
  if (is_tuple && sequence.items.size() == 1) out += ',';
  return out + (is_tuple ? ')' : ']');
}

std::string mapping_text(RenderState& state, const Mapping& mapping) {
  std::string out = "{";
  for (const auto& [key, value] : mapping.entries) {
    if (out.size() > 1) state.append(out, ", ");
    state.append(out, represent(state, key));
    state.append(out, ": ");
    state.append(out, represent(state, value));
  }
  return out + "}";
}

Json json_from_value(RenderState& state, const Value& value, bool sorts_keys) {
  const Nesting nesting = state.deeper();
  state.step();
  if (value.is(Kind::kNone)) return nullptr;
  if (value.is(Kind::kBoolean)) return value.boolean();
  if (value.is(Kind::kInteger)) return value.integer();
  if (value.is(Kind::kFloat)) return value.real();
  if (value.is(Kind::kText)) {
    state.charge(value.text().size() + sizeof(std::string));
    return value.text();
  }
  if (is_list_or_tuple(value)) {
    Json json = Json::array();
    state.charge(sizeof(Json::array_t) + value.sequence().items.size() * sizeof(Json));
    json.get_ref<Json::array_t&>().reserve(value.sequence().items.size());
    for (const Value& item : value.sequence().items) {
      json.push_back(json_from_value(state, item, sorts_keys));
    }
    return json;
  }
  if (value.is(Kind::kMapping)) {
    Json json = Json::object();
    // Straight into the members: looking each key up would take quadratic time.
    auto& members = json.get_ref<Json::object_t&>();
    state.charge(sizeof(Json::object_t) +
                 value.mapping().entries.size() * sizeof(Json::object_t::value_type));
    members.reserve(value.mapping().entries.size());
    for (const auto& [key, item] : value.mapping().entries) {
      if (sorts_keys && !key.is(Kind::kText)) {
        state.unsupported("the order of keys among which is a {}", type_name(key));
      }
      if (key.kind() == Kind::kSequence) state.fault("a tuple cannot be a key of JSON");
      // json.dumps writes 1 and true as "1" and "true".
      Json name = json_from_value(state, key, false);
      if (key.is(Kind::kText)) state.charge(key.text().size());
      members.emplace_back(key.is(Kind::kText) ? name.get<std::string>() : python_json(name),
                           json_from_value(state, item, sorts_keys));
    }
    return json;
  }
  const bool has_name = value.is(Kind::kUndefined) && value.undefined_name().name;
  state.fault("{}{} cannot be written as JSON", type_name(value),
              has_name ? " '" + *value.undefined_name().name + "'" : "");
}

}  // namespace

std::string to_text(RenderState& state, const Value& value) {
  const Nesting nesting = state.deeper();
  state.step();
  if (value.is(Kind::kUndefined)) return {};
  if (value.is(Kind::kNone)) return "None";
  if (value.is(Kind::kBoolean)) return value.boolean() ? "True" : "False";
  if (value.is(Kind::kInteger)) return fmt::format("{}", value.integer());
  if (value.is(Kind::kFloat)) return python_float(value.real());
  std::string text;
  if (value.is(Kind::kText)) {
    state.append(text, value.text());
  } else if (value.is(Kind::kMapping)) {
    text = mapping_text(state, value.mapping());
  } else if (is_list_or_tuple(value)) {
    text = sequence_text(state, value.sequence());
  } else {
    state.unsupported("the text of a {}{}", type_name(value),
                      value.is(Kind::kSequence) ? " (make it a list first)" : "");
  }
  return text;
}

Value value_from_json(RenderState& state, const Json& json) {
  const Nesting nesting = state.deeper();
  if (json.is_boolean()) return Value::boolean(json.get<bool>());
  if (json.is_number_float()) return Value::real(json.get<double>());
  if (json.is_number_unsigned() && !std::in_range<std::int64_t>(json.get<std::uint64_t>())) {
    state.beyond("the integer {} of the input does not fit", json.get<std::uint64_t>());
  }
  if (json.is_number()) return Value::integer(json.get<std::int64_t>());
  if (json.is_string()) return state.text(json.get_ref<const std::string&>());
  if (json.is_array()) {
    std::vector<Value> items;
    state.reserve(items, json.size());
    for (const Json& item : json) items.push_back(value_from_json(state, item));
    return state.sequence(Sequence::Form::kList, std::move(items));
  }
  if (!json.is_object()) return Value::none();
  auto& mapping = state.make<Mapping>();
  state.reserve(mapping.entries, json.size());
  for (const auto& [key, value] : json.get_ref<const Json::object_t&>()) {
    mapping.entries.emplace_back(state.text(key), value_from_json(state, value));
  }
  return Value::mapping(mapping);
}

std::string json_text(RenderState& state, const Value& value, const PythonJsonStyle& style) {
  return python_json(json_from_value(state, value, style.sort_keys), style);
}

}  // namespace ingot::inference::jinja
