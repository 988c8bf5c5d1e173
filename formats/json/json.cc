#include "formats/json/json.h"

#include <algorithm>
#include <limits>
#include <unordered_set>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "formats/base/error.h"
#include "formats/base/fd.h"
#include "formats/base/foreign_files.h"
#include "formats/base/printable.h"
#include "formats/json/json_scanner.h"

namespace ingot::formats {
namespace {

constexpr std::size_t kMaxQuotedBytes = 200;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr std::pair<std::string_view, double> kPythonWords[] = {
    {"-Infinity", -kInfinity},
    {"Infinity", kInfinity},
    {"NaN", std::numeric_limits<double>::quiet_NaN()}};

/// Header and rounding of a piece of memory.
constexpr std::size_t kBytesPerAllocation = 16;

struct TreeLimits {
  std::size_t values = std::size_t(-1), members = std::size_t(-1), bytes = std::size_t(-1);
};

/// Builds the tree. Own code because ordered_json looks every new key up among all earlier ones,
/// which takes minutes on an object of 100,000 keys, and silently replaces duplicates.
class TreeBuilder final : public JsonEvents {
 public:
  TreeBuilder(std::string_view where, const TreeLimits& limits) : where_(where), limits_(limits) {}

  void begin_object() override { open(Json::object()); }
  void begin_array() override { open(Json::array()); }
  void end() override { open_.pop_back(); }
  void value(Json&& scalar) override { append(std::move(scalar)); }
  void key(std::string_view name) override {
    if (open_.back().keys.size() == limits_.members) {
      throw Error(ErrorCode::kLimit, "an object holds more than {} members", limits_.members)
          .in_file(where_);
    }
    key_ = name;
    if (!open_.back().keys.insert(key_).second)
      throw Error(ErrorCode::kCorrupt, "key '{}' occurs twice in one object", name).in_file(where_);
  }

  Json take() { return std::move(root_); }

 private:
  struct Open {
    Json* node;  // stays valid: a container's parent grows only after the container is closed
    std::unordered_set<std::string> keys;
  };

  void open(Json&& container) {
    open_.push_back({.node = append(std::move(container)), .keys = {}});
  }

  static std::size_t bytes_of(const std::string& text) {
    const bool is_inside = text.capacity() <= std::string().capacity();
    return is_inside ? 0 : text.size() + kBytesPerAllocation;
  }

  /// Memory that a value takes in the tree, about.
  [[nodiscard]] std::size_t bytes_of(const Json& value) const {
    std::size_t n = sizeof(Json);
    if (!open_.empty() && open_.back().node->is_object())
      n = sizeof(Json::object_t::value_type) + bytes_of(key_);
    if (const auto* text = value.get_ptr<const std::string*>())
      return n + sizeof *text + kBytesPerAllocation + bytes_of(*text);
    return value.is_structured() ? n + sizeof(Json::array_t) + kBytesPerAllocation : n;
  }

  Json* append(Json&& value) {
    if (++n_values_ > limits_.values) {
      throw Error(ErrorCode::kLimit, "holds more than {} values (is it the file of a model?)",
                  limits_.values)
          .in_file(where_);
    }
    n_bytes_ += bytes_of(value);
    if (n_bytes_ > limits_.bytes) {
      throw Error(ErrorCode::kLimit,
                  "takes more than {} bytes of memory (is it the file of a model?)", limits_.bytes)
          .in_file(where_);
    }
    if (open_.empty()) {
      root_ = std::move(value);
      return &root_;
    }
    Json& parent = *open_.back().node;
    if (parent.is_array()) {
      parent.push_back(std::move(value));
      return &parent.back();
    }
    auto& members = parent.get_ref<Json::object_t&>();
    members.emplace_back(std::move(key_), std::move(value));
    return &members.back().second;
  }

