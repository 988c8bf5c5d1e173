#include "formats/dialect/modelopt_algos.h"

#include <algorithm>

#include <fmt/format.h>

#include "formats/base/error.h"
#include "formats/config/config_meaning.h"
#include "formats/dialect/dialect_table.h"
#include "formats/json/json.h"

namespace ingot::formats {
namespace {

/// hf_quant_config.json keeps everything below one key.
const Json& body_of(const Json& block) {
  const Json& nested = config_member(block, "quantization");
  return nested.is_object() ? nested : block;
}

std::string algo_name_in(const Json& owner) {
  const Json& name = config_member(owner, "quant_algo");
  return name.is_string() ? name.get<std::string>() : std::string();
}

ModuleList excluded_in(const Json& body, std::vector<std::string>* faults) {
  std::vector<std::string> entries;
  for (const char* key : {"exclude_modules", "ignore"}) {
    const Json& list = config_member(body, key);
    const bool is_list =
        list.is_array() &&
        std::all_of(list.begin(), list.end(), [](const Json& e) { return e.is_string(); });
    if (!is_list && !list.is_null()) {
      std::string fault = fmt::format("'quantization_config.{}' is not a list of strings", key);
      if (faults == nullptr)
        throw Error(ErrorCode::kCorrupt, std::move(fault)).in_file("config.json");
      faults->push_back(std::move(fault));
    }
    if (!list.is_array()) continue;
    for (const Json& entry : list) {
      // Expressions are not of this dialect; an entry that looks like one is only text.
      if (entry.is_string() && entry != "" &&
          !entry.get_ref<const std::string&>().starts_with("re:"))
        entries.push_back(entry.get<std::string>());
    }
  }
  return {entries, PatternSyntax::kGlob};
}

}  // namespace

ModeloptBlock::ModeloptBlock(const Json& block, std::vector<std::string>* faults)
    : algo_name_(algo_name_in(body_of(block))), excluded_(excluded_in(body_of(block), faults)) {
  const Json& layers = config_member(body_of(block), "quantized_layers");
  if (!layers.is_object()) return;
  layers_.emplace();
  for (const auto& [module, layer] : layers.items())
    layers_->emplace(module, find_storage(kModeloptDialect, algo_name_in(layer)));
}

std::optional<const StorageRow*> ModeloptBlock::listed(std::string_view module) const {
  while (true) {
    if (const auto layer = layers_->find(module); layer != layers_->end()) return layer->second;
    const std::size_t dot = module.rfind('.');
    if (dot == std::string_view::npos) return std::nullopt;
    module = module.substr(0, dot);
  }
}

const StorageRow* ModeloptBlock::algo_of(std::string_view module) const {
  if (excluded_.covers_for_any(module)) return nullptr;
  return layers_ ? listed(module).value_or(nullptr) : find_storage(kModeloptDialect, algo_name_);
}

Exclusion ModeloptBlock::exclusion_of(std::string_view module) const {
  if (algo_name_ == kModeloptMixed && layers_)
    return listed(module) ? Exclusion::kNone : Exclusion::kWhole;
  if (excluded_.covers_for_all(module)) return Exclusion::kWhole;
  return excluded_.covers_for_any(module) ? Exclusion::kInside : Exclusion::kNone;
}

}  // namespace ingot::formats
