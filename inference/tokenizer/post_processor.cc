#include "inference/tokenizer/post_processor.h"

#include <array>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "formats/json/json.h"
#include "inference/tokenizer/vocabulary.h"

namespace ingot::inference {
namespace {

using formats::Json;
using Template = PostProcessor::Template;

// Real templates have two or three parts of one id.
constexpr std::size_t kMaxParts = 64;
constexpr std::size_t kMaxIdsOfToken = 64;

std::vector<std::int32_t> ids_of(const Component& special_tokens, const std::string& name) {
  if (special_tokens.find(name.c_str()) == nullptr)
    special_tokens.refuse("has no token " + quote_text(name));
  const Component token(special_tokens.get(name.c_str()), "", special_tokens.path() + " token");
  const Json& list = token.array("ids");
  if (list.size() > kMaxIdsOfToken) token.refuse("ids", "are too many");
  std::vector<std::int32_t> ids;
  for (const Json& id : list) ids.push_back(token_id(id, token, name));
  return ids;
}

Template make_template(const Component& component) {
  const Json& single = component.array("single");
  if (single.size() > kMaxParts) component.refuse("single", "has too many parts");
  Template parts;
  bool has_text = false;
  for (std::size_t i = 0; i < single.size(); ++i) {
    const Component part(single[i], "", fmt::format("{}.single[{}]", component.path(), i));
    if (part.find("SpecialToken") != nullptr) {
      const std::string name = part.child("SpecialToken").text("id");
      parts.push_back({ids_of(component.child("special_tokens"), name)});
      continue;
    }
    const std::string name = part.child("Sequence").text("id");
    if (name != "A")
      part.refuse(fmt::format("asks for text {}, but there is one, \"A\"", quote_text(name)));
    if (std::exchange(has_text, true)) part.unsupported("repeats the text, which is not supported");
    parts.push_back({});
  }
  if (!has_text) component.refuse("single", "is without the text");
  return parts;
}

std::vector<std::int32_t> marker(const Component& component, const char* key) {
  const Json& pair = component.array(key);
  if (pair.size() != 2 || !pair[0].is_string()) component.refuse(key, "is not a token and its id");
  return {token_id(pair[1], component, pair[0].get<std::string>())};
}

Template make_markers(const Component& component) {
  return {{marker(component, "cls")}, {}, {marker(component, "sep")}};
}

Template make_nothing(const Component& /*component*/) {
  return {{}};
}

constexpr std::array<ComponentRow<Template (*)(const Component&)>, 4> kRows{{
    {"BertProcessing", &make_markers},
    {"ByteLevel", &make_nothing},
    {"RobertaProcessing", &make_markers},
    {"TemplateProcessing", &make_template},
}};

}  // namespace

PostProcessor PostProcessor::parse(const Json* value) {
  PostProcessor result;
  for (const Component& step : component_steps(value, "post_processor", "processors"))
    result.templates_.push_back(find_row(kRows, step).make(step));
  return result;
}

std::vector<std::int32_t> PostProcessor::ids() const {
  std::vector<std::int32_t> result;
  for (const Template& parts : templates_) {
    for (const Part& part : parts)
      if (part.ids) result.insert(result.end(), part.ids->begin(), part.ids->end());
  }
  return result;
}

std::vector<std::int32_t> PostProcessor::apply(std::vector<std::int32_t> ids) const {
  for (const Template& parts : templates_) {
    std::vector<std::int32_t> result;
    result.reserve(ids.size() + parts.size());
    for (const Part& part : parts) {
      const auto& added = part.ids ? *part.ids : ids;
      result.insert(result.end(), added.begin(), added.end());
    }
    ids = std::move(result);
  }
  return ids;
}

}  // namespace ingot::inference
