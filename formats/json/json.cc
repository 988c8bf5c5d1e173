#include "formats/json/json.h"

#include <algorithm>
#include <unordered_set>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "formats/base/error.h"
#include "formats/base/fd.h"
#include "formats/base/foreign_files.h"
#include "formats/base/printable.h"
#include "formats/json/json_scanner.h"
#include "formats/json/python_words.h"

namespace ingot::formats {
namespace {

constexpr std::size_t kMaxQuotedBytes = 200;

/// The place where a text stops being JSON: `position` bytes were read. A terminal may be shown the
/// sign.
std::string place_of_fault(std::string_view text, std::size_t position) {
  if (position == 0 || position > text.size())
    return "it ends in the middle (was it cut? fetch it again)";
  const std::string_view before = text.substr(0, position - 1);
  const auto line = 1 + std::count(before.begin(), before.end(), '\n');
  const std::size_t column = position - (before.rfind('\n') + 1);
  return fmt::format("'{}' in line {}, column {}{}", text[position - 1], line, column,
                     is_utf8(text) ? "" : " (the text is not UTF-8)");
}

/// Translates nlohmann's events to ours and adds the refusals that it lacks.
class SaxAdapter {
 public:
  SaxAdapter(std::string_view text, std::string_view where, JsonEvents& events,
             std::uint64_t text_offset)
      : text_(text), where_(where), events_(events), text_offset_(text_offset) {}

  bool null() { return scalar(Json(nullptr)); }
  bool boolean(bool value) { return scalar(Json(value)); }
  bool number_integer(Json::number_integer_t value) { return scalar(Json(value)); }
  bool number_unsigned(Json::number_unsigned_t value) { return scalar(Json(value)); }
  bool number_float(Json::number_float_t value, const std::string& text) {
    // nlohmann silently turns an integer that is too long into a rounded double.
    if (text.find_first_of(".eE") == std::string::npos) {
      throw Error(ErrorCode::kCorrupt, "integer {} does not fit 64 bits",
                  text.substr(0, kMaxQuotedBytes))
          .in_file(where_);
    }
    return scalar(Json(value));
  }
  bool string(std::string_view value) { return scalar(Json(std::string(value))); }
  bool binary(Json::binary_t& /*value*/) { return false; }
  bool start_object(std::size_t /*elements*/) {
    descend();
    events_.begin_object();
    return true;
  }
  bool key(std::string_view name) {
    if (name.size() > kMaxJsonKeyBytes) {
      throw Error(ErrorCode::kLimit, "holds a name of {} bytes, at most {} are accepted",
                  name.size(), kMaxJsonKeyBytes)
          .in_file(where_);
    }
    events_.key(std::string(name));
    return true;
  }
  bool end_object() { return ascend(); }
  bool start_array(std::size_t /*elements*/) {
    descend();
    events_.begin_array();
    return true;
  }
  bool end_array() { return ascend(); }
  [[noreturn]] bool parse_error(std::size_t position, const std::string& /*last_token*/,
                                const nlohmann::detail::exception& /*error*/) const {
    throw Error(ErrorCode::kCorrupt, "is not valid JSON: " + place_of_fault(text_, position))
        .in_file(where_)
        .at_byte(text_offset_ + (position == 0 ? 0 : position - 1));
  }

 private:
  bool scalar(Json&& value) {
    events_.value(std::move(value));
    return true;
  }
  void descend() {
    if (depth_ == kMaxJsonDepth) {
      throw Error(ErrorCode::kCorrupt, "JSON is nested deeper than {} levels", kMaxJsonDepth)
          .in_file(where_);
    }
    ++depth_;
  }
  bool ascend() {
    --depth_;
    events_.end();
    return true;
  }

  std::string_view text_, where_;
  JsonEvents& events_;
  std::uint64_t text_offset_;
  std::size_t depth_ = 0;
};

class NoEvents final : public JsonEvents {
 public:
  void begin_object() override {}
  void begin_array() override {}
  void end() override {}
  void key(std::string&& /*name*/) override {}
  void value(Json&& /*scalar*/) override {}
};

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
  void key(std::string&& name) override {
    if (open_.back().keys.size() == limits_.members) {
      throw Error(ErrorCode::kLimit, "an object holds more than {} members", limits_.members)
          .in_file(where_);
    }
    if (!open_.back().keys.insert(name).second)
      throw Error(ErrorCode::kCorrupt, "key '{}' occurs twice in one object", name).in_file(where_);
    key_ = std::move(name);
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

void parse_json_events(std::string_view text, std::string_view where, JsonEvents& events,
                       std::uint64_t text_offset) {
  if (text.starts_with("\xEF\xBB\xBF")) {
    throw Error(ErrorCode::kCorrupt, "starts with a byte order mark (save it as plain UTF-8)")
        .in_file(where)
        .at_byte(text_offset);
  }
  if (is_lfs_pointer(text))
    throw Error(ErrorCode::kCorrupt, std::string(kLfsPointerFact)).in_file(where);
  // The library takes a NUL byte for the end of the text and would ignore the rest.
  if (const auto nul = text.find('\0'); nul != std::string_view::npos) {
    throw Error(ErrorCode::kCorrupt, "is not valid JSON: holds a NUL byte")
        .in_file(where)
        .at_byte(text_offset + nul);
  }
  SaxAdapter adapter(text, where, events, text_offset);
  if (JsonScanner(text, adapter).scan()) return;
  NoEvents none;
  SaxAdapter refusal(text, where, none, text_offset);
  static_cast<void>(Json::sax_parse(text.begin(), text.end(), &refusal));
  throw Error(ErrorCode::kCorrupt, "is not valid JSON").in_file(where);
}

Json parse_json(std::string_view text, std::string_view where) {
  TreeBuilder builder(where, {});
  parse_json_events(text, where, builder);
  return builder.take();
}

Json parse_config(std::string_view text, std::string_view where) {
  TreeBuilder builder(
      where,
      {.values = kMaxConfigValues, .members = kMaxConfigMembers, .bytes = kMaxConfigTreeBytes});
  parse_json_events(text, where, builder);
  return builder.take();
}

Json read_json_file(const std::filesystem::path& path, std::uint64_t max_bytes) {
  const std::string text = read_text_file(path, max_bytes);
  const std::string changed = with_rounded_integers(text);
  return parse_python_config(changed.empty() ? text : changed, path.string());
}

JsonValue::JsonValue() : JsonValue(Json()) {}

JsonValue::JsonValue(Json value) : value_(std::make_shared<const Json>(std::move(value))) {}

bool operator==(const JsonValue& a, const Json& b) {
  return *a == b;
}

bool JsonValue::is_null() const {
  return value_->is_null();
}

std::string json_text(const Json& value) {
  try {
    return dump_with_words(value, 2) + "\n";
  } catch (const Json::exception&) {
    throw Error(ErrorCode::kCorrupt, "cannot be written as JSON: a text in it is not UTF-8");
  }
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
