#include "library/options/json_options.h"

#include <algorithm>
#include <cstdint>
#include <limits>

#include <fmt/format.h>

#include "formats/base/error.h"
#include "formats/base/words.h"
#include "formats/json/json.h"
#include "formats/json/json_fields.h"
#include "formats/text/spelling.h"

namespace ingot {
namespace {

using formats::Json;

// The name of an option in messages; a word at its place has no dashes.
[[noreturn]] void refuse(const Flag& flag, const Json& value, std::string_view wanted) {
  throw Error(ErrorCode::kInvalidArgument, "{}: {} is no {}", flag.name, value.dump(), wanted);
}

std::string text_from(const Flag& flag, const Json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (!value.is_number()) refuse(flag, value, "text");
  return value.dump();
}

std::uint64_t whole_from(const Flag& flag, const Json& value, std::uint64_t most) {
  const auto number = formats::whole_number(value, most);
  if (!number) refuse(flag, value, "whole number from 0 on, or too large");
  return *number;
}

double real_from(const Flag& flag, const Json& value) {
  if (!value.is_number()) refuse(flag, value, "number");
  return value.get<double>();
}

// Sets the variable of a flag; one function for each type.
struct Setter {
  const Flag& flag;
  const Json& value;

  void operator()(std::string* to) const { *to = text_from(flag, value); }
  void operator()(std::filesystem::path* to) const { *to = text_from(flag, value); }
  void operator()(std::optional<std::string>* to) const { *to = text_from(flag, value); }
  void operator()(std::vector<std::string>* to) const {
    if (!value.is_array()) return to->push_back(text_from(flag, value));
    for (const Json& one : value) to->push_back(text_from(flag, one));
  }
  void operator()(bool* to) const { *to = truth(); }
  void operator()(std::optional<bool>* to) const { *to = truth(); }
  void operator()(std::uint64_t* to) const { *to = whole<std::uint64_t>(); }
  void operator()(std::optional<std::uint64_t>* to) const { *to = whole<std::uint64_t>(); }
  void operator()(std::optional<std::uint32_t>* to) const { *to = whole<std::uint32_t>(); }
  void operator()(double* to) const { *to = real_from(flag, value); }
  void operator()(std::optional<double>* to) const { *to = real_from(flag, value); }

 private:
  [[nodiscard]] bool truth() const {
    if (!value.is_boolean()) refuse(flag, value, "true or false");
    return value.get<bool>();
  }
  template <typename Number>
  [[nodiscard]] Number whole() const {
    return static_cast<Number>(whole_from(flag, value, std::numeric_limits<Number>::max()));
  }
};

void require_allowed(const Flag& flag, const Json& value) {
  const FlagRule& rule = flag.rule;
  const auto is_word = [&](const std::string& choice) {
    const std::string word = text_from(flag, value);
    return rule.ignores_case ? lower_case(choice) == lower_case(word) : choice == word;
  };
  if (!rule.choices.empty() && std::ranges::none_of(rule.choices, is_word)) {
    const std::vector<std::string_view> choices(rule.choices.begin(), rule.choices.end());
    refuse_word(flag.name, text_from(flag, value), choices);
  }
  if (rule.is_positive && !(real_from(flag, value) > 0)) refuse(flag, value, "number above 0");
  if (!rule.range) return;
  const double number = real_from(flag, value);
  if (number < rule.range->least || number > rule.range->most)
    refuse(flag, value, fmt::format("number from {} to {}", rule.range->least, rule.range->most));
}

void require_together(const FlagTable& table) {
  for (const FlagTable::Row& row : table.rows) {
    const Flag& flag = row.flag;
    if (!table.is_given(flag.name)) continue;
    if (!flag.rule.needs.empty() && !table.is_given(flag.rule.needs))
      throw Error(ErrorCode::kInvalidArgument, "{} requires {}", flag.name, flag.rule.needs);
    for (const std::string& other : flag.rule.excludes) {
      if (table.is_given(other))
        throw Error(ErrorCode::kInvalidArgument, "{} excludes {}", flag.name, other);
    }
  }
}

// "to" of --to; a word at its place is called as it is.
std::string_view key_of(const FlagTable::Row& row) {
  const std::string_view name = row.flag.name;
  return name.starts_with("--") ? name.substr(2) : name;
}

}  // namespace

void read_json_options(std::string_view json, FlagTable& table) {
  if (json.empty()) return;
  const Json options = formats::parse_json(json, "options");
  if (!options.is_object())
    throw Error(ErrorCode::kInvalidArgument, "options are no JSON object").in_file("options");
  for (const auto& [key, value] : options.items()) {
    const auto row = std::ranges::find(table.rows, key, key_of);
    if (row == table.rows.end()) refuse_word("option", key, table.rows, key_of);
    if (value.is_null()) continue;
    const Flag& flag = row->flag;
    std::visit([&](auto* target) { Setter{flag, value}(target); }, flag.target);
    require_allowed(flag, value);
    if (!std::holds_alternative<bool*>(flag.target) || value.get<bool>())
      table.given.insert(flag.name);
  }
  require_together(table);
  mark_values(table);
  refuse_idle_flags(table);
  refuse_shared_outputs(table);
}

}  // namespace ingot
