#include "formats/family/width.h"

#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "formats/base/checked.h"
#include "formats/base/error.h"
#include "formats/base/words.h"
#include "formats/config/config_meaning.h"
#include "formats/config/derived_keys.h"
#include "formats/config/keys.h"
#include "formats/config/nested_config.h"
#include "formats/config/ngram_table.h"
#include "formats/family/forward.h"
#include "formats/json/json.h"
#include "formats/json/json_fields.h"
#include "formats/text/spelling.h"

namespace ingot::formats {
namespace {

constexpr std::size_t kMaxText = 200;
constexpr std::size_t kMaxDepth = 16;
constexpr std::size_t kMaxSteps = 64;
/// The name of the layer's own number, from 0.
constexpr std::string_view kLayerName = "layer";
/// The name of the rows of the layer's table of n-grams.
constexpr std::string_view kNgramName = "ngram_rows";

using Number = std::uint64_t ModelConfig::*;

/// The field of ModelConfig with the number of a key; null without one, or for another spelling.
Number number_in(std::string_view name) {
  const KeyRow* row = find_key(name);
  if (row == nullptr || row->key() != name) return nullptr;
  const Number* field = std::get_if<Number>(&row->field);
  return field == nullptr ? nullptr : *field;
}

using Layer = std::optional<std::uint32_t>;

/// The list that the config has in place of a number; null where it is one number.
const std::vector<std::uint64_t>* layers_of(std::string_view name, const ModelConfig& config) {
  if (config.by_layer.empty()) return nullptr;
  const auto found = config.by_layer.find(name);
  return found == config.by_layer.end() ? nullptr : &found->second;
}

std::uint64_t field_value(std::string_view name, Number field, const ModelConfig& config,
                          Layer layer) {
  const std::vector<std::uint64_t>* list = layer ? layers_of(name, config) : nullptr;
  std::uint64_t value = config.*field;
  if (list != nullptr) value = *layer < list->size() ? (*list)[*layer] : 0;
  if (field != &ModelConfig::head_dim || value != 0) return value;
  // Configs of GQA families may leave head_dim out.
  return usual_head_dim(
      field_value("hidden_size", &ModelConfig::hidden_size, config, layer),
      field_value("num_attention_heads", &ModelConfig::num_attention_heads, config, layer));
}

bool is_list(const Json& value, const ModelConfig& config) {
  return !value.empty() &&
         is_per_layer(value, {config.num_hidden_layers, config.num_nextn_predict_layers});
}

template <typename... Args>
[[noreturn]] void refuse_width(std::string_view text, fmt::format_string<Args...> fact,
                               Args&&... args) {
  throw Error(ErrorCode::kInvalidArgument, "'{}' {}", text,
              fmt::format(fact, std::forward<Args>(args)...));
}

std::uint64_t checked(std::optional<std::uint64_t> value, std::uint64_t a, char sign,
                      std::uint64_t b) {
  if (value) return *value;
  throw Error(ErrorCode::kLimit, "a width of {} {} {} does not fit 64 bits", a,
              sign == '*' ? 'x' : sign, b)
      .in_file("config.json");
}

bool is_letter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}
bool is_digit(char c) {
  return c >= '0' && c <= '9';
}
bool is_name(std::string_view text) {
  return !text.empty() && is_letter(text.front()) && text != "or" && text != "default" &&
         std::ranges::all_of(text, [](char c) { return is_letter(c) || is_digit(c); });
}

}  // namespace

// or < + - < * / < ( ): each level reads those above it.
class WidthParser {
 public:
  WidthParser(std::string_view text, const NamedWidths* names) : text_(text), names_(names) {}

  Width read() {
    if (text_.size() > kMaxText)
      refuse_width(text_.substr(0, 40), "is longer than {} characters", kMaxText);
    choice(0);
    skip_blanks();
    if (at_ != text_.size()) refuse_width(text_, "is not understood from '{}' on", rest());
    width_.text_ = text_;
    return std::move(width_);
  }
  static std::vector<std::string> keys_of(const Width& width) {
    std::vector<std::string> keys;
    for (const Width::Step& step : width.steps_)
      if (step.kind == Kind::kKey) keys.push_back(step.key);
    return keys;
  }

 private:
  using Kind = Width::Kind;

