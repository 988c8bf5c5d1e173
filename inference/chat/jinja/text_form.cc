#include "inference/chat/jinja/text_form.h"

#include <fmt/format.h>

#include "inference/chat/jinja/code_points.h"
#include "inference/chat/jinja/letter_case.h"
#include "inference/chat/python_json.h"

namespace ingot::inference::jinja {
namespace {

void append_escaped(std::string& out, std::string_view character, char quote) {
  std::size_t i = 0;
  const char32_t c = next_code_point(character, i);
  if (c == static_cast<char32_t>(quote) || c == '\\') {
    out += '\\';
    out += character;
  } else if (c == '\n') {
    out += "\\n";
  } else if (c == '\r') {
    out += "\\r";
  } else if (c == '\t') {
    out += "\\t";
  } else if (c < 0x20 || c == 0x7F) {
    out += fmt::format("\\x{:02x}", static_cast<std::uint32_t>(c));
  } else if (c < 0x7F || is_printable(character)) {
    out += character;
  } else {
    const auto code = static_cast<std::uint32_t>(c);
    out += c <= 0xFF     ? fmt::format("\\x{:02x}", code)
           : c <= 0xFFFF ? fmt::format("\\u{:04x}", code)
                         : fmt::format("\\U{:08x}", code);
  }
}

std::string quoted(RenderState& state, const std::string& text) {
  state.charge(text.size());
  const char quote =
      text.find('\'') != std::string::npos && text.find('"') == std::string::npos ? '"' : '\'';
  std::string out(1, quote);
  for (const std::string_view character : characters(text)) append_escaped(out, character, quote);
  out += quote;
  return out;
}

std::string represent(RenderState& state, const Value& value);

std::string represent(RenderState& state, const Sequence& sequence) {
  const bool is_tuple = sequence.form == Sequence::Form::kTuple;
  std::string out(1, is_tuple ? '(' : '[');
  for (const Value& item : sequence.items) {
    if (out.size() > 1) out += ", ";
    out += represent(state, item);
  }
  if (is_tuple && sequence.items.size() == 1) out += ',';
  out += is_tuple ? ')' : ']';
  return out;
}

std::string represent(RenderState& state, const Mapping& mapping) {
  std::string out = "{";
  for (const auto& [key, value] : mapping.entries) {
    if (out.size() > 1) out += ", ";
    out += represent(state, key) + ": " + represent(state, value);
  }
  return out + "}";
}

// Python's repr(): inside of containers, strings have quotes.
std::string represent(RenderState& state, const Value& value) {
  if (value.is(Kind::kUndefined)) return "Undefined";
  return value.is(Kind::kText) ? quoted(state, value.text()) : to_text(state, value);
}

}  // namespace

std::string to_text(RenderState& state, const Value& value) {
  const RenderState::Depth depth(state);
  state.step();
  switch (value.kind()) {
    case Kind::kUndefined:
      return {};
    case Kind::kNone:
      return "None";
    case Kind::kBoolean:
      return value.boolean() ? "True" : "False";
    case Kind::kInteger:
      return fmt::format("{}", value.integer());
    case Kind::kFloat:
      return python_float(value.real());
    case Kind::kText:
      state.charge(value.text().size());
      return value.text();
    case Kind::kSequence: {
      const Sequence& sequence = value.sequence();
      if (sequence.form != Sequence::Form::kList && sequence.form != Sequence::Form::kTuple) break;
      std::string text = represent(state, sequence);
      state.charge(text.size());
      return text;
    }
    case Kind::kMapping: {
      std::string text = represent(state, value.mapping());
      state.charge(text.size());
      return text;
    }
    case Kind::kNamespace:
    case Kind::kLoop:
    case Kind::kCallable:
      break;
  }
  state.unsupported(fmt::format("the text of a {}{}", type_name(value),
                                value.is(Kind::kSequence) ? " (make it a list first)" : ""));
}

}  // namespace ingot::inference::jinja
