#include "formats/json/json_fields.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include <fmt/format.h>

#include "formats/base/error.h"
#include "formats/json/json.h"
#include "formats/json/json_form.h"

namespace ingot::formats {
namespace {

bool is_inner_path(std::string_view name) {
  if (name.empty() || name.front() == '/' || name.find('\0') != std::string_view::npos)
    return false;
  std::size_t begin = 0;
  while (begin <= name.size()) {
    const std::size_t end = std::min(name.find('/', begin), name.size());
    const std::string_view component = name.substr(begin, end - begin);
    if (component.empty() || component == "." || component == "..") return false;
    begin = end + 1;
  }
  return true;
}

constexpr std::uint64_t kAny32 = std::numeric_limits<std::uint32_t>::max();

std::string described(const Json& value) {
  if (value.is_number() || value.is_null())
    return json_text(
        value, {.indent = JsonForm::kOneLine, .is_spaced = false, .has_final_newline = false});
  return fmt::format("{} {}", value.is_structured() ? "an" : "a", value.type_name());
}

double finite(const JsonFields& fields, const char* key, const Json& value) {
  const auto number = value.get<double>();
  if (!std::isfinite(number))
    fields.refuse(key, fmt::format("is {}, not finite", described(value)));
  return number;
}

[[noreturn]] void fail(ErrorCode code, std::string_view where, const std::string& message) {
  Error error(code, message);
  if (!where.empty()) error.in_file(where);
  throw error;
}

}  // namespace

void fail_json(std::string_view where, const std::string& message) {
  fail(ErrorCode::kCorrupt, where, message);
}

std::optional<std::uint64_t> whole_number(const Json& value, std::uint64_t max) {
  if (!value.is_number_integer()) return std::nullopt;
  if (!value.is_number_unsigned() && value.get<std::int64_t>() < 0) return std::nullopt;
  const auto number = value.get<std::uint64_t>();
  return number <= max ? std::optional(number) : std::nullopt;
}

JsonFields::JsonFields(const Json& object, std::string_view where, std::string path)
    : object_(&object), where_(where), path_(std::move(path)) {
  if (!object.is_object()) refuse(path_.empty() ? "is not a JSON object" : "is not an object");
}

const Json& JsonFields::get(const char* key) const {
  const auto found = object_->find(key);
  if (found == object_->end()) refuse(key, "is missing");
  ++n_read_;
  return *found;
}

const Json* JsonFields::find(const char* key) const {
  const auto found = object_->find(key);
  if (found == object_->end()) return nullptr;
  ++n_read_;
  return found->is_null() ? nullptr : &*found;
}

const Json& JsonFields::array(const char* key) const {
  return as_array(key, get(key));
}

const Json* JsonFields::optional_array(const char* key) const {
  const Json* value = find(key);
  return value == nullptr ? nullptr : &as_array(key, *value);
}

JsonFields JsonFields::child(const char* key) const {
  return {get(key), where_, name_of(key)};
}

std::optional<JsonFields> JsonFields::optional_child(const char* key) const {
  const Json* value = find(key);
  if (value == nullptr) return std::nullopt;
  return JsonFields(*value, where_, name_of(key));
}

std::string JsonFields::text(const char* key) const {
  return as_text(key, get(key));
}

std::string JsonFields::text(const char* key, std::string_view if_missing) const {
  const Json* value = find(key);
  return value == nullptr ? std::string(if_missing) : as_text(key, *value);
}

std::optional<std::string> JsonFields::optional_text(const char* key) const {
  const Json* value = find(key);
  return value == nullptr ? std::nullopt : std::optional(as_text(key, *value));
}

bool JsonFields::boolean(const char* key) const {
  return as_boolean(key, get(key));
}

bool JsonFields::boolean(const char* key, bool if_missing) const {
  const Json* value = find(key);
  return value == nullptr ? if_missing : as_boolean(key, *value);
}

double JsonFields::real(const char* key) const {
  const Json& value = get(key);
  if (!value.is_number()) wrong(key, value, "a number");
  return finite(*this, key, value);
}

std::optional<double> JsonFields::optional_real(const char* key, double least, double most) const {
  const Json* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_number()) wrong(key, *value, "a number");
  const double number = finite(*this, key, *value);
  if (!(number >= least)) refuse(key, fmt::format("is {}, less than {}", value->dump(), least));
  if (!(number <= most)) refuse(key, fmt::format("is {}, more than {}", value->dump(), most));
  return number;
}