  void choice(std::size_t depth) {
    sum(depth);
    while (take_word("or")) {
      sum(depth);
      add({.kind = Kind::kOr});
    }
  }
  void sum(std::size_t depth) {
    product(depth);
    while (const char sign = take_one_of("+-")) {
      product(depth);
      add({.kind = sign == '+' ? Kind::kAdd : Kind::kSubtract});
    }
  }
  void product(std::size_t depth) {
    factor(depth);
    while (const char sign = take_one_of("*/")) {
      factor(depth);
      add({.kind = sign == '*' ? Kind::kMultiply : Kind::kDivide});
    }
  }
  void factor(std::size_t depth) {
    if (take_one_of("(") != 0) {
      if (depth == kMaxDepth)
        refuse_width(text_, "has more than {} parentheses inside each other", kMaxDepth);
      choice(depth + 1);
      if (take_one_of(")") == 0) refuse_width(text_, "lacks a ')'");
      return;
    }
    skip_blanks();
    const std::size_t begin = at_;
    while (at_ < text_.size() &&
           (is_letter(text_[at_]) || is_digit(text_[at_]) || text_[at_] == '.'))
      ++at_;
    const std::string_view word = text_.substr(begin, at_ - begin);
    if (word.empty() || word == "or" || word == "default")
      refuse_width(text_, "{}",
                   at_ == text_.size()
                       ? "ends where a number or a name is missing"
                       : fmt::format("has no number or name at '{}'", text_.substr(begin)));
    if (is_digit(word.front())) {
      add({.kind = Kind::kNumber, .number = number(word)});
      return;
    }
    const bool is_key = name(word);
    if (!take_word("default")) return;
    if (!is_key)
      refuse_width(text_, "has a default for '{}', which is no key of config.json", word);
    skip_blanks();
    const std::size_t from = at_;
    while (at_ < text_.size() && (is_letter(text_[at_]) || is_digit(text_[at_]))) ++at_;
    width_.steps_.back().number = number(text_.substr(from, at_ - from));
  }

  [[nodiscard]] std::uint64_t number(std::string_view word) const {
    const auto value = number_from<std::uint64_t>(word);
    if (!value || *value > ConfigKeys::kMaxWidth)
      refuse_width(text_, "has '{}', which is no whole number up to {}", word,
                   ConfigKeys::kMaxWidth);
    return *value;
  }

  /// True for a key of config.json; only such a key may be missing.
  bool name(std::string_view word) {
    if (const Width* known = names_ != nullptr ? names_->find(word) : nullptr) {
      for (const Width::Step& step : known->steps_) add(step);
      return false;
    }
    if (const Number field = number_in(word); field != nullptr) {
      add({.kind = Kind::kField, .key = std::string(word), .field = field});
      return false;
    }
    for (std::string_view path = word;;) {
      const std::size_t dot = path.find('.');
      if (!is_name(path.substr(0, dot))) refuse_width(text_, "has '{}', which is no key", word);
      if (dot == std::string_view::npos) break;
      path.remove_prefix(dot + 1);
    }
    add({.kind = Kind::kKey, .key = std::string(word)});
    return true;
  }

  void add(Width::Step step) {
    if (width_.steps_.size() == kMaxSteps)
      refuse_width(text_, "takes more than {} steps to compute", kMaxSteps);
    width_.steps_.push_back(std::move(step));
  }

  void skip_blanks() {
    while (at_ < text_.size() && text_[at_] == ' ') ++at_;
  }
  [[nodiscard]] std::string_view rest() const { return text_.substr(at_); }
  char take_one_of(std::string_view signs) {
    skip_blanks();
    if (at_ == text_.size() || signs.find(text_[at_]) == std::string_view::npos) return 0;
    return text_[at_++];
  }
  bool take_word(std::string_view word) {
    skip_blanks();
    if (!rest().starts_with(word)) return false;
    const std::size_t end = at_ + word.size();
    if (end < text_.size() && (is_letter(text_[end]) || is_digit(text_[end]))) return false;
    at_ = end;
    return true;
  }

  std::string_view text_;
  const NamedWidths* names_;
  std::size_t at_ = 0;
  Width width_;
};

Width Width::parse(std::string_view text, const NamedWidths* names) {
  return WidthParser(text, names).read();
}

std::vector<std::string> keys_of(const Width& expression) {
  return WidthParser::keys_of(expression);
}

