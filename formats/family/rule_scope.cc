#include "formats/family/rule_scope.h"

#include <algorithm>
#include <string>

#include <fmt/format.h>

#include "formats/base/error.h"
#include "formats/config/nested_config.h"
#include "formats/family/family_check.h"
#include "formats/json/json.h"

namespace ingot::formats {
namespace {

bool is_moe_layer(const ModelConfig& config, std::uint32_t layer) {
  if (layer < config.layer_is_moe.size()) return config.layer_is_moe[layer];
  return config.n_routed_experts > 0;
}

bool is_linear_layer(const ModelConfig& config, std::uint32_t layer) {
  return layer < config.layer_is_linear.size() && config.layer_is_linear[layer];
}

/// GLM layers may reuse the selection of an earlier layer and then need no indexer of their own.
/// Layers of which the config says nothing (MTP) are not required to have one once it says
/// something of others.
bool has_own_indexer(const ModelConfig& config, std::uint32_t layer) {
  const Json& raw = text_keys(config);
  if (!raw.is_object()) return true;
  if (const auto types = raw.find("indexer_types"); types != raw.end() && types->is_array()) {
    return layer < types->size() && (*types)[layer] == "full";
  }
  const auto every = raw.find("index_topk_freq");
  return every == raw.end() || *every == 1;
}

/// An entry of a config as families write it.
std::string word_of(const Json& value) {
  return value.is_string() ? value.get<std::string>() : value.dump();
}

/// Layers that a list of config.json may name: it is searched for each tensor.
constexpr std::size_t kMostListed = 4096;

/// In MTP layers it holds where the list goes on over them, or names them.
bool holds(const LayerCondition& condition, const ModelConfig& config, std::uint32_t layer) {
  const Json& value = config_value(config, condition.key);
  if (condition.values.empty()) {
    if (value.size() > kMostListed) {
      throw Error(ErrorCode::kLimit,
                  fmt::format("lists {} layers under {} (at most {} are understood)", value.size(),
                              condition.key, kMostListed))
          .in_file("config.json");
    }
    return value.is_array() &&
           condition.is_for_listed == std::ranges::any_of(value, [&](const Json& entry) {
             return entry == std::uint64_t{layer} + condition.first;
           });
  }
  std::string found;
  if (value.is_string()) {
    const auto& text = value.get_ref<const std::string&>();
    if (layer < text.size()) found = text[layer];
  } else if (value.is_array() && layer < value.size()) {
    found = word_of(value[layer]);
  }
  return std::ranges::any_of(condition.values, [&](const std::string& wanted) {
    return found == (wanted == kLayerMark ? std::to_string(layer) : wanted);
  });
}

Promise required_if(bool condition, Promise otherwise) {
  return condition ? Promise::kRequired : otherwise;
}

}  // namespace

std::uint64_t layer_count(const ModelConfig& config) {
  return config.num_hidden_layers + config.num_nextn_predict_layers;
}

bool scope_holds(Scope scope, const ModelConfig& config, std::optional<std::uint32_t> layer) {
  if (scope == Scope::kModel || !layer) return scope == Scope::kModel && !layer;
  if (*layer >= layer_count(config)) return false;
  switch (scope) {
    case Scope::kModel:
      return false;
    case Scope::kLayer:
      return true;
    case Scope::kMainLayer:
      return *layer < config.num_hidden_layers;
    case Scope::kDenseLayer:
      return !is_moe_layer(config, *layer);
    case Scope::kMoeLayer:
      return is_moe_layer(config, *layer);
    case Scope::kFullAttentionLayer:
      return !is_linear_layer(config, *layer);
    case Scope::kLinearAttentionLayer:
      return is_linear_layer(config, *layer);
    case Scope::kMtpLayer:
      return *layer >= config.num_hidden_layers;
  }
  return false;
}

bool is_in_layer(const TensorRule& rule, const ModelConfig& config,
                 std::optional<std::uint32_t> layer) {
  return scope_holds(rule.scope, config, layer) &&
         std::ranges::all_of(rule.layers, [&](const LayerCondition& condition) {
           return layer && holds(condition, config, *layer);
         });
}

Promise promise_of(const TensorRule& rule, const ModelConfig& config,
                   std::optional<std::uint32_t> layer) {
  switch (rule.presence) {
    case Presence::kRequired:
      return Promise::kRequired;
    case Presence::kOptional:
    case Presence::kPerExpert:
    case Presence::kStacked:
      return Promise::kAccepted;
    case Presence::kUntied:
      return required_if(!config.tie_word_embeddings, Promise::kAccepted);
    case Presence::kCorrected:
      return required_if(config.topk_method.empty() || config.topk_method == "noaux_tc",
                         Promise::kAccepted);
    case Presence::kOwnIndexer:
      return required_if(layer && has_own_indexer(config, *layer), Promise::kAccepted);
    case Presence::kWhen:
      return required_if(rule.condition->size(config, layer) != 0, Promise::kForbidden);
    case Presence::kUnless:
      return required_if(rule.condition->size(config, layer) == 0, Promise::kForbidden);
  }
  return Promise::kForbidden;
}

}  // namespace ingot::formats
