#include "verify/structure/forward_pass.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "formats/base/error.h"
#include "formats/checkpoint/checkpoint_listing.h"
#include "formats/config/keys.h"
#include "formats/config/nested_config.h"
#include "formats/json/json.h"
#include "inference/family/model_family.h"

namespace ingot::verify {

using formats::Json;
using formats::json_member;
using formats::kConfigName;

namespace {

// The object that holds the text model's keys, and the whole: keys may be in either.
std::vector<Json*> sections_of(Json& config) {
  std::vector<Json*> sections = {&config};
  if (Json& text = formats::text_section(config); &text != &config) sections.push_back(&text);
  return sections;
}

void take_over(const std::string& key, const Json& from, Json& to) {
  const Json& value = json_member(from, key);
  value.is_null() ? static_cast<void>(to.erase(key)) : static_cast<void>(to[key] = value);
}

// The value at a path of keys is taken out; false where there is none.
bool erase_path(Json& config, std::string_view path) {
  Json* object = &config;
  for (;;) {
    const std::size_t dot = path.find('.');
    const std::string key(path.substr(0, dot));
    if (!object->is_object() || !object->contains(key)) return false;
    if (dot == std::string_view::npos) return object->erase(key) > 0;
    object = &object->at(key);
    path.remove_prefix(dot + 1);
  }
}

}  // namespace

ForwardPass::ForwardPass(const formats::Family* family, const Json& source, const Json& output)
    : family_(family) {
  if (family == nullptr || !source.is_object() || !output.is_object()) return;
  Json from = source, to = output;
  const std::vector<Json*> ours = sections_of(from), theirs = sections_of(to);
  // The inner object first: a key that is added to the outer one moves it.
  for (std::size_t i = std::min(ours.size(), theirs.size()); i-- > 0;) {
    take_over("quantization_config", *ours[i], *theirs[i]);
    for (const std::string& key : formats::find_key("num_nextn_predict_layers")->spellings)
      take_over(key, *ours[i], *theirs[i]);
  }
  source_ = spec_of(from);
  if (source_) output_ = spec_of(to, &refusal_);
  source_config_ = std::move(from);
  output_config_ = std::move(to);
}

std::optional<inference::ModelSpec> ForwardPass::spec_of(const Json& config,
                                                         std::string* refusal) const {
  try {
    return inference::model_spec(
        *family_, formats::parse_model_config(formats::json_text(config), kConfigName));
  } catch (const Error& error) {
    if (refusal != nullptr) *refusal = error.message();
    return std::nullopt;
  }
}

bool ForwardPass::depends_on(bool of_output, std::string_view path) const {
  if (!is_known()) return false;
  Json config = of_output ? output_config_ : source_config_;
  return erase_path(config, path) && spec_of(config) != (of_output ? output_ : source_);
}

}  // namespace ingot::verify
