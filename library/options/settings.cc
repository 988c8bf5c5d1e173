#include "library/options/settings.h"

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <optional>
#include <string>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "formats/base/error.h"
#include "formats/base/words.h"
#include "formats/files/hub_cache.h"
#include "formats/json/json.h"
#include "formats/json/json_fields.h"
#include "formats/text/spelling.h"
#include "formats/text/text_input.h"

namespace ingot {

namespace fs = std::filesystem;

namespace {

using formats::Json;

// A value in a message: a number without the point that JSON gives it.
std::string value_shown(const Json& value) {
  return value.is_number_float() ? fmt::format("{}", value.get<double>()) : value.dump();
}

[[noreturn]] void refuse(const Flag& flag, const Json& value, std::string_view wanted) {
  throw Error(ErrorCode::kInvalidArgument, "{}: {} is no {}", flag.name, value_shown(value),
              wanted);
}

std::string text_from(const Flag& flag, const Json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (!value.is_number()) refuse(flag, value, "text");
  // A number is a size in bytes.
  return value.dump() + (flag.rule.kind == ValueKind::kSize ? "B" : "");
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
  void operator()(fs::path* to) const { *to = text_from(flag, value); }
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
    const auto number = formats::whole_number(value, std::numeric_limits<Number>::max());
    if (!number) refuse(flag, value, "whole number from 0 on, or too large");
    return static_cast<Number>(*number);
  }
};

void require_allowed(const Flag& flag, const Json& value) {
  const FlagRule& rule = flag.rule;
  const auto require = [&](bool is_allowed, const std::string& text, const std::string& wanted) {
    if (!is_allowed) throw Error(ErrorCode::kInvalidArgument, "{}: {} {}", flag.name, text, wanted);
  };
  if (!rule.choices.empty()) {
    const std::string text = text_from(flag, value);
    const std::string word = rule.ignores_case ? lower_case(text) : text;
    const std::vector<std::string_view> choices(rule.choices.begin(), rule.choices.end());
    require(std::ranges::find(choices, word) != choices.end(), text,
            fmt::format("not in {{{}}}{}", fmt::join(choices, ","), did_you_mean(word, choices)));
  }
  if (rule.is_positive) require(real_from(flag, value) > 0, value_shown(value), "is not above 0");
  if (!rule.range) return;
  const double number = real_from(flag, value);
  require(number >= rule.range->least && number <= rule.range->most, value_shown(value),
          fmt::format("is not from {} to {}", rule.range->least, rule.range->most));
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

// Flags that name a file get the path of the standard input for "-".
void take_stdin(const FlagTable& table) {
  std::string reader;
  for (const FlagTable::Row& row : table.rows) {
    const Flag& flag = row.flag;
    if (!flag.rule.takes_stdin || !table.is_given(flag.name)) continue;
    auto* const* path = std::get_if<fs::path*>(&flag.target);
    std::string* text = text_of(flag);
    const bool is_dash = path != nullptr ? **path == "-" : text != nullptr && *text == "-";
    if (!is_dash) continue;
    if (!reader.empty()) {
      throw Error(ErrorCode::kInvalidArgument,
                  "{} and {} both read the standard input (give one of them a file)", reader,
                  flag.name);
    }
    reader = flag.name;
    if (path != nullptr) {
      **path = kStandardInput;
    } else if (flag.rule.kind == ValueKind::kFile) {
      *text = kStandardInput;
    }
  }
}

// With the home directory for a leading ~, as the hub's own programs read it; empty where it is not
// set.
fs::path path_of(const char* variable) {
  const char* const value = std::getenv(variable);
  const std::string text = value == nullptr ? "" : value;
  const char* const home = std::getenv("HOME");
  if (home == nullptr || (text != "~" && !text.starts_with("~/"))) return text;
  return std::string(home) + text.substr(1);
}

std::optional<std::string> opened_hub_name(const std::string& given) {
  std::error_code failure;
  if (fs::exists(fs::symlink_status(given, failure))) return std::nullopt;
  const auto name = formats::parse_hub_name(given);
  if (!name) return std::nullopt;
  const fs::path cache = hub_cache();
  if (const auto snapshot = formats::find_hub_snapshot(cache, *name)) return snapshot->string();
  const std::string& model = name->model;
  throw Error(
      ErrorCode::kNotFound,
      "no such directory, and no model of that name in the hub's cache {} (fetch it: hf download "
      "{}{} --local-dir {})",
      cache.string(), model, name->revision == "main" ? "" : " --revision " + name->revision,
      model.substr(model.find('/') + 1))
      .in_file(given);
}

// Names of models on the hub that are no paths here become their snapshots in the cache.
void open_hub_names(const FlagTable& table) {
  for (const FlagTable::Row& row : table.rows) {
    const Flag& flag = row.flag;
    if (!names_checkpoint(flag.rule.kind) || !table.is_given(flag.name)) continue;
    if (auto* const* path = std::get_if<fs::path*>(&flag.target)) {
      if (auto snapshot = opened_hub_name((*path)->string())) **path = *std::move(snapshot);
    } else if (auto* const* named = std::get_if<std::vector<std::string>*>(&flag.target)) {
      for (std::string& text : **named) {
        const std::size_t path_at = text.find('=') + 1;  // 0 without one, which is refused later
        if (auto snapshot = opened_hub_name(text.substr(path_at)))
          text = text.substr(0, path_at) + *snapshot;
      }
    } else if (std::string* text = text_of(flag)) {
      if (auto snapshot = opened_hub_name(*text)) *text = *std::move(snapshot);
    }
  }
}

// The members of a recipe that are no flags, as the flags that say the same.
void put_as_flags(Json& settings) {
  if (const auto found = settings.find("rules"); found != settings.end()) {
    const Json rules = *found;
    settings.erase("rules");
    Json& flags = settings["rule"];
    if (!flags.is_array()) flags = flags.is_null() ? Json::array() : Json{flags};
    for (const Json& rule : rules) {
      const std::string match = formats::text_at(rule, "match"),
                        scheme = formats::text_at(rule, "scheme");
      if (rule.size() != 2 || match.empty() || scheme.empty()) {
        throw Error(ErrorCode::kInvalidArgument, "rules: {} is no map of match and scheme",
                    rule.dump());
      }
      flags.push_back(fmt::format("{}={}", match, scheme));
    }
  }
  if (const auto allow = settings.find("allow"); allow != settings.end() && allow->is_object()) {
    Json flags = Json::array();
    for (const auto& [kind, patterns] : allow->items()) {
      if (formats::strings_at(*allow, kind).size() != patterns.size() || !patterns.is_array()) {
        throw Error(ErrorCode::kInvalidArgument, "allow: {} of {} is no list of patterns",
                    patterns.dump(), kind);
      }
      for (const std::string& pattern : formats::strings_at(*allow, kind))
        flags.push_back(fmt::format("{}={}", kind, pattern));
    }
    *allow = flags;
  }
}

}  // namespace

fs::path path_or_snapshot(const fs::path& path, const std::string& given) {
  std::error_code failure;
  if (fs::exists(fs::symlink_status(path, failure))) return path;
  const auto name = formats::parse_hub_name(given);
  const auto snapshot = name ? formats::find_hub_snapshot(hub_cache(), *name) : std::nullopt;
  return snapshot.value_or(path);
}

fs::path hub_cache() {
  // The second is the older name of the first.
  for (const char* variable : {"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"}) {
    if (const fs::path cache = path_of(variable); !cache.empty()) return cache;
  }
  if (const fs::path home = path_of("HF_HOME"); !home.empty()) return home / "hub";
  if (const fs::path caches = path_of("XDG_CACHE_HOME"); !caches.empty())
    return caches / "huggingface" / "hub";
  const fs::path home = path_of("HOME");
  return home.empty() ? fs::path() : home / ".cache" / "huggingface" / "hub";
}

Json settings_of_json(std::string_view json) {
  if (json.empty()) return Json::object();
  Json settings = formats::parse_json(json, "options");
  if (!settings.is_object())
    throw Error(ErrorCode::kInvalidArgument, "options are no JSON object").in_file("options");
  put_as_flags(settings);
  return settings;
}

void take_settings(const Json& settings, FlagTable& table) {
  Json taken = Json::object();
  const auto key = [](const FlagTable::Row& row) { return key_of(row.flag); };
  for (const auto& [name, value] : settings.items()) {
    const auto row = std::ranges::find(table.rows, name, key);
    if (row == table.rows.end()) refuse_word("option", name, table.rows, key);
    if (value.is_null()) continue;
    const Flag& flag = row->flag;
    std::visit([&](auto* target) { Setter{flag, value}(target); }, flag.target);
    require_allowed(flag, value);
    if (!std::holds_alternative<bool*>(flag.target) || value.get<bool>()) taken[name] = value;
  }
  table.settings = std::move(taken);
  require_together(table);
  take_stdin(table);
  open_hub_names(table);
  mark_values(table);
  refuse_idle_flags(table);
  refuse_shared_outputs(table);
}

Json absolute_settings(const FlagTable& table) {
  Json settings = *table.settings;
  for (const FlagTable::Row& row : table.rows) {
    const Flag& flag = row.flag;
    if (flag.rule.kind < ValueKind::kFile || !table.is_given(flag.name)) continue;
    const bool is_named = flag.rule.kind == ValueKind::kNamedCheckpoint;
    const auto put = [&](Json& value) {
      const std::string given = value.is_string() ? value.get<std::string>() : "";
      if (given.empty() || given == "-") return;
      const std::size_t path_at = is_named ? given.find('=') + 1 : 0;
      std::error_code failure;
      const auto path = fs::absolute(given.substr(path_at), failure);
      if (!failure) value = given.substr(0, path_at) + path.string();
    };
    Json& value = settings[std::string(key_of(flag))];
    const std::string* text = names_checkpoint(flag.rule.kind) ? text_of(flag) : nullptr;
    if (text != nullptr) value = *text;
    if (is_named) value = *std::get<std::vector<std::string>*>(flag.target);
    put(value);
    if (value.is_array()) std::ranges::for_each(value, put);
  }
  return settings;
}

}  // namespace ingot