const Json& config_value(const ModelConfig& config, std::string_view path) {
  const Json* value = &text_keys(config);
  // A key of the model may have another spelling there.
  if (json_member(*value, path).is_null() && find_key(path) != nullptr)
    return json_member(*value, spelling_in(*value, path));
  while (true) {
    const std::size_t dot = path.find('.');
    const std::string_view word = path.substr(0, dot);
    const auto entry = value->is_array() ? number_from<std::uint64_t>(word) : std::nullopt;
    const bool is_there = entry && *entry < value->size();
    value = is_there ? &(*value)[static_cast<std::size_t>(*entry)] : &json_member(*value, word);
    if (dot == std::string_view::npos) return *value;
    path.remove_prefix(dot + 1);
  }
}

std::uint64_t Width::value_of(const Step& step, const ModelConfig& config, Layer layer) {
  if (step.kind == Kind::kNumber) return step.number;
  if (step.kind == Kind::kField) return field_value(step.key, step.field, config, layer);
  if (step.key == kLayerName) return layer.value_or(0);
  if (step.key == kNgramName) {
    const auto table = layer ? ngram_table(text_keys(config), *layer) : std::nullopt;
    return table ? table->rows : 0;
  }
  const Json& said = config_value(config, step.key);
  const bool has_own = layer && is_list(said, config);
  if (has_own && *layer >= said.size()) return 0;
  const Json& value = has_own ? said[*layer] : said;
  if (value.is_null()) return step.number;
  if (value.is_boolean()) return value.get<bool>() ? 1 : 0;
  if (const auto number = whole_number(value, ConfigKeys::kMaxWidth)) return *number;
  throw Error(ErrorCode::kCorrupt, "'{}' is {}, where the family needs a whole number up to {}",
              step.key, config_text(value), ConfigKeys::kMaxWidth)
      .in_file("config.json");
}

std::uint64_t Width::size(const ModelConfig& config, Layer layer) const {
  std::array<std::uint64_t, kMaxSteps> stack{};
  std::size_t n = 0;
  for (const Step& step : steps_) {
    if (step.kind <= Kind::kKey) {
      stack[n++] = value_of(step, config, layer);
      continue;
    }
    const std::uint64_t b = stack[--n];
    std::uint64_t& a = stack[n - 1];
    switch (step.kind) {
      case Kind::kAdd:
        a = checked(checked_add(a, b), a, '+', b);
        break;
      case Kind::kSubtract:
        a = a > b ? a - b : 0;
        break;
      case Kind::kMultiply:
        a = checked(checked_mul(a, b), a, '*', b);
        break;
      case Kind::kDivide:
        a = b == 0 ? 0 : a / b;
        break;
      default:
        if (a == 0) a = b;
    }
  }
  return n == 0 ? 0 : stack[0];
}

bool Width::differs_by_layer(const ModelConfig& config) const {
  return std::ranges::any_of(steps_, [&](const Step& step) {
    if (step.kind == Kind::kField) return layers_of(step.key, config) != nullptr;
    return step.kind == Kind::kKey && (step.key == kLayerName || step.key == kNgramName ||
                                       is_list(config_value(config, step.key), config));
  });
}

std::vector<std::string> Width::missing(const ModelConfig& config, Layer layer) const {
  std::vector<std::string> names;
  for (const Step& step : steps_) {
    if (step.key.empty() || value_of(step, config, layer) != 0) continue;
    if (std::ranges::find(names, step.key) == names.end()) names.push_back(step.key);
  }
  return names;
}

bool Width::mentions(std::string_view name) const {
  return std::ranges::find(steps_, name, &Step::key) != steps_.end();
}

std::optional<std::uint64_t> Width::times(std::string_view name) const {
  if (steps_.size() == 1 && steps_[0].key == name) return 1;
  if (steps_.size() != 3 || steps_[2].kind != Kind::kMultiply) return std::nullopt;
  const bool is_first = steps_[0].kind == Kind::kNumber;
  const Step& factor = steps_[is_first ? 0 : 1];
  if (factor.kind != Kind::kNumber || steps_[is_first ? 1 : 0].key != name) return std::nullopt;
  return factor.number;
}

void NamedWidths::add(std::string_view name, Width width) {
  if (!is_name(name))
    refuse_width(name, "is no name of a width (letters, digits and _, and not the word or)");
  if (find(name) != nullptr) refuse_width(name, "is the name of a width already");
  if (number_in(name) != nullptr)
    refuse_width(name, "is a width of every config (choose another name)");
  rows_.push_back({.name = std::string(name), .width = std::move(width)});
}

const Width* NamedWidths::find(std::string_view name) const {
  const auto found = std::ranges::find(rows_, name, &Row::name);
  return found == rows_.end() ? nullptr : &found->width;
}

}  // namespace ingot::formats
