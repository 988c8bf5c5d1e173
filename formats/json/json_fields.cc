#include "formats/json/json_fields.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "formats/base/error.h"

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

}  // namespace

void fail_json(std::string_view where, const std::string& message) {
  throw Error(ErrorCode::kCorrupt, message).in_file(where);
}

JsonFields::JsonFields(const Json& object, std::string_view where, std::string path)
    : object_(object), where_(where), path_(std::move(path)) {
  if (!object.is_object()) fail_json(where, fmt::format("{} is not an object", path_));
}

const Json* JsonFields::find(const char* key) {
  const auto found = object_.find(key);
  if (found == object_.end()) return nullptr;
  ++n_used_;
  return &*found;
}

const Json& JsonFields::get(const char* key) {
  const Json* value = find(key);
  if (value == nullptr) fail_json(where_, fmt::format("{} has no '{}'", path_, key));
  return *value;
}

Json JsonFields::optional(const char* key) {
  const Json* value = find(key);
  return value != nullptr ? *value : Json();
}

std::string JsonFields::text(const char* key) {
  const Json& value = get(key);
  if (!value.is_string()) wrong(key, "a string");
  return value.get<std::string>();
}

bool JsonFields::boolean(const char* key) {
  return as_boolean(get(key), key);
}

bool JsonFields::optional_boolean(const char* key) {
  const Json* value = find(key);
  return value != nullptr && as_boolean(*value, key);
}

double JsonFields::real(const char* key) {
  const Json& value = get(key);
  if (!value.is_number()) wrong(key, "a number");
  return value.get<double>();
}

const Json& JsonFields::array(const char* key) {
  const Json& value = get(key);
  if (!value.is_array()) wrong(key, "an array");
  return value;
}

std::uint64_t JsonFields::number(const char* key) {
  return as_number(get(key), key);
}

std::uint32_t JsonFields::number32(const char* key) {
  return as_number32(get(key), key);
}

std::optional<std::uint32_t> JsonFields::optional_number(const char* key) {
  const Json* value = find(key);
  if (value == nullptr) return std::nullopt;
  return as_number32(*value, key);
}

std::vector<std::uint64_t> JsonFields::numbers(const char* key) {
  return as_numbers(get(key), key);
}

std::vector<std::uint32_t> JsonFields::numbers32(const char* key) {
  return as_numbers32(get(key), key);
}

std::vector<std::uint64_t> JsonFields::optional_numbers(const char* key) {
  const Json* value = find(key);
  return value != nullptr ? as_numbers(*value, key) : std::vector<std::uint64_t>();
}

std::vector<std::uint32_t> JsonFields::optional_numbers32(const char* key) {
  const Json* value = find(key);
  return value != nullptr ? as_numbers32(*value, key) : std::vector<std::uint32_t>();
}

Hash128 JsonFields::hash(const char* key) {
  const std::string digits = text(key);
  try {
    return Hash128::from_hex(digits);
  } catch (Error& error) {
    throw error.in_file(where_);
  }
}

std::string JsonFields::inner_path(const char* key) {
  return as_inner_path(get(key), key);
}

std::string JsonFields::optional_inner_path(const char* key) {
  const Json* value = find(key);
  return value != nullptr ? as_inner_path(*value, key) : std::string();
}

void JsonFields::expect_no_more() const {
  if (n_used_ != object_.size())
    fail_json(where_, fmt::format("{} has a key that is not ours", path_));
}

void JsonFields::wrong(const char* key, const char* wanted) const {
  fail_json(where_, fmt::format("'{}' of {} is not {}", key, path_, wanted));
}

std::uint64_t JsonFields::as_number(const Json& value, const char* key) const {
  if (!value.is_number_unsigned()) wrong(key, "a non-negative integer");
  return value.get<std::uint64_t>();
}

std::uint32_t JsonFields::as_number32(const Json& value, const char* key) const {
  const std::uint64_t number = as_number(value, key);
  if (!std::in_range<std::uint32_t>(number)) wrong(key, "a number of at most 32 bits");
  return static_cast<std::uint32_t>(number);
}

std::vector<std::uint64_t> JsonFields::as_numbers(const Json& value, const char* key) const {
  if (!value.is_array()) wrong(key, "an array");
  std::vector<std::uint64_t> numbers;
  numbers.reserve(value.size());
  for (const Json& entry : value) numbers.push_back(as_number(entry, key));
  return numbers;
}

std::vector<std::uint32_t> JsonFields::as_numbers32(const Json& value, const char* key) const {
  if (!value.is_array()) wrong(key, "an array");
  std::vector<std::uint32_t> numbers;
  numbers.reserve(value.size());
  for (const Json& entry : value) numbers.push_back(as_number32(entry, key));
  return numbers;
}

bool JsonFields::as_boolean(const Json& value, const char* key) const {
  if (!value.is_boolean()) wrong(key, "true or false");
  return value.get<bool>();
}

std::string JsonFields::as_inner_path(const Json& value, const char* key) const {
  if (!value.is_string()) wrong(key, "a string");
  auto name = value.get<std::string>();
  if (!is_inner_path(name)) wrong(key, "a path inside the directory");
  return name;
}

}  // namespace ingot::formats
