#include "formats/family/width.h"

#include <algorithm>
#include <array>
#include <charconv>

#include <fmt/format.h>

#include "formats/base/checked.h"
#include "formats/base/error.h"
#include "formats/config/config_meaning.h"
#include "formats/config/nested_config.h"
#include "formats/json/json.h"
#include "formats/json/json_fields.h"
#include "formats/text/spelling.h"

namespace ingot::formats {
namespace {

constexpr std::size_t kMaxText = 200;
constexpr std::size_t kMaxDepth = 16;
constexpr std::size_t kMaxSteps = 64;
constexpr std::uint64_t kMaxNumber = std::uint64_t{1} << 32;

/// A number of ModelConfig, under the name of its member.
struct Field {
  std::string_view name;
  std::uint64_t ModelConfig::*number;
  std::string_view keys = {};  ///< its names in config.json, for messages; empty: its own name
};

constexpr std::array kFields = {
    Field{"vocab_size", &ModelConfig::vocab_size},
    Field{"hidden_size", &ModelConfig::hidden_size},
    Field{"intermediate_size", &ModelConfig::intermediate_size},
    Field{"moe_intermediate_size", &ModelConfig::moe_intermediate_size},
    Field{"shared_intermediate_size", &ModelConfig::shared_intermediate_size,
          "moe_intermediate_size or shared_expert_intermediate_size"},
    Field{"num_hidden_layers", &ModelConfig::num_hidden_layers},
    Field{"num_nextn_predict_layers", &ModelConfig::num_nextn_predict_layers},
    Field{"num_attention_heads", &ModelConfig::num_attention_heads},
    Field{"num_key_value_heads", &ModelConfig::num_key_value_heads},
    Field{"head_dim", &ModelConfig::head_dim},
    Field{"n_routed_experts", &ModelConfig::n_routed_experts, "n_routed_experts or num_experts"},
    Field{"n_shared_experts", &ModelConfig::n_shared_experts},
    Field{"num_experts_per_tok", &ModelConfig::num_experts_per_tok},
    Field{"q_lora_rank", &ModelConfig::q_lora_rank},
    Field{"kv_lora_rank", &ModelConfig::kv_lora_rank},
    Field{"qk_nope_head_dim", &ModelConfig::qk_nope_head_dim},
    Field{"qk_rope_head_dim", &ModelConfig::qk_rope_head_dim},
    Field{"v_head_dim", &ModelConfig::v_head_dim},
    Field{"index_n_heads", &ModelConfig::index_n_heads},
    Field{"index_head_dim", &ModelConfig::index_head_dim},
    Field{"index_topk", &ModelConfig::index_topk},
    Field{"linear_num_key_heads", &ModelConfig::linear_num_key_heads},
    Field{"linear_num_value_heads", &ModelConfig::linear_num_value_heads},
    Field{"linear_key_head_dim", &ModelConfig::linear_key_head_dim},
    Field{"linear_value_head_dim", &ModelConfig::linear_value_head_dim},
    Field{"max_position_embeddings", &ModelConfig::max_position_embeddings},
};

using Layer = std::optional<std::uint32_t>;

/// The list that the config has in place of a number; null where it is one number.
const std::vector<std::uint64_t>* layers_of(const Field& field, const ModelConfig& config) {
  if (config.by_layer.empty()) return nullptr;
  const auto found = config.by_layer.find(field.name);
  return found == config.by_layer.end() ? nullptr : &found->second;
}

std::uint64_t number_of(std::uint64_t ModelConfig::*number, const ModelConfig& config,
                        Layer layer) {
  const auto& field = *std::ranges::find(kFields, number, &Field::number);
  const std::vector<std::uint64_t>* list = layer ? layers_of(field, config) : nullptr;
  if (list == nullptr) return config.*number;
  return *layer < list->size() ? (*list)[*layer] : 0;
}

std::uint64_t field_value(const Field& field, const ModelConfig& config, Layer layer) {
  const std::uint64_t value = number_of(field.number, config, layer);
  if (field.number != &ModelConfig::head_dim || value != 0) return value;
  // Configs of GQA families may leave head_dim out.
  const std::uint64_t n_heads = number_of(&ModelConfig::num_attention_heads, config, layer);
  return n_heads == 0 ? 0 : number_of(&ModelConfig::hidden_size, config, layer) / n_heads;
}

/// Whether a value of config.json has an entry per layer.
bool is_per_layer(const Json& value, const ModelConfig& config) {
  return value.is_array() && !value.empty() &&
         (value.size() == config.num_hidden_layers ||
          value.size() == config.num_hidden_layers + config.num_nextn_predict_layers);
}

[[noreturn]] void refuse(std::string_view text, std::string_view fact) {
  throw Error(ErrorCode::kInvalidArgument, fmt::format("'{}' {}", text, fact));
}

std::uint64_t checked(std::optional<std::uint64_t> value, std::uint64_t a, char sign,
                      std::uint64_t b) {
  if (value) return *value;
  throw Error(ErrorCode::kLimit, fmt::format("a width of {} {} {} does not fit 64 bits", a,
                                             sign == '*' ? 'x' : sign, b))
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
      refuse(text_.substr(0, 40), fmt::format("is longer than {} characters", kMaxText));
    choice(0);
    skip_blanks();
    if (at_ != text_.size()) refuse(text_, fmt::format("is not understood from '{}' on", rest()));
    width_.text_ = text_;
    return std::move(width_);
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
        refuse(text_, fmt::format("has more than {} parentheses inside each other", kMaxDepth));
      choice(depth + 1);
      if (take_one_of(")") == 0) refuse(text_, "lacks a ')'");
      return;
    }
    skip_blanks();
    const std::size_t begin = at_;
    while (at_ < text_.size() &&
           (is_letter(text_[at_]) || is_digit(text_[at_]) || text_[at_] == '.'))
      ++at_;
    const std::string_view word = text_.substr(begin, at_ - begin);
    if (word.empty() || word == "or" || word == "default")
      refuse(text_, at_ == text_.size()
                        ? "ends where a number or a name is missing"
                        : fmt::format("has no number or name at '{}'", text_.substr(begin)));
    if (is_digit(word.front())) {
      add({.kind = Kind::kNumber, .number = number(word)});
      return;
    }
    const bool is_key = name(word);
    if (!take_word("default")) return;
    if (!is_key)
      refuse(text_, fmt::format("has a default for '{}', which is no key of config.json", word));
    skip_blanks();
    const std::size_t from = at_;
    while (at_ < text_.size() && (is_letter(text_[at_]) || is_digit(text_[at_]))) ++at_;
    width_.steps_.back().number = number(text_.substr(from, at_ - from));
  }

