#include "inference/chat/jinja/json_values.h"

#include <limits>
#include <utility>

#include <fmt/format.h>

#include "inference/chat/python_json.h"

namespace ingot::inference::jinja {

using formats::Json;

namespace {

std::string key_text(RenderState& state, const Value& key) {
  switch (key.kind()) {
    case Kind::kText:
      return key.text();
    case Kind::kNone:
      return "null";
    case Kind::kBoolean:
      return key.boolean() ? "true" : "false";
    case Kind::kInteger:
      return fmt::format("{}", key.integer());
    case Kind::kFloat:
      return python_json(Json(key.real()));
    default:
      state.fault(fmt::format("a {} cannot be a key of JSON", type_name(key)));
  }
}

}  // namespace

Value value_from_json(RenderState& state, const Json& json) {
  const RenderState::Depth depth(state);
  switch (json.type()) {
    case Json::value_t::boolean:
      return Value::boolean(json.get<bool>());
    case Json::value_t::number_integer:
      return Value::integer(json.get<std::int64_t>());
    case Json::value_t::number_unsigned: {
      const auto number = json.get<std::uint64_t>();
      if (!std::in_range<std::int64_t>(number)) {
        state.beyond(fmt::format("the integer {} of the input does not fit", number));
      }
      return Value::integer(static_cast<std::int64_t>(number));
    }
    case Json::value_t::number_float:
      return Value::real(json.get<double>());
    case Json::value_t::string:
      return state.text(std::string_view(json.get_ref<const std::string&>()));
    case Json::value_t::array: {
      state.charge(json.size() * sizeof(Value));
      std::vector<Value> items;
      items.reserve(json.size());
      for (const Json& item : json) items.push_back(value_from_json(state, item));
      return state.list(std::move(items));
    }
    case Json::value_t::object: {
      state.charge(json.size() * 2 * sizeof(Value));
      Mapping& mapping = state.make<Mapping>();
      mapping.entries.reserve(json.size());
      for (const auto& [key, value] : json.get_ref<const Json::object_t&>()) {
        mapping.entries.emplace_back(state.text(std::string_view(key)),
                                     value_from_json(state, value));
      }
      return Value::mapping(mapping);
    }
    default:
      return Value::none();
  }
}

Json json_from_value(RenderState& state, const Value& value, JsonKeys keys) {
  const RenderState::Depth depth(state);
  state.step();
  switch (value.kind()) {
    case Kind::kNone:
      return nullptr;
    case Kind::kBoolean:
      return value.boolean();
    case Kind::kInteger:
      return value.integer();
    case Kind::kFloat:
      return value.real();
    case Kind::kText:
      state.charge(value.text().size());
      return value.text();
    case Kind::kSequence: {
      const Sequence& sequence = value.sequence();
      if (sequence.form != Sequence::Form::kList && sequence.form != Sequence::Form::kTuple) break;
      Json json = Json::array();
      state.charge(sequence.items.size() * sizeof(Json));
      for (const Value& item : sequence.items) json.push_back(json_from_value(state, item, keys));
      return json;
    }
    case Kind::kMapping: {
      Json json = Json::object();
      // Straight into the members: looking each key up would take quadratic time.
      auto& members = json.get_ref<Json::object_t&>();
      state.charge(value.mapping().entries.size() * sizeof(Json::object_t::value_type));
      for (const auto& [key, item] : value.mapping().entries) {
        if (keys == JsonKeys::kText && !key.is(Kind::kText)) {
          state.unsupported(fmt::format("the order of keys among which is a {}", type_name(key)));
        }
        members.emplace_back(key_text(state, key), json_from_value(state, item, keys));
      }
      return json;
    }
    default:
      break;
  }
  const bool has_name = value.is(Kind::kUndefined) && value.undefined_name().name;
  state.fault(fmt::format("{}{} cannot be written as JSON", type_name(value),
                          has_name ? " '" + *value.undefined_name().name + "'" : ""));
}

}  // namespace ingot::inference::jinja
