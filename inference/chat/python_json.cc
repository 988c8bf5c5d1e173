#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "formats/base/error.h"
#include "formats/json/json.h"
#include "inference/chat/python_text.h"
#include "inference/tokenizer/characters.h"

namespace ingot::inference {
namespace {

using formats::Json;

std::string json_float(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "Infinity" : "-Infinity";
  return python_float(value);
}

/// A text that grows to a limit.
class LimitedText {
 public:
  explicit LimitedText(std::size_t max_bytes) : max_bytes_(max_bytes) {}

  LimitedText& operator+=(std::string_view text) {
    if (text.size() > max_bytes_ - text_.size())
      throw Error(ErrorCode::kLimit, "a value takes more than {} bytes as JSON", max_bytes_);
    text_ += text;
    return *this;
  }
  LimitedText& operator+=(char c) { return *this += std::string_view(&c, 1); }
  std::string take() { return std::move(text_); }

 private:
  std::size_t max_bytes_;
  std::string text_;
};

void append_code_unit(LimitedText& out, std::uint32_t unit) {
  out += fmt::format("\\u{:04x}", unit);
}

void append_string(LimitedText& out, std::string_view text, bool ensure_ascii) {
  out += '"';
  for (std::size_t i = 0; i < text.size();) {
    const auto [c, n_bytes] = code_point_at(text, i);
    const std::string_view character = text.substr(i, n_bytes);
    i += n_bytes;
    static constexpr std::string_view kShort = "\"\\\n\r\t\f\b";
    static constexpr std::string_view kLetters = "\"\\nrtfb";
    const auto named = c < 0x80 ? kShort.find(static_cast<char>(c)) : std::string_view::npos;
    if (named != std::string_view::npos) {
      out += '\\';
      out += kLetters[named];
    } else if (c < 0x20 || (ensure_ascii && c > 0x7E && c <= 0xFFFF)) {
      append_code_unit(out, static_cast<std::uint32_t>(c));
    } else if (ensure_ascii && c > 0xFFFF) {
      const std::uint32_t offset = static_cast<std::uint32_t>(c) - 0x10000U;
      append_code_unit(out, 0xD800U + (offset >> 10U));
      append_code_unit(out, 0xDC00U + (offset & 0x3FFU));
    } else {
      out += character;
    }
  }
  out += '"';
}

class Writer {
 public:
  explicit Writer(const PythonJsonStyle& style) : style_(style), out_(style.max_bytes) {
    separator_ = !style.item_separator.empty() ? style.item_separator : style.indent ? "," : ", ";
  }

  // Recursive: a Json is as deep as its maker allowed.
  void write(const Json& value, std::size_t level) {
    if (value.is_object()) {
      object(value.get_ref<const Json::object_t&>(), level);
    } else if (value.is_array()) {
      list("[]", value, level, [&](const Json& item) { write(item, level + 1); });
    } else if (value.is_string()) {
      append_string(out_, value.get_ref<const std::string&>(), style_.ensure_ascii);
    } else {
      out_ += value.is_number_float() ? json_float(value.get<double>()) : value.dump();
    }
  }

  std::string take() { return out_.take(); }

 private:
  void line(std::size_t level) {
    if (!style_.indent) return;
    out_ += '\n';
    for (std::size_t i = 0; i < level; ++i) out_ += *style_.indent;
  }

  // Elements between brackets; write_one(element) writes one.
  template <typename Elements, typename WriteOne>
  void list(std::string_view brackets, const Elements& elements, std::size_t level,
            WriteOne write_one) {
    out_ += brackets.front();
    bool first = true;
    for (const auto& element : elements) {
      if (!std::exchange(first, false)) out_ += separator_;
      line(level + 1);
      write_one(element);
    }
    if (!first) line(level);
    out_ += brackets.back();
  }

  void object(const Json::object_t& members, std::size_t level) {
    std::vector<const Json::object_t::value_type*> order;
    for (const auto& member : members) order.push_back(&member);
    if (style_.sort_keys) {
      std::stable_sort(order.begin(), order.end(),
                       [](const auto* a, const auto* b) { return a->first < b->first; });
    }
    list("{}", order, level, [&](const auto* member) {
      append_string(out_, member->first, style_.ensure_ascii);
      out_ += style_.key_separator;
      write(member->second, level + 1);
    });
  }

  const PythonJsonStyle& style_;
  std::string separator_;
  LimitedText out_;
};

}  // namespace

std::string python_float(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  // The digits and the bounds of the exponent are Python's; a whole number lacks its fraction.
  std::string text = fmt::format("{}", value);
  if (text.find_first_of(".e") == std::string::npos) text += ".0";
  return text;
}

std::string python_json(const formats::Json& value, const PythonJsonStyle& style) {
  Writer writer(style);
  writer.write(value, 0);
  return writer.take();
}

}  // namespace ingot::inference