  [[nodiscard]] std::uint64_t number(std::string_view word) const {
    std::uint64_t value = 0;
    const auto [end, failure] = std::from_chars(word.data(), word.data() + word.size(), value);
    if (failure != std::errc() || end != word.data() + word.size() || value > kMaxNumber)
      refuse(text_, fmt::format("has '{}', which is no whole number up to {}", word, kMaxNumber));
    return value;
  }

  /// True for a key of config.json; only such a key may be missing.
  bool name(std::string_view word) {
    if (const Width* known = names_ != nullptr ? names_->find(word) : nullptr) {
      for (const Width::Step& step : known->steps_) add(step);
      return false;
    }
    const auto field = std::ranges::find(kFields, word, &Field::name);
    if (field != kFields.end()) {
      add({.kind = Kind::kField, .number = static_cast<std::uint64_t>(field - kFields.begin())});
      return false;
    }
    for (std::string_view path = word;;) {
      const std::size_t dot = path.find('.');
      if (!is_name(path.substr(0, dot)))
        refuse(text_, fmt::format("has '{}', which is no key", word));
      if (dot == std::string_view::npos) break;
      path.remove_prefix(dot + 1);
    }
    add({.kind = Kind::kKey, .key = std::string(word)});
    return true;
  }

  void add(Width::Step step) {
    if (width_.steps_.size() == kMaxSteps)
      refuse(text_, fmt::format("takes more than {} steps to compute", kMaxSteps));
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

const Json& config_value(const ModelConfig& config, std::string_view path) {
  const Json* value = &text_keys(config);
  while (true) {
    const std::size_t dot = path.find('.');
    value = &json_member(*value, path.substr(0, dot));
    if (dot == std::string_view::npos) return *value;
    path.remove_prefix(dot + 1);
  }
}

std::uint64_t Width::value_of(const Step& step, const ModelConfig& config, Layer layer) {
  if (step.kind == Kind::kNumber) return step.number;
  if (step.kind == Kind::kField) return field_value(kFields[step.number], config, layer);
  const Json& said = config_value(config, step.key);
  const bool is_list = layer && is_per_layer(said, config);
  if (is_list && *layer >= said.size()) return 0;
  const Json& value = is_list ? said[*layer] : said;
  if (value.is_null()) return step.number;
  if (value.is_boolean()) return value.get<bool>() ? 1 : 0;
  if (const auto number = whole_number(value, kMaxNumber)) return *number;
  throw Error(ErrorCode::kCorrupt,
              fmt::format("'{}' is {}, where the family needs a whole number up to {}", step.key,
                          config_text(value), kMaxNumber))
      .in_file("config.json");
}

std::string_view Width::name_of(const Step& step) {
  if (step.kind == Kind::kKey) return step.key;
  return step.kind == Kind::kField ? kFields[step.number].name : std::string_view();
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
    if (step.kind == Kind::kField) return layers_of(kFields[step.number], config) != nullptr;
    return step.kind == Kind::kKey && is_per_layer(config_value(config, step.key), config);
  });
}

