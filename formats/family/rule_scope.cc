#include "formats/family/rule_scope.h"

#include "formats/config/nested_config.h"
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

Promise promise_of(Presence presence, const ModelConfig& config,
                   std::optional<std::uint32_t> layer) {
  switch (presence) {
    case Presence::kRequired:
      return Promise::kRequired;
    case Presence::kOptional:
    case Presence::kPerExpert:
    case Presence::kStacked:
      return Promise::kAccepted;
    case Presence::kWithQLora:
      return required_if(config.q_lora_rank > 0, Promise::kForbidden);
    case Presence::kWithoutQLora:
      return required_if(config.q_lora_rank == 0, Promise::kForbidden);
    case Presence::kUntied:
      return required_if(!config.tie_word_embeddings, Promise::kAccepted);
    case Presence::kCorrected:
      return required_if(config.topk_method.empty() || config.topk_method == "noaux_tc",
                         Promise::kAccepted);
    case Presence::kWithSharedExperts:
      return required_if(config.n_shared_experts > 0, Promise::kForbidden);
    case Presence::kOwnIndexer:
      return required_if(layer && has_own_indexer(config, *layer), Promise::kAccepted);
  }
  return Promise::kForbidden;
}

}  // namespace ingot::formats