  std::string_view where_;
  TreeLimits limits_;
  std::size_t n_values_ = 0, n_bytes_ = 0;
  Json root_;
  std::vector<Open> open_;
  std::string key_;
};

}  // namespace

void JsonTokens::refuse(const char* last) const {
  const std::string_view text(begin_, end_), before(begin_, last);
  std::string place = "it ends in the middle (was it cut? fetch it again)";
  if (last != end_) {
    place = fmt::format(
        "'{}' in line {}, column {}{}", *last, 1 + std::count(before.begin(), before.end(), '\n'),
        before.size() - before.rfind('\n'), is_utf8(text) ? "" : " (the text is not UTF-8)");
  }
  throw Error(ErrorCode::kCorrupt, "is not valid JSON: " + place)
      .in_file(where_)
      .at_byte(text_offset_ + before.size());
}

void JsonTokens::refuse_token() {
  if (at_ != end_ && std::string_view("{}[],:").find(*at_) == std::string_view::npos) {
    if (*at_ == '"') {
      string();
    } else {
      scalar();
    }
    --at_;
  }
  refuse(at_);
}

Json JsonTokens::parsed(const char* begin, const char* end) const {
  try {
    return Json::parse(begin, end);
  } catch (const Json::parse_error& error) {
    refuse(begin + error.byte - 1);
  } catch (const Json::out_of_range&) {  // a number beyond the greatest
    refuse(end - 1);
  }
}

std::string_view JsonTokens::decoded_string(const char* begin) {
  for (; at_ != end_ && *at_ != '"'; ++at_) {
    if (*at_ == '\\' && ++at_ == end_) break;
  }
  if (at_ != end_) ++at_;
  string_ = parsed(begin, at_).get_ref<std::string&>();
  return string_;
}

Json JsonTokens::other_scalar() {
  const std::string_view rest(at_, end_);
  if (numbers_ != JsonNumbers::kOfJson) {
    for (const auto& [word, value] : kPythonWords) {
      if (!rest.starts_with(word)) continue;
      at_ += word.size();
      return value;
    }
  }
  for (const std::string_view word : {"true", "false", "null"}) {
    if (!rest.starts_with(word.front())) continue;
    const auto [differs, at] = std::ranges::mismatch(word, rest);
    at_ += at - rest.begin();
    if (differs != word.end()) refuse(at_);
    return word == "null" ? Json() : Json(word == "true");
  }
  const char* const begin = at_;
  at_ = std::find_if_not(at_, end_, is_of_number);
  Json number = parsed(begin, at_);
  // The library silently turns an integer that is too long into a rounded number.
  if (const std::string_view text(begin, at_);
      numbers_ != JsonNumbers::kRounded && number.is_number_float() &&
      text.find_first_of(".eE") == std::string_view::npos) {
    throw Error(ErrorCode::kCorrupt, "integer {} does not fit 64 bits",
                text.substr(0, kMaxQuotedBytes))
        .in_file(where_);
  }
  return number;
}

void parse_json_events(std::string_view text, std::string_view where, JsonEvents& events,
                       std::uint64_t text_offset, JsonNumbers numbers) {
  if (text.starts_with("\xEF\xBB\xBF")) {
    throw Error(ErrorCode::kCorrupt, "starts with a byte order mark (save it as plain UTF-8)")
        .in_file(where)
        .at_byte(text_offset);
  }
  if (const std::string_view fact = foreign_start(text); !fact.empty())
    throw Error(ErrorCode::kCorrupt, std::string(fact)).in_file(where);
  if (const auto nul = text.find('\0'); nul != std::string_view::npos) {
    throw Error(ErrorCode::kCorrupt, "is not valid JSON: holds a NUL byte")
        .in_file(where)
        .at_byte(text_offset + nul);
  }
  JsonScanner(JsonTokens(text, where, numbers, text_offset), events).scan();
}

Json parse_json(std::string_view text, std::string_view where) {
  TreeBuilder builder(where, {});
  parse_json_events(text, where, builder);
  return builder.take();
}

Json parse_config(std::string_view text, std::string_view where, JsonNumbers numbers) {
  TreeBuilder builder(
      where,
      {.values = kMaxConfigValues, .members = kMaxConfigMembers, .bytes = kMaxConfigTreeBytes});
  parse_json_events(text, where, builder, 0, numbers);
  return builder.take();
}

Json read_json_file(const std::filesystem::path& path, std::uint64_t max_bytes) {
  return parse_config(read_text_file(path, max_bytes), path.string(), JsonNumbers::kRounded);
}

JsonValue::JsonValue() : JsonValue(Json()) {}

JsonValue::JsonValue(Json value) : value_(std::make_shared<const Json>(std::move(value))) {}

bool operator==(const JsonValue& a, const Json& b) {
  return *a == b;
}

bool JsonValue::is_null() const {
  return value_->is_null();
}

const Json& json_member(const Json& object, std::string_view key) {
  static const Json absent = nullptr;
  if (!object.is_object()) return absent;
  const auto found = object.find(std::string(key));
  return found == object.end() ? absent : *found;
}

std::string text_at(const Json& object, std::string_view key) {
  const Json& value = json_member(object, key);
  return value.is_string() ? value.get<std::string>() : std::string();
}

std::vector<std::string> strings_at(const Json& object, std::string_view key) {
  std::vector<std::string> strings;
  const Json& list = json_member(object, key);
  if (!list.is_array()) return strings;
  for (const Json& entry : list) {
    if (entry.is_string()) strings.push_back(entry.get<std::string>());
  }
  return strings;
}

}  // namespace ingot::formats
