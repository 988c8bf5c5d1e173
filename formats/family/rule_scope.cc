#include "formats/family/rule_scope.h"

#include <algorithm>
#include <string>

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

/// Layers that a list of config.json may name: it is searched for each tensor.
constexpr std::size_t kMostListed = 4096;

/// The entry of a layer. MTP layers have it where the list goes on over them, or in a list of their
/// own for each step, whose key begins with `mtp_`.
std::string entry_of_layer(const ModelConfig& config, const std::string& key, std::uint32_t layer) {
  const std::string entry = entry_of(config_value(config, key), layer);
  if (layer < config.num_hidden_layers || !entry.empty()) return entry;
  const Json& own = config_value(config, "mtp_" + key);
  const std::size_t n = own.is_string() ? own.get_ref<const std::string&>().size() : own.size();
  return n == 0 ? entry : entry_of(own, (layer - config.num_hidden_layers) % n);
}

bool holds(const LayerCondition& condition, const ModelConfig& config, std::uint32_t layer) {
  if (condition.values.empty()) {
    const Json& value = config_value(config, condition.key);
    if (value.size() > kMostListed) {
      throw Error(ErrorCode::kLimit, "lists {} layers under {} (at most {} are understood)",
                  value.size(), condition.key, kMostListed)
          .in_file("config.json");
    }
    return value.is_array() &&
           condition.is_for_listed == std::ranges::any_of(value, [&](const Json& entry) {
             return entry == std::uint64_t{layer} + condition.first;
           });
  }
  const std::string found = entry_of_layer(config, condition.key, layer);
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

OwnIndexer own_indexer(const ModelConfig& config, std::uint64_t layer) {
  // An MTP layer is a model by itself, with nothing before it.
  return layer < config.num_hidden_layers ? own_indexer(text_keys(config), layer) : OwnIndexer();
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

namespace {

Promise promise_of_presence(const TensorRule& rule, const ModelConfig& config,
                            std::optional<std::uint32_t> layer) {
  switch (rule.presence) {
    case Presence::kRequired:
      return Promise::kRequired;
    case Presence::kOptional:
    case Presence::kPerExpert:
    case Presence::kStacked:
      return Promise::kAccepted;
    case Presence::kUntied:
      return required_if(!config.tie_word_embeddings && head_of(config) == ModelHead::kTokens,
                         Promise::kAccepted);
    case Presence::kCorrected:
      return required_if(config.topk_method.empty() || config.topk_method == "noaux_tc",
                         Promise::kAccepted);
    case Presence::kOwnIndexer:
      return required_if(layer && own_indexer(config, *layer).is_own.value_or(false),
                         Promise::kAccepted);
    case Presence::kWhen:
      return required_if(rule.condition->size(config, layer) != 0, Promise::kForbidden);
    case Presence::kUnless:
      return required_if(rule.condition->size(config, layer) == 0, Promise::kForbidden);
  }
  return Promise::kForbidden;
}

}  // namespace

Promise promise_of(const TensorRule& rule, const ModelConfig& config,
                   std::optional<std::uint32_t> layer) {
  const Promise promise = promise_of_presence(rule, config, layer);
  const bool is_spare = rule.spare != nullptr && rule.spare->size(config, layer) != 0;
  return is_spare && promise == Promise::kRequired ? Promise::kAccepted : promise;
}

}  // namespace ingot::formats
