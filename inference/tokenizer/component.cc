#include "inference/tokenizer/component.h"

#include <utility>

#include <fmt/format.h>

#include "formats/base/error.h"
#include "inference/tokenizer/utf8.h"

namespace ingot::inference {
namespace {

using formats::Json;

constexpr std::size_t kMaxQuotedBytes = 120;

// The recursion ends at the depth that the JSON parser allows.
void append_steps(const Json& value, const std::string& path, const char* list_key,
                  std::vector<Component>& steps) {
  const Component component(value, path);
  if (component.type() != "Sequence") {
    if (steps.size() == kMaxSteps)
      throw Error(ErrorCode::kLimit, fmt::format("{} has more than {} steps", path, kMaxSteps));
    steps.push_back(component);
    return;
  }
  std::size_t index = 0;
  for (const Json& step : component.array(list_key))
    append_steps(step, fmt::format("{}[{}]", path, index++), list_key, steps);
}

}  // namespace

Component::Component(const Json& value, std::string path) : value_(&value), path_(std::move(path)) {
  if (!value.is_object()) refuse("is not an object");
}

const Json* Component::find(const char* key) const {
  const auto at = value_->find(key);
  return at == value_->end() || at->is_null() ? nullptr : &*at;
}

const Json& Component::get(const char* key) const {
  const Json* value = find(key);
  if (value == nullptr) refuse(fmt::format("has no '{}'", key));
  return *value;
}

const Json& Component::array(const char* key) const {
  const Json& value = get(key);
  if (!value.is_array()) refuse(fmt::format("has a '{}' that is not an array", key));
  return value;
}

const Json& Component::object(const char* key) const {
  const Json& value = get(key);
  if (!value.is_object()) refuse(fmt::format("has a '{}' that is not an object", key));
  return value;
}

bool Component::flag(const char* key, bool if_missing) const {
  const Json* value = find(key);
  if (value == nullptr) return if_missing;
  if (!value->is_boolean()) refuse(fmt::format("has a '{}' that is not true or false", key));
  return value->get<bool>();
}

std::string Component::text(const char* key) const {
  const Json& value = get(key);
  if (!value.is_string()) refuse(fmt::format("has a '{}' that is not a string", key));
  return value.get<std::string>();
}

std::optional<std::string> Component::optional_text(const char* key) const {
  return find(key) == nullptr ? std::nullopt : std::optional(text(key));
}

char32_t Component::character(const char* key) const {
  const std::string value = text(key);
  if (value.empty() || code_point_at(value, 0).n_bytes != value.size())
    refuse(fmt::format("has a '{}' that is not one character", key));
  return code_point_at(value, 0).value;
}

std::uint64_t Component::whole(const char* key, std::uint64_t max) const {
  const auto value = whole_number(get(key), max);
  if (!value) refuse(fmt::format("has a '{}' that is not a whole number up to {}", key, max));
  return *value;
}

Component Component::child(const char* key) const {
  return {get(key), path_ + "." + key};
}

void Component::refuse(std::string_view fact) const {
  throw Error(ErrorCode::kCorrupt, fmt::format("{} {}", path_, fact));
}

void Component::unsupported(std::string_view fact) const {
  throw Error(ErrorCode::kUnsupported, fmt::format("{} {}", path_, fact));
}

std::vector<Component> component_steps(const Json* value, const std::string& path,
                                       const char* list_key) {
  std::vector<Component> steps;
  if (value != nullptr) append_steps(*value, path, list_key, steps);
  return steps;
}

std::string quote_text(std::string_view text) {
  const bool is_cut = text.size() > kMaxQuotedBytes;
  if (is_cut) {
    std::size_t end = kMaxQuotedBytes;
    while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0U) == 0x80U) --end;
    text = text.substr(0, end);
  }
  // Texts from the file are valid UTF-8, so this cannot throw.
  return Json(text).dump() + (is_cut ? "..." : "");
}

std::optional<std::uint64_t> whole_number(const Json& value, std::uint64_t max) {
  if (!value.is_number_integer()) return std::nullopt;
  if (!value.is_number_unsigned() && value.get<std::int64_t>() < 0) return std::nullopt;
  const auto number = value.get<std::uint64_t>();
  return number <= max ? std::optional(number) : std::nullopt;
}

}  // namespace ingot::inference
