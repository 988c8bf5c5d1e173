#include "inference/generate/generation_config.h"

#include <cmath>

#include <fmt/format.h>

#include "formats/base/error.h"
#include "formats/json/json.h"

namespace ingot::inference {
namespace {

using formats::Json;

constexpr const char* kFileName = "generation_config.json";
constexpr std::uint64_t kMaxFileBytes = 1U << 20;

[[noreturn]] void wrong(const char* file, const char* key, const char* wanted) {
  throw Error(ErrorCode::kCorrupt, fmt::format("'{}' is not {}", key, wanted)).in_file(file);
}

const Json* find(const Json& object, const char* key) {
  const auto at = object.find(key);
  return at == object.end() || at->is_null() ? nullptr : &*at;
}

double real(const Json& object, const char* key, double missing, double least, double most) {
  const Json* value = find(object, key);
  if (value == nullptr) return missing;
  if (!value->is_number()) wrong(kFileName, key, "a number");
  const double number = value->get<double>();
  if (!(number >= least) || !(number <= most)) {
    wrong(kFileName, key, fmt::format("from {} to {}", least, most).c_str());
  }
  return number;
}

std::size_t count(const Json& object, const char* key, std::size_t missing) {
  const Json* value = find(object, key);
  if (value == nullptr) return missing;
  if (!value->is_number_unsigned() || value->get<std::uint64_t>() > (1U << 30)) {
    wrong(kFileName, key, "a number from 0 to 2^30");
  }
  return value->get<std::size_t>();
}

// One id or a list.
std::vector<std::int32_t> ids(const Json& object, const char* key, const char* file) {
  std::vector<std::int32_t> found;
  const auto add = [&](const Json& value) {
    if (!value.is_number_unsigned() || value.get<std::uint64_t>() > INT32_MAX) {
      wrong(file, key, "a token id or a list of them");
    }
    found.push_back(value.get<std::int32_t>());
  };
  const Json* value = find(object, key);
  if (value == nullptr) return found;
  if (value->is_array()) {
    for (const Json& one : *value) add(one);
  } else {
    add(*value);
  }
  return found;
}

}  // namespace

GenerationConfig read_generation_config(const std::filesystem::path& directory,
                                        const formats::ModelConfig& config) {
  GenerationConfig is;
  const std::filesystem::path path = directory / kFileName;
  if (std::filesystem::exists(path)) {
    const Json json = formats::read_json_file(path, kMaxFileBytes);
    if (!json.is_object()) {
      throw Error(ErrorCode::kCorrupt, "is not a JSON object").in_file(kFileName);
    }
    if (const Json* sample = find(json, "do_sample")) {
      if (!sample->is_boolean()) wrong(kFileName, "do_sample", "true or false");
      is.do_sample = sample->get<bool>();
    }
    is.sampling.temperature = static_cast<float>(real(json, "temperature", 1.0, 0.0, 1e4));
    is.sampling.top_p = static_cast<float>(real(json, "top_p", 1.0, 0.0, 1.0));
    is.sampling.top_k = count(json, "top_k", 0);
    if (find(json, "max_new_tokens") != nullptr) {
      is.max_new_tokens = count(json, "max_new_tokens", 0);
    }
    is.eos = ids(json, "eos_token_id", kFileName);
  }
  if (is.eos.empty()) is.eos = ids(config.raw, "eos_token_id", "config.json");
  return is;
}

}  // namespace ingot::inference