std::uint64_t JsonFields::number(const char* key, std::uint64_t max) const {
  return as_number(key, get(key), max);
}

std::optional<std::uint64_t> JsonFields::optional_number(const char* key, std::uint64_t max) const {
  const Json* value = find(key);
  return value == nullptr ? std::nullopt : std::optional(as_number(key, *value, max));
}

std::uint32_t JsonFields::number32(const char* key) const {
  return static_cast<std::uint32_t>(number(key, kAny32));
}

std::optional<std::uint32_t> JsonFields::optional_number32(const char* key) const {
  const auto number = optional_number(key, kAny32);
  return number ? std::optional(static_cast<std::uint32_t>(*number)) : std::nullopt;
}

std::vector<std::uint64_t> JsonFields::numbers(const char* key) const {
  return as_numbers<std::uint64_t>(key, get(key));
}

std::vector<std::uint64_t> JsonFields::optional_numbers(const char* key) const {
  const Json* value = find(key);
  return value == nullptr ? std::vector<std::uint64_t>() : as_numbers<std::uint64_t>(key, *value);
}

std::vector<std::uint32_t> JsonFields::numbers32(const char* key) const {
  return as_numbers<std::uint32_t>(key, get(key));
}

std::vector<std::uint32_t> JsonFields::optional_numbers32(const char* key) const {
  const Json* value = find(key);
  return value == nullptr ? std::vector<std::uint32_t>() : as_numbers<std::uint32_t>(key, *value);
}

Hash128 JsonFields::hash(const char* key) const {
  const std::string digits = text(key);
  try {
    return Hash128::from_hex(digits);
  } catch (Error& error) {
    throw error.in_file(where_);
  }
}

std::string JsonFields::inner_path(const char* key) const {
  std::string name = text(key);
  if (!is_inner_path(name)) refuse(key, "is not a path inside the directory");
  return name;
}

std::string JsonFields::optional_inner_path(const char* key) const {
  auto name = optional_text(key);
  if (name && !is_inner_path(*name)) refuse(key, "is not a path inside the directory");
  return std::move(name).value_or("");
}

void JsonFields::expect_no_more() const {
  if (n_read_ != object_->size()) refuse("has a key that is not ours");
}

void JsonFields::refuse(const char* key, std::string_view fact) const {
  fail_json(where_, fmt::format("'{}' {}", name_of(key), fact));
}

void JsonFields::refuse(std::string_view fact) const {
  fail_json(where_, path_.empty() ? std::string(fact) : fmt::format("'{}' {}", path_, fact));
}

void JsonFields::unsupported(std::string_view fact) const {
  fail(ErrorCode::kUnsupported, where_, fmt::format("'{}' {}", path_, fact));
}

std::string JsonFields::name_of(std::string_view key) const {
  return path_.empty() ? std::string(key) : fmt::format("{}.{}", path_, key);
}

void JsonFields::wrong(const char* key, const Json& value, std::string_view wanted) const {
  refuse(key, fmt::format("is {}, not {}", described(value), wanted));
}

const Json& JsonFields::as_array(const char* key, const Json& value) const {
  if (!value.is_array()) wrong(key, value, "an array");
  return value;
}

std::string JsonFields::as_text(const char* key, const Json& value) const {
  if (!value.is_string()) wrong(key, value, "a string");
  return value.get<std::string>();
}

bool JsonFields::as_boolean(const char* key, const Json& value) const {
  if (!value.is_boolean()) wrong(key, value, "true or false");
  return value.get<bool>();
}

std::uint64_t JsonFields::as_number(const char* key, const Json& value, std::uint64_t max) const {
  if (const auto number = whole_number(value, max)) return *number;
  if (!value.is_number_integer()) wrong(key, value, "a whole number");
  if (!whole_number(value, kAnyNumber))
    refuse(key, fmt::format("is {}, less than 0", value.dump()));
  refuse(key, fmt::format("is {}, at most {} is plausible", value.dump(), max));
}

template <class T>
std::vector<T> JsonFields::as_numbers(const char* key, const Json& value) const {
  std::vector<T> numbers;
  for (const Json& entry : as_array(key, value))
    numbers.push_back(static_cast<T>(as_number(key, entry, std::numeric_limits<T>::max())));
  return numbers;
}

}  // namespace ingot::formats
