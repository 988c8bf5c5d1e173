#include "inference/family/spec_fields.h"

#include <cmath>

#include <fmt/format.h>

#include "formats/base/error.h"

namespace ingot::inference {
namespace {

const formats::Json* find(const formats::ModelConfig& config, std::string_view key) {
  const auto at = config.raw.find(std::string(key));
  return at == config.raw.end() || at->is_null() ? nullptr : &*at;
}

[[noreturn]] void wrong(std::string_view key, std::string_view wanted) {
  throw Error(ErrorCode::kCorrupt, fmt::format("'{}' is not {}", key, wanted))
      .in_file("config.json");
}

}  // namespace

double SpecFields::real(std::string_view key, double missing) const {
  const formats::Json* value = find(config_, key);
  if (value == nullptr) return missing;
  if (!value->is_number()) wrong(key, "a number");
  const double number = value->get<double>();
  if (!std::isfinite(number) || std::abs(number) > 1e9) wrong(key, "a number of sensible size");
  return number;
}

bool SpecFields::boolean(std::string_view key, bool missing) const {
  const formats::Json* value = find(config_, key);
  if (value == nullptr) return missing;
  if (!value->is_boolean()) wrong(key, "true or false");
  return value->get<bool>();
}

std::size_t SpecFields::count(std::string_view key, std::size_t missing) const {
  const formats::Json* value = find(config_, key);
  if (value == nullptr) return missing;
  if (!value->is_number_unsigned() || value->get<std::uint64_t>() > (1U << 20)) {
    wrong(key, "a number from 0 to 1048576");
  }
  return static_cast<std::size_t>(value->get<std::uint64_t>());
}

std::string SpecFields::text(std::string_view key, std::string_view missing) const {
  const formats::Json* value = find(config_, key);
  if (value == nullptr) return std::string(missing);
  if (!value->is_string()) wrong(key, "a string");
  return value->get<std::string>();
}

void SpecFields::require_text(std::string_view key, std::string_view only) const {
  const std::string value = text(key, only);
  if (value != only) {
    throw Error(ErrorCode::kUnsupported,
                fmt::format("'{}' is '{}'; the forward pass knows '{}' alone", key, value, only))
        .in_file("config.json");
  }
}

}  // namespace ingot::inference
