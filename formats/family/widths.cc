#include <algorithm>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "formats/base/checked.h"
#include "formats/base/error.h"
#include "formats/family/family.h"
#include "formats/family/rule_scope.h"

namespace ingot::formats {
namespace {

bool occurs(const TensorRule& rule, const ModelConfig& config) {
  if (rule.presence == Presence::kOptional || rule.presence == Presence::kStacked) return false;
  if (rule.scope == Scope::kModel) {
    return promise_of(rule, config, std::nullopt) != Promise::kForbidden;
  }
  const auto n_layers = narrow<std::uint32_t>(layer_count(config), "the number of layers");
  for (std::uint32_t layer = 0; layer < n_layers; ++layer) {
    if (!is_in_layer(rule, config, layer)) continue;
    const Promise promise = promise_of(rule, config, layer);
    if (promise == Promise::kRequired || rule.presence == Presence::kPerExpert) return true;
  }
  return false;
}

}  // namespace

bool has_kv_heads(const TensorRule& rule) {
  const Width* heads = rule.heads != nullptr ? rule.heads : rule.shape[0];
  return heads != nullptr && heads->mentions("num_key_value_heads");
}

Shape rule_shape(const TensorRule& rule, const ModelConfig& config) {
  Shape shape;
  for (const Width* width : rule.shape) {
    if (width == nullptr) break;
    shape.push_back(width->size(config));
  }
  return shape;
}

Shape weight_shape(const TensorRule& rule, const ModelConfig& config, bool is_quantized) {
  Shape shape = rule_shape(rule, config);
  if (stack_order(rule, is_quantized) != rule.stack)
    std::swap(shape[shape.size() - 2], shape[shape.size() - 1]);
  return shape;
}

void require_widths(const Family& family, const ModelConfig& config) {
  if (family.rules.empty()) return;
  std::vector<std::string> missing;
  if (config.num_hidden_layers == 0) missing.emplace_back("num_hidden_layers");
  for (const TensorRule& rule : family.rules) {
    for (const Width* width : rule.shape) {
      if (width == nullptr) break;
      if (width->size(config) != 0 || !occurs(rule, config)) continue;
      std::vector<std::string> names = width->missing(config);
      if (names.empty()) names.push_back(fmt::format("'{}' above 0", width->text()));
      for (std::string& name : names) {
        if (std::ranges::find(missing, name) == missing.end()) missing.push_back(std::move(name));
      }
    }
  }
  if (missing.empty()) return;
  throw Error(ErrorCode::kCorrupt,
              fmt::format("family {} needs {}, which the config lacks or has as 0", family.name,
                          fmt::join(missing, "; ")))
      .in_file("config.json");
}

}  // namespace ingot::formats
