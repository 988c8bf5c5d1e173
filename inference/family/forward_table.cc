#include "inference/family/forward_table.h"

#include <algorithm>
#include <cmath>
#include <string>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "formats/family/forward.h"
#include "formats/json/json.h"
#include "inference/family/kinds.h"

// Families without C++: a file names kinds of blocks, and where in config.json their numbers are.
// Parameters are whole numbers (expressions of config.json, as widths are; flags are 0 or 1),
// reals, or words.

namespace ingot::inference {

using formats::Forward;
using formats::ForwardPart;
using formats::Json;
using formats::ModelConfig;

namespace {

// Experts as wide as the file says, before anything asks for the config's own word for it.
ModelConfig with_expert_width(const formats::Family& family, const ModelConfig& config) {
  ModelConfig known = config;
  if (!family.forward->mixture) return known;
  Parameters parameters(family, config, *family.forward->mixture);
  known.moe_intermediate_size = parameters.number("width", config.moe_intermediate_size);
  return known;
}

// The activation of MLPs: the only value of `hidden_act` that the family's file allows.
std::string_view activation_of(const Forward& forward) {
  const auto said =
      std::ranges::find(forward.only, "hidden_act", &formats::ForwardParameters::value_type::first);
  return said == forward.only.end() ? "silu" : std::string_view(said->second.text);
}

bool is_value(const Json& value, const std::string& text) {
  if (text == "none") return value == false || value == 0;
  return value.is_string() ? value.get_ref<const std::string&>() == text : value.dump() == text;
}

// True if a value other than `text` has its type: then it is a fact of the model, not a mistake.
bool has_type_of(const Json& value, const std::string& text) {
  if (text == "none" || text == "null") return true;
  if (text == "true" || text == "false") return value.is_boolean();
  return text.find_first_of("0123456789") == 0 ? value.is_number_unsigned() : value.is_string();
}

std::string quoted(const Json& value) {
  return value.is_string() ? fmt::format("'{}'", value.get<std::string>()) : value.dump();
}

void require_only(const formats::Family& family, const ModelConfig& config) {
  for (const auto& [key, wanted] : family.forward->only) {
    const Json& value = value_of(config, key);
    if (value.is_null() || is_value(value, wanted.text)) continue;
    refuse(has_type_of(value, wanted.text) ? ErrorCode::kUnsupported : ErrorCode::kCorrupt,
           fmt::format("'{}' is {}; the forward pass of family {} is for '{}'", key, quoted(value),
                       family.name, wanted.text));
  }
}

// Throws unless the config says which layers a part is for: the model would lack the part.
void require_said(const ForwardPart& part, const ModelConfig& config) {
  const formats::Scope scope = part.where.scope;
  const bool is_of_linear = scope == formats::Scope::kLinearAttentionLayer ||
                            scope == formats::Scope::kFullAttentionLayer;
  if (is_of_linear && config.layer_is_linear.size() != config.num_hidden_layers) {
    refuse(fmt::format("which of the {} layers have linear attention is not said",
                       config.num_hidden_layers));
  }
  for (const formats::LayerCondition& condition : part.where.layers) {
    const Json& list = formats::config_value(config, condition.key);
    const std::size_t n =
        list.is_string() ? list.get_ref<const std::string&>().size() : list.size();
    const bool is_long_enough =
        list.is_string()
            ? n == config.num_hidden_layers
            : list.is_array() && (condition.values.empty() || n >= config.num_hidden_layers);
    if (!is_long_enough)
      refuse(
          fmt::format("'{}' is not a list for {} layers", condition.key, config.num_hidden_layers));
    for (const Json& entry : condition.values.empty() ? list : Json::array()) {
      const auto number = formats::whole_number(entry, config.num_hidden_layers);
      if (!number || *number < condition.first ||
          *number - condition.first >= config.num_hidden_layers)
        refuse(fmt::format("'{}' has {}, of {} layers", condition.key, quoted(entry),
                           config.num_hidden_layers));
    }
  }
}

[[noreturn]] void refuse_layer(const formats::Family& family, const ModelConfig& config,
                               std::uint32_t layer) {
  for (const ForwardPart& part : family.forward->parts) {
    for (const formats::LayerCondition& condition : part.where.layers) {
      const Json& list = formats::config_value(config, condition.key);
      if (condition.values.empty() || layer >= config.num_hidden_layers) continue;
      const Json entry = list.is_string()
                             ? Json(list.get_ref<const std::string&>().substr(layer, 1))
                             : list[layer];
      const bool are_numbers = condition.values[0].find_first_of("0123456789") == 0;
      refuse(are_numbers ? ErrorCode::kCorrupt : ErrorCode::kUnsupported,
             fmt::format("'{}' has {} for layer {}, which the forward pass of family {} does not "
                         "know",
                         condition.key, quoted(entry), layer, family.name));
    }
  }
  refuse(
      ErrorCode::kInvalidArgument,
      fmt::format("the forward pass of family {} has no mixer for layer {}", family.name, layer));
}

// Layers may have numbers of experts of their own, and MLPs a width in each layer, where the file
// asks for it.
void require_one_width(const Forward& forward, const ModelConfig& config) {
  for (const auto& [key, widths] : config.by_layer) {
    const bool is_asked = key == "intermediate_size" &&
                          std::ranges::find(forward.mlp.parameters, "width",
                                            &formats::ForwardParameters::value_type::first) !=
                              forward.mlp.parameters.end();
    if (is_asked || key == "n_routed_experts") continue;
    refuse(ErrorCode::kUnsupported,
           fmt::format("'{}' is not the same in all layers; the forward pass has one", key));
  }
}

void require_needed(const formats::Family& family, const ModelConfig& config) {
  for (const std::string& text : family.forward->needs) {
    const formats::Width width = formats::Width::parse(text, family.widths);
    if (width.size(config) == 0)
      refuse(fmt::format("'{}' is missing or 0", fmt::join(width.missing(config), "' or '")));
  }
}

// A layer's blocks: the mixer and the feed-forward part, or those that the file lists.
LayerSpec layer_of(const formats::Family& family, const DecoderSpec& model, std::uint32_t layer) {
  const Forward& forward = *family.forward;
  LayerSpec spec{.short_convolution = model.short_convolution,
                 .scales_convolution = model.scales_convolution,
                 .residual_factor = model.residual_factor};
  if (model.run > 0) {
    spec.mixer_sources = (layer + model.run - 1) / model.run;
    spec.feed_forward_sources = layer / model.run + 1;
  }
  if (model.has_ngrams) spec.ngrams = ngram_spec(model.config, layer, model.spec.stream_width());
  for (const ForwardPart& part : forward.parts) {
    Parameters parameters(family, model.config, part, layer);
    if (!formats::is_in_layer(part.where, model.config, layer) || !parameters.flag("when", true))
      continue;
    BlockSpec block{.body = body_of(model, parameters, layer),
                    .norms_input = parameters.flag("norms_input", model.norms_input)};
    block.output_norm = block.is_mixer() ? model.mixer_output_norm : model.feed_forward_output_norm;
    const bool has_output_norm = parameters.flag("norms_output", block.output_norm.has_value());
    if (!has_output_norm) block.output_norm.reset();
    if (has_output_norm && !block.output_norm) block.output_norm = model.spec.norm;
    if (const auto factor = parameters.real("normed_residual"))
      block.normed_residual = static_cast<float>(*factor);
    block.input_factor = static_cast<float>(parameters.real("input_factor").value_or(1));
    block.output_factor = static_cast<float>(parameters.real("output_factor").value_or(1));
    block.inputs = parameters.count("inputs", 1, {1, 3});
    // Three terms and the stream are of one length.
    block.residual_rank = parameters.count("residual_rank", 0, kNoneOrFew);
    if (block.residual_rank > 0) {
      block.kept_factor = std::sqrt(0.5F);
      block.output_factor *= block.kept_factor;
    }
    if (forward.are_blocks) {
      block.number = static_cast<std::uint8_t>(parameters.count("number", 0, {0, 255}));
      if (parameters.has("input_of"))
        block.input_of = static_cast<std::uint8_t>(parameters.count("input_of", 0, {0, 255}));
    }
    parameters.require_all_asked();
    spec.blocks.push_back(std::move(block));
    if (!forward.are_blocks) break;
  }
  if (spec.blocks.empty()) refuse_layer(family, model.config, layer);
  const bool has_own_norms = model.is_moe[layer] && model.mixture->dense;
  if (!forward.are_blocks) {
    BlockSpec block{.body = model.feed_forward(layer),
                    .norms_input = model.norms_input && !has_own_norms,
                    .output_norm = model.feed_forward_output_norm};
    if (model.norms_mixture && model.is_moe[layer]) block.output_norm = model.spec.norm;
    spec.blocks.push_back(std::move(block));
  }
  for (std::size_t i = 0; i < spec.blocks.size(); ++i) {
    spec.blocks[i].gate_temperature = model.gate_temperature;
    // The output of the first mixer of a run of layers begins a new sum.
    if (i == 0 && model.run > 0 && layer % model.run == 0) spec.blocks[i].kept_factor = 0;
    if (!model.is_weighed_by_depth) continue;
    // The number of terms of the sum so far.
    const auto n = static_cast<double>(spec.blocks.size() * (std::size_t{layer} + 1) + i);
    spec.blocks[i].output_factor *= static_cast<float>(1 / std::sqrt(n));
    spec.blocks[i].kept_factor = static_cast<float>(std::sqrt((n - 1) / n));
  }
  Parameters mlp(family, model.config, forward.mlp, layer);
  std::optional<Parameters> mixture;
  if (forward.mixture) mixture.emplace(family, model.config, *forward.mixture, layer);
  for (BlockSpec& block : spec.blocks) set_gates(mlp, mixture ? &*mixture : nullptr, block.body);
  mlp.require_all_asked();
  return spec;
}

}  // namespace

ModelSpec spec_of_file(const formats::Family& family, const ModelConfig& given) {
  const Forward& forward = *family.forward;
  const ModelConfig config = with_expert_width(family, given);
  require_one_width(forward, config);
  DecoderSpec model(config, activation_of(forward));
  require_only(family, config);
  require_needed(family, config);
  if (forward.mtp == "left-out" || forward.mtp == "unsaid") model.leave_out_mtp();
  if (forward.mtp == "dense") {
    std::fill(model.is_moe.begin() + static_cast<std::ptrdiff_t>(model.spec.n_main),
              model.is_moe.end(), false);
  }
  if (forward.mtp == "unsaid") model.spec.leaves_out_mtp = true;
  for (const ForwardPart& part : forward.parts) require_said(part, config);
  Parameters ends(family, config, forward.model);
  set_model(ends, model);
  ends.require_all_asked();
  if (forward.mixture) {
    Parameters parameters(family, config, *forward.mixture);
    for (const char* name : {"width", "expert_limit"}) static_cast<void>(parameters.has(name));
    set_mixture(parameters, model);
    if (model.mixture) parameters.require_all_asked();
  } else if (model.mixture) {
    refuse(ErrorCode::kUnsupported,
           fmt::format("has {} experts; family {} has none", config.n_routed_experts, family.name));
  }
  for (std::size_t l = 0; l < model.is_moe.size(); ++l)
    model.spec.layers.push_back(layer_of(family, model, static_cast<std::uint32_t>(l)));
  return std::move(model.spec);
}

}  // namespace ingot::inference
