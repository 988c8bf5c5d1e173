#include "inference/generate/generation_config.h"

#include <limits>

#include "formats/json/json.h"
#include "formats/json/json_fields.h"

namespace ingot::inference {
namespace {

using formats::Json;
using formats::JsonFields;

constexpr const char* kFileName = "generation_config.json";
constexpr std::uint64_t kMaxFileBytes = 1U << 20;
constexpr std::uint64_t kMaxCount = 1U << 30;

// One id or a list.
std::vector<std::int32_t> ids(const JsonFields& fields, const char* key) {
  std::vector<std::int32_t> found;
  const auto add = [&](const Json& value) {
    const auto id = formats::whole_number(value, std::numeric_limits<std::int32_t>::max());
    if (!id) fields.refuse(key, "is not a token id or a list of them");
    found.push_back(static_cast<std::int32_t>(*id));
  };
  const Json* value = fields.find(key);
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
    const JsonFields fields(json, kFileName);
    is.do_sample = fields.boolean("do_sample", is.do_sample);
    is.sampling.temperature =
        static_cast<float>(fields.optional_real("temperature", 0.0, 1e4).value_or(1.0));
    is.sampling.top_p = static_cast<float>(fields.optional_real("top_p", 0.0, 1.0).value_or(1.0));
    is.sampling.top_k = fields.optional_number("top_k", kMaxCount).value_or(0);
    is.max_new_tokens = fields.optional_number("max_new_tokens", kMaxCount);
    is.eos = ids(fields, "eos_token_id");
  }
  if (is.eos.empty()) is.eos = ids(JsonFields(config.raw, "config.json"), "eos_token_id");
  return is;
}

}  // namespace ingot::inference
