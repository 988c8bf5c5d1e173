#include "inference/tokenizer/component.h"

#include <fmt/format.h>

#include "formats/base/error.h"
#include "formats/base/words.h"
#include "formats/json/json.h"
#include "inference/tokenizer/characters.h"

namespace ingot::inference {
namespace {

using formats::Json;

constexpr std::size_t kMaxQuotedBytes = 120;
constexpr std::size_t kMaxSteps = 256;

// The recursion ends at the depth that the JSON parser allows.
void append_steps(const Json& value, const std::string& path, const char* list_key,
                  std::vector<Component>& steps) {
  const Component component(value, "", path);
  if (component.text("type") != "Sequence") {
    if (steps.size() == kMaxSteps)
      throw Error(ErrorCode::kLimit, "{} has more than {} steps", path, kMaxSteps);
    steps.push_back(component);
    return;
  }
  std::size_t index = 0;
  for (const Json& step : component.array(list_key))
    append_steps(step, fmt::format("{}[{}]", path, index++), list_key, steps);
}

}  // namespace

std::string character_field(const Component& component, const char* key) {
  std::string value = component.text(key);
  if (value.empty() || code_point_at(value, 0).n_bytes != value.size())
    component.refuse(key, "is not one character");
  return value;
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
    while (end > 0 && continues_character(text[end])) --end;
    text = text.substr(0, end);
  }
  // Texts from the file are valid UTF-8, so this cannot throw.
  return Json(text).dump() + (is_cut ? "..." : "");
}

}  // namespace ingot::inference
