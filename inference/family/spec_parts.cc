#include "inference/family/spec_parts.h"

#include <algorithm>
#include <cmath>

#include "formats/base/error.h"
#include "formats/config/nested_config.h"
#include "formats/config/ngram_table.h"
#include "formats/config/routing.h"
#include "formats/family/rule_scope.h"
#include "formats/json/json.h"

namespace ingot::inference {

using formats::JsonFields;
using formats::ModelConfig;

void refuse(ErrorCode code, const std::string& message) {
  throw Error(code, message).in_file("config.json");
}

void refuse(const std::string& message) {
  refuse(ErrorCode::kCorrupt, message);
}

std::size_t required(std::uint64_t value, std::string_view key) {
  if (value == 0) refuse(fmt::format("'{}' is missing or 0", key));
  return static_cast<std::size_t>(value);
}

std::size_t of_heads(std::uint64_t value, std::string_view key) {
  constexpr std::uint64_t kMost = std::uint64_t{1} << 16;
  if (value > kMost) refuse(fmt::format("'{}' is {}, at most {} is plausible", key, value, kMost));
  return required(value, key);
}

namespace {

// Each has a spec of its own.
constexpr std::size_t kMaxLayers = std::size_t{1} << 16;

RouterSpec router_spec(const ModelConfig& config) {
  required(config.n_routed_experts, "n_routed_experts");
  required(config.num_experts_per_tok, "num_experts_per_tok");
  const formats::Routing routing = formats::read_routing(config);
  RouterSpec router;
  router.experts = routing.experts;
  router.topk = routing.topk;
  router.groups = routing.groups;
  router.topk_groups = routing.topk_groups;
  return router;
}

void require_text(const JsonFields& fields, const char* key, std::string_view only) {
  const std::string value = fields.text(key, only);
  if (value == only) return;
  refuse(ErrorCode::kUnsupported,
         fmt::format("'{}' is '{}'; the forward pass knows only '{}'", key, value, only));
}

}  // namespace

JsonFields spec_fields(const ModelConfig& config) {
  return {formats::text_keys(config), "config.json"};
}

DecoderSpec::DecoderSpec(const ModelConfig& given, std::string_view activation)
    : config(given), fields(spec_fields(given)) {
  require_text(fields, "hidden_act", activation);
  spec.vocab = spec.stored_vocab = required(config.vocab_size, "vocab_size");
  spec.hidden = required(config.hidden_size, "hidden_size");
  spec.n_main = required(config.num_hidden_layers, "num_hidden_layers");
  const std::size_t n_layers =
      spec.n_main + static_cast<std::size_t>(config.num_nextn_predict_layers);
  if (n_layers > kMaxLayers) {
    refuse(
        fmt::format("'num_hidden_layers' and 'num_nextn_predict_layers' are {} together, at "
                    "most {} is plausible",
                    n_layers, kMaxLayers));
  }
  spec.max_positions = static_cast<std::size_t>(config.max_position_embeddings);
  spec.norm.eps = static_cast<float>(config.rms_norm_eps);
  // A head of classes is not tied to the embedding.
  spec.ends.tied_head =
      config.tie_word_embeddings && head_of(config) != formats::ModelHead::kClasses;
  dense.width = static_cast<std::size_t>(config.intermediate_size);
  is_moe = config.layer_is_moe;
  is_moe.resize(spec.n_main, false);
  // Layers for multi-token prediction are like the last kind of layer: with experts, if there are
  // any.
  is_moe.resize(n_layers, config.n_routed_experts > 0);
  if (std::find(is_moe.begin(), is_moe.end(), true) == is_moe.end()) return;
  mixture = {.router = router_spec(config),
             .expert = {.width = required(config.moe_intermediate_size, "moe_intermediate_size")}};
  share(config.n_shared_experts * config.moe_intermediate_size);
}

void DecoderSpec::share(std::uint64_t width) {
  if (!mixture) return;
  mixture->shared.reset();
  if (width > 0) mixture->shared = MlpSpec{.width = static_cast<std::size_t>(width)};
}

void DecoderSpec::leave_out_mtp() {
  spec.leaves_out_mtp = is_moe.size() > spec.n_main;
  is_moe.resize(spec.n_main);
}

BodySpec DecoderSpec::feed_forward(std::size_t layer) const {
  if (!is_moe[layer]) return dense;
  MixtureSpec own = *mixture;
  own.router.has_table = layer < n_tables;
  if (formats::has_uneven_experts(config))
    own.router.experts = static_cast<std::size_t>(
        formats::experts_of(config, static_cast<std::uint32_t>(layer)));
  return own;
}

namespace {

// `llama_4_scaling_beta` of the rope parameters.
std::optional<GrowthSpec> query_growth(const ModelConfig& config) {
  const auto rope = rope_fields(config);
  const auto beta = rope ? rope->optional_real("llama_4_scaling_beta", -1e6, 1e6) : std::nullopt;
  if (!beta) return std::nullopt;
  const std::uint64_t length = config.rope.original_max_position_embeddings.value_or(0);
  return GrowthSpec{
      .beta = static_cast<float>(*beta),
      .length = static_cast<float>(required(length, "original_max_position_embeddings"))};
}

}  // namespace

std::optional<GrowthSpec> growth_of(const ModelConfig& config, Parameters& parameters) {
  if (parameters.flag("growth", false)) return query_growth(config);
  if (!parameters.has("growth_length")) return std::nullopt;
  GrowthSpec own{.offset = 1,
                 .is_smooth = parameters.flag("growth_smooth", false),
                 .is_power = parameters.flag("growth_power", false)};
  static_cast<void>(parameters.has("growth_beta"));
  if (!parameters.is_set("grows", true)) return std::nullopt;
  own.beta = static_cast<float>(parameters.real("growth_beta", {-1e6, 1e6}).value_or(0));
  own.length = static_cast<float>(parameters.count("growth_length", 0, {1, kWindow.most}));
  return own;
}

std::vector<bool> rope_layers(const JsonFields& fields, std::size_t n_layers) {
  std::vector<std::uint64_t> flags = fields.optional_numbers("no_rope_layers");
  const std::size_t every =
      required(fields.optional_number("no_rope_layer_interval", kMaxCount).value_or(4),
               "no_rope_layer_interval");
  for (std::size_t l = flags.empty() ? 0 : n_layers; l < n_layers; ++l) {
    flags.push_back((l + 1) % every != 0 ? 1 : 0);
  }
  if (flags.size() != n_layers) {
    refuse(fmt::format("'no_rope_layers' is not a list for {} layers", n_layers));
  }
  std::vector<bool> has_rope;
  for (const std::uint64_t flag : flags) has_rope.push_back(flag != 0);
  return has_rope;
}

std::optional<NgramSpec> ngram_spec(const ModelConfig& config, std::uint32_t layer,
                                    std::size_t channels) {
  const auto table = formats::ngram_table(formats::text_keys(config), layer);
  if (!table) return std::nullopt;
  const JsonFields fields = spec_fields(config);
  NgramSpec spec{.sizes = table->sizes,
                 .multipliers = table->multipliers,
                 .rows = table->rows,
                 .channels = channels};
  const auto number = [&](const char* key) {
    return required(fields.optional_number(key, kMaxCount).value_or(0), key);
  };
  spec.parts = number("split_ngram_parts");
  spec.kernel = of_heads(number("ple_conv_kernel_size"), "ple_conv_kernel_size");
  const std::uint64_t inputs =
      fields.optional_number("ple_embed_dim", kMaxCount).value_or(config.hidden_size);
  spec.width = inputs / spec.sizes.size();
  if (inputs % spec.sizes.size() != 0 || spec.width == 0 || spec.rows % spec.parts != 0) {
    refuse(
        fmt::format("embeddings of {} values for {} heads of n-grams, of {} rows in {} tensors, "
                    "make no table",
                    inputs, spec.sizes.size(), spec.rows, spec.parts));
  }
  const formats::Json* ends = fields.find("eos_token_id");
  if (ends != nullptr && ends->is_array() && !ends->empty()) ends = &ends->front();
  const auto token = ends == nullptr ? std::nullopt : formats::whole_number(*ends, kMaxCount);
  if (!token) refuse("'eos_token_id' is no token, which n-grams need");
  spec.separator = *token;
  return spec;
}

HyperSpec hyper_spec(const JsonFields& fields, const NormSpec& norm) {
  HyperSpec hyper{.norm_eps = norm.eps};
  hyper.streams = of_heads(fields.optional_number("hc_mult", 64).value_or(4), "hc_mult");
  hyper.rounds =
      required(fields.optional_number("hc_sinkhorn_iters", 1000).value_or(20), "hc_sinkhorn_iters");
  hyper.eps = static_cast<float>(fields.optional_real("hc_eps", 0, 1).value_or(1e-6));
  return hyper;
}

std::optional<JsonFields> rope_fields(const ModelConfig& config) {
  const JsonFields fields = spec_fields(config);
  return fields.optional_child(fields.find("rope_parameters") != nullptr ? "rope_parameters"
                                                                         : "rope_scaling");
}

}  // namespace ingot::inference
