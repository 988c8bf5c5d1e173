#include "formats/records/native_names.h"

#include <algorithm>
#include <array>
#include <cstdint>

#include "formats/base/words.h"
#include "formats/family/families.h"
#include "formats/family/family_check.h"
#include "formats/family/rule_scope.h"

// DeepSeek's converter replaces texts anywhere in a name. For the tensors that its model has, that
// is the same as giving each module a name of its own, as the table below does; unlike the
// replacements it can be read in both directions.
//
// A multi-token prediction layer is dropped by that converter. Here it keeps its number
// (`layers.61.`), its ordinary tensors the names of every layer, and its own ones those of the rows
// with Scope::kMtpLayer.

namespace ingot::formats {
namespace {

constexpr std::string_view kNativeLayers = "layers.";

struct ModuleName {
  std::string_view hub, native;  // names; a layer's: behind `layers.{n}.`
  Scope scope{};
  std::string_view parameters;  // w: weight, s: its scales, b: bias, c: the router's correction
};

constexpr std::array kModules = {
    ModuleName{"model.embed_tokens", "embed", Scope::kModel, "w"},
    ModuleName{"model.norm", "norm", Scope::kModel, "w"},
    ModuleName{"lm_head", "head", Scope::kModel, "w"},
    ModuleName{"input_layernorm", "attn_norm", Scope::kLayer, "w"},
    ModuleName{"post_attention_layernorm", "ffn_norm", Scope::kLayer, "w"},
    ModuleName{"self_attn.q_proj", "attn.wq", Scope::kLayer, "ws"},
    ModuleName{"self_attn.q_a_proj", "attn.wq_a", Scope::kLayer, "ws"},
    ModuleName{"self_attn.q_a_layernorm", "attn.q_norm", Scope::kLayer, "w"},
    ModuleName{"self_attn.q_b_proj", "attn.wq_b", Scope::kLayer, "ws"},
    ModuleName{"self_attn.kv_a_proj_with_mqa", "attn.wkv_a", Scope::kLayer, "ws"},
    ModuleName{"self_attn.kv_a_layernorm", "attn.kv_norm", Scope::kLayer, "w"},
    ModuleName{"self_attn.kv_b_proj", "attn.wkv_b", Scope::kLayer, "ws"},
    ModuleName{"self_attn.o_proj", "attn.wo", Scope::kLayer, "ws"},
    ModuleName{"self_attn.indexer.wq_b", "attn.indexer.wq_b", Scope::kLayer, "ws"},
    ModuleName{"self_attn.indexer.wk", "attn.indexer.wk", Scope::kLayer, "ws"},
    ModuleName{"self_attn.indexer.k_norm", "attn.indexer.k_norm", Scope::kLayer, "wb"},
    ModuleName{"self_attn.indexer.weights_proj", "attn.indexer.weights_proj", Scope::kLayer, "w"},
    ModuleName{"mlp.gate_proj", "ffn.w1", Scope::kDenseLayer, "ws"},
    ModuleName{"mlp.down_proj", "ffn.w2", Scope::kDenseLayer, "ws"},
    ModuleName{"mlp.up_proj", "ffn.w3", Scope::kDenseLayer, "ws"},
    ModuleName{"mlp.gate", "ffn.gate", Scope::kMoeLayer, "wc"},
    ModuleName{"mlp.experts.{expert}.gate_proj", "ffn.experts.{expert}.w1", Scope::kMoeLayer, "ws"},
    ModuleName{"mlp.experts.{expert}.down_proj", "ffn.experts.{expert}.w2", Scope::kMoeLayer, "ws"},
    ModuleName{"mlp.experts.{expert}.up_proj", "ffn.experts.{expert}.w3", Scope::kMoeLayer, "ws"},
    ModuleName{"mlp.shared_experts.gate_proj", "ffn.shared_experts.w1", Scope::kMoeLayer, "ws"},
    ModuleName{"mlp.shared_experts.down_proj", "ffn.shared_experts.w2", Scope::kMoeLayer, "ws"},
    ModuleName{"mlp.shared_experts.up_proj", "ffn.shared_experts.w3", Scope::kMoeLayer, "ws"},
    ModuleName{"embed_tokens", "embed", Scope::kMtpLayer, "w"},
    ModuleName{"enorm", "enorm", Scope::kMtpLayer, "w"},
    ModuleName{"hnorm", "hnorm", Scope::kMtpLayer, "w"},
    ModuleName{"eh_proj", "eh_proj", Scope::kMtpLayer, "ws"},
    ModuleName{"shared_head.norm", "shared_head.norm", Scope::kMtpLayer, "w"},
    ModuleName{"shared_head.head", "shared_head.head", Scope::kMtpLayer, "w"},
};

struct ParameterName {
  std::string_view hub, native;
  char kind;
};

constexpr std::array kParameters = {
    ParameterName{"weight", "weight", 'w'},
    ParameterName{"weight_scale_inv", "scale", 's'},
    ParameterName{"bias", "bias", 'b'},
    ParameterName{"e_score_correction_bias", "bias", 'c'},
};

bool is_natively_named(const ModelConfig& config) {
  constexpr std::array<std::string_view, 4> kFamilies = {"deepseek_v2", "deepseek_v3",
                                                         "deepseek_v32", "kimi_k2"};
  const Family* family = family_of(config);
  return family != nullptr &&
         std::find(kFamilies.begin(), kFamilies.end(), family->name) != kFamilies.end();
}

// One of the two namings: which column of the tables, and the prefix of the layers.
struct Naming {
  std::string_view ModuleName::*module;
  std::string_view ParameterName::*parameter;
  std::string_view root;
};
constexpr Naming kHub = {&ModuleName::hub, &ParameterName::hub, "model."};
constexpr Naming kNative = {&ModuleName::native, &ParameterName::native, ""};

// Takes a decimal number without leading zeros, and the dot behind it, off the front of a text.
std::optional<std::uint32_t> take_index(std::string_view& text) {
  if (text.starts_with('0') && !text.starts_with("0.")) return std::nullopt;
  return take_number(text, ".");
}

struct NameParts {
  std::optional<std::uint32_t> layer, expert;
  std::string module;  // module as in the table
  std::string_view parameter;
};

std::optional<NameParts> split_name(std::string_view name, const Naming& naming) {
  // A name that holds our mark would look like a row of the table.
  if (name.find('{') != std::string_view::npos) return std::nullopt;
  NameParts parts;
  const std::string layers = std::string(naming.root) + std::string(kNativeLayers);
  if (name.starts_with(layers)) {
    name.remove_prefix(layers.size());
    parts.layer = take_index(name);
    if (!parts.layer) return std::nullopt;
  }
  const std::size_t dot = name.rfind('.');
  if (dot == std::string_view::npos) return std::nullopt;
  parts.parameter = name.substr(dot + 1);
  parts.module = name.substr(0, dot);
  constexpr std::string_view kExperts = ".experts.";
  if (const std::size_t at = parts.module.find(kExperts); at != std::string::npos) {
    const std::size_t begin = at + kExperts.size();
    std::string_view rest = std::string_view(parts.module).substr(begin);
    parts.expert = take_index(rest);
    if (!parts.expert) return std::nullopt;
    parts.module.replace(begin, parts.module.size() - begin - rest.size() - 1, kExpertMark);
  }
  return parts;
}

std::optional<std::string> translate(std::string_view name, const ModelConfig& config,
                                     const Naming& from, const Naming& to) {
  if (!is_natively_named(config)) return std::nullopt;
  const std::optional<NameParts> parts = split_name(name, from);
  if (!parts) return std::nullopt;
  if (parts->expert && *parts->expert >= config.n_routed_experts) return std::nullopt;
  const auto module = std::find_if(kModules.begin(), kModules.end(), [&](const ModuleName& row) {
    return row.*from.module == parts->module && scope_holds(row.scope, config, parts->layer);
  });
  if (module == kModules.end()) return std::nullopt;
  const auto parameter =
      std::find_if(kParameters.begin(), kParameters.end(), [&](const ParameterName& row) {
        return row.*from.parameter == parts->parameter &&
               module->parameters.find(row.kind) != std::string_view::npos;
      });
  if (parameter == kParameters.end()) return std::nullopt;

  std::string result;
  if (parts->layer) {
    result.append(to.root).append(kNativeLayers).append(std::to_string(*parts->layer)).append(".");
  }
  result += module->*to.module;
  if (parts->expert) {
    result.replace(result.find(kExpertMark), kExpertMark.size(), std::to_string(*parts->expert));
  }
  return result.append(".").append(parameter->*to.parameter);
}

}  // namespace

std::optional<std::string> native_name(std::string_view stored_name, const ModelConfig& config) {
  return translate(stored_name, config, kHub, kNative);
}

std::optional<std::string> hub_name(std::string_view native_name, const ModelConfig& config) {
  return translate(native_name, config, kNative, kHub);
}

}  // namespace ingot::formats
