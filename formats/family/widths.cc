#include <algorithm>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "formats/base/checked.h"
#include "formats/base/error.h"
#include "formats/family/family.h"
#include "formats/family/family_check.h"
#include "formats/family/rule_scope.h"

namespace ingot::formats {
namespace {

bool occurs(const TensorRule& rule, const ModelConfig& config, std::optional<std::uint32_t> layer) {
  if (!is_in_layer(rule, config, layer)) return false;
  const Promise promise = promise_of(rule, config, layer);
  if (!layer) return promise != Promise::kForbidden;
  return promise == Promise::kRequired || rule.presence == Presence::kPerExpert;
}

/// Keys that a row's width lacks where the row's tensors are promised; empty if none.
std::vector<std::string> missing_of(const Width& width, const TensorRule& rule,
                                    const ModelConfig& config) {
  if (rule.presence == Presence::kOptional || rule.presence == Presence::kStacked) return {};
  const auto in = [&](std::optional<std::uint32_t> layer) -> std::vector<std::string> {
    if (!occurs(rule, config, layer) || width.size(config, layer) != 0) return {};
    std::vector<std::string> names = width.missing(config, layer);
    if (names.empty()) names.push_back(fmt::format("'{}' above 0", width.text()));
    if (layer && width.differs_by_layer(config))
      names.back() += fmt::format(" in layer {}", *layer);
    return names;
  };
  if (rule.scope == Scope::kModel) return in(std::nullopt);
  if (!width.differs_by_layer(config) && width.size(config) != 0) return {};
  const auto n_layers = narrow<std::uint32_t>(layer_count(config), "the number of layers");
  for (std::uint32_t layer = 0; layer < n_layers; ++layer) {
    if (std::vector<std::string> names = in(layer); !names.empty()) return names;
  }
  return {};
}

}  // namespace

bool has_kv_heads(const TensorRule& rule) {
  const Width* heads = rule.heads != nullptr ? rule.heads : rule.shape[0];
  return heads != nullptr && heads->mentions("num_key_value_heads");
}

Shape rule_shape(const TensorRule& rule, const ModelConfig& config,
                 std::optional<std::uint32_t> layer) {
  Shape shape;
  for (const Width* width : rule.shape) {
    if (width == nullptr) break;
    shape.push_back(width->size(config, layer));
  }
  return shape;
}

Shape weight_shape(const TensorRule& rule, const ModelConfig& config,
                   std::optional<std::uint32_t> layer, bool is_turned) {
  Shape shape = rule_shape(rule, config, layer);
  if (stack_order(rule, is_turned) != rule.stack)
    std::swap(shape[shape.size() - 2], shape[shape.size() - 1]);
  return shape;
}

Shape stored_shape(const TensorRule* rule, Shape shape) {
  if (rule == nullptr || !rule->is_flat || shape.size() != 3) return shape;
  return {shape[0] * shape[1], shape[2]};
}

void require_widths(const Family& family, const ModelConfig& config) {
  if (family.rules.empty()) return;
  std::vector<std::string> missing;
  if (config.num_hidden_layers == 0) missing.emplace_back("num_hidden_layers");
  const auto need = [&](const Width& width, const TensorRule& rule) {
    for (std::string& name : missing_of(width, rule, config)) {
      if (std::ranges::find(missing, name) == missing.end()) missing.push_back(std::move(name));
    }
  };
  for (const TensorRule& rule : family.rules) {
    if (const std::string_view mark = key_mark(rule.pattern); !mark.empty())
      need(count_of(mark, family), rule);
    for (const Width* width : rule.shape) {
      if (width == nullptr) break;
      need(*width, rule);
    }
  }
  if (missing.empty()) return;
  throw Error(ErrorCode::kCorrupt, "family {} needs {}, which the config lacks or has as 0",
              family.name, fmt::join(missing, "; "))
      .in_file("config.json");
}

}  // namespace ingot::formats