std::vector<std::string> Width::missing(const ModelConfig& config, Layer layer) const {
  std::vector<std::string> names;
  for (const Step& step : steps_) {
    const std::string_view name = name_of(step);
    if (name.empty() || value_of(step, config, layer) != 0) continue;
    const bool is_field = step.kind == Kind::kField && !kFields[step.number].keys.empty();
    std::string spelled(is_field ? kFields[step.number].keys : name);
    if (std::ranges::find(names, spelled) == names.end()) names.push_back(std::move(spelled));
  }
  return names;
}

bool Width::mentions(std::string_view name) const {
  return std::ranges::find(steps_, name, &Width::name_of) != steps_.end();
}

std::optional<std::uint64_t> Width::times(std::string_view name) const {
  if (steps_.size() == 1 && name_of(steps_[0]) == name) return 1;
  if (steps_.size() != 3 || steps_[2].kind != Kind::kMultiply) return std::nullopt;
  const bool is_first = steps_[0].kind == Kind::kNumber;
  const Step& factor = steps_[is_first ? 0 : 1];
  if (factor.kind != Kind::kNumber || name_of(steps_[is_first ? 1 : 0]) != name)
    return std::nullopt;
  return factor.number;
}

void NamedWidths::add(std::string_view name, Width width) {
  if (!is_name(name))
    refuse(name, "is no name of a width (letters, digits and _, and not the word or)");
  if (find(name) != nullptr) refuse(name, "is the name of a width already");
  if (std::ranges::find(kFields, name, &Field::name) != kFields.end())
    refuse(name, "is a width of every config (choose another name)");
  rows_.push_back({.name = std::string(name), .width = std::move(width)});
}

const Width* NamedWidths::find(std::string_view name) const {
  const auto found = std::ranges::find(rows_, name, &Row::name);
  return found == rows_.end() ? nullptr : &found->width;
}

}  // namespace ingot::formats
