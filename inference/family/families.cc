#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <numbers>
#include <string>

#include <fmt/format.h>

#include "formats/base/error.h"
#include "formats/config/nested_config.h"
#include "formats/json/json.h"
#include "formats/json/json_fields.h"
#include "formats/records/manifest.h"
#include "inference/family/model_family.h"

// What each family computes: a function from its config.json, and a row behind them. What they
// share comes first, rope last.

namespace ingot::inference {

using formats::JsonFields;
using formats::ModelConfig;

namespace {

constexpr std::uint64_t kMaxCount = std::uint64_t{1} << 20;

[[noreturn]] void refuse(ErrorCode code, const std::string& message) {
  throw Error(code, message).in_file("config.json");
}

[[noreturn]] void refuse(const std::string& message) {
  refuse(ErrorCode::kCorrupt, message);
}

std::size_t required(std::uint64_t value, std::string_view key) {
  if (value == 0) refuse(fmt::format("'{}' is missing or 0", key));
  return static_cast<std::size_t>(value);
}

// Numbers of heads and widths of one: products of two must not wrap around, and tables of a width
// are made before any tensor could contradict it.
std::size_t of_heads(std::uint64_t value, std::string_view key) {
  constexpr std::uint64_t kMost = std::uint64_t{1} << 16;
  if (value > kMost) refuse(fmt::format("'{}' is {}, at most {} is plausible", key, value, kMost));
  return required(value, key);
}

RouterSpec router_spec(const ModelConfig& config, const JsonFields& fields) {
  RouterSpec router;
  router.experts = required(config.n_routed_experts, "n_routed_experts");
  router.topk = required(config.num_experts_per_tok, "num_experts_per_tok");
  router.groups =
      std::max<std::size_t>(fields.optional_number("n_group", kMaxCount).value_or(1), 1);
  router.topk_groups =
      std::max<std::size_t>(fields.optional_number("topk_group", kMaxCount).value_or(1), 1);
  if (router.topk > router.experts) {
    refuse(fmt::format("'num_experts_per_tok' is {}, but there are {} experts", router.topk,
                       router.experts));
  }
  if (router.experts % router.groups != 0 || router.topk_groups > router.groups ||
      router.topk_groups * (router.experts / router.groups) < router.topk) {
    refuse(fmt::format("{} experts in {} groups, of which {} are kept, cannot give {} per token",
                       router.experts, router.groups, router.topk_groups, router.topk));
  }
  return router;
}

// Layers with an indexer of their own: `indexer_types`, or the pair that stands for it.
std::vector<bool> own_indexers(const JsonFields& fields, std::size_t n_layers) {
  std::vector<bool> own(n_layers, true);
  if (const formats::Json* types = fields.optional_array("indexer_types")) {
    if (types->size() < n_layers) {
      refuse(fmt::format("'indexer_types' is not a list for {} layers", n_layers));
    }
    for (std::size_t i = 0; i < n_layers; ++i) {
      const formats::Json& entry = (*types)[i];
      const std::string type = entry.is_string() ? entry.get<std::string>() : std::string();
      own[i] = type == "full";
      if (!own[i] && type != "shared") {
        refuse(
            fmt::format("'indexer_types' has an entry for layer {} that is neither full nor "
                        "shared",
                        i));
      }
    }
  } else if (const std::size_t every =
                 fields.optional_number("index_topk_freq", kMaxCount).value_or(1);
             every > 1) {
    const std::size_t offset =
        fields.optional_number("index_skip_topk_offset", kMaxCount).value_or(2);
    for (std::size_t i = 0; i < n_layers; ++i) {
      own[i] = (i + 1 > offset ? i + 1 - offset : 0) % every == 0;
    }
  }
  if (!own.empty() && !own[0]) refuse("the first layer shares an indexer, but none is before it");
  return own;
}

// Keys of config.json that only the forward pass needs.
JsonFields spec_fields(const ModelConfig& config) {
  return {formats::text_keys(config), "config.json"};
}

// The value may be missing.
void require_text(const JsonFields& fields, const char* key, std::string_view only) {
  const std::string value = fields.text(key, only);
  if (value == only) return;
  refuse(ErrorCode::kUnsupported,
         fmt::format("'{}' is '{}'; the forward pass knows '{}' alone", key, value, only));
}

float routed_scale(const JsonFields& fields) {
  return static_cast<float>(fields.optional_real("routed_scaling_factor", -1e9, 1e9).value_or(1.0));
}

// What every family has: widths, layers, norms, router sizes.
ModelSpec decoder_spec(const ModelConfig& config) {
  const JsonFields fields = spec_fields(config);
  if (!config.by_layer.empty()) {
    refuse(ErrorCode::kUnsupported,
           fmt::format("'{}' is not the same in all layers; the forward pass has one",
                       config.by_layer.begin()->first));
  }
  require_text(fields, "hidden_act", "silu");
  ModelSpec spec;
  spec.vocab = spec.stored_vocab = required(config.vocab_size, "vocab_size");
  spec.hidden = required(config.hidden_size, "hidden_size");
  spec.layers = required(config.num_hidden_layers, "num_hidden_layers");
  spec.mtp_layers = static_cast<std::size_t>(config.num_nextn_predict_layers);
  spec.dense_intermediate = static_cast<std::size_t>(config.intermediate_size);
  spec.moe_intermediate = static_cast<std::size_t>(config.moe_intermediate_size);
  spec.shared_intermediate =
      static_cast<std::size_t>(config.n_shared_experts) * spec.moe_intermediate;
  spec.max_positions = static_cast<std::size_t>(config.max_position_embeddings);
  if (!(config.rms_norm_eps > 0) || config.rms_norm_eps > 1) {
    refuse("'rms_norm_eps' is missing or not between 0 and 1");
  }
  spec.norm_eps = static_cast<float>(config.rms_norm_eps);
  spec.tied_head = config.tie_word_embeddings;
  spec.is_moe = config.layer_is_moe;
  spec.is_moe.resize(spec.layers, false);
  // Layers for multi-token prediction are like the last kind of layer: with experts, if there are
  // any.
  spec.is_moe.resize(spec.layers + spec.mtp_layers, config.n_routed_experts > 0);
  if (std::find(spec.is_moe.begin(), spec.is_moe.end(), true) != spec.is_moe.end()) {
    spec.router = router_spec(config, fields);
    required(config.moe_intermediate_size, "moe_intermediate_size");
  }
  if (config.attention_bias) {
    refuse(ErrorCode::kUnsupported, "'attention_bias' is true; the forward pass has none");
  }
  return spec;
}

// Interleaved unless `rope_interleave` says otherwise.
void add_latent_attention(const ModelConfig& config, ModelSpec& spec) {
  MlaSpec mla;
  mla.heads = of_heads(config.num_attention_heads, "num_attention_heads");
  mla.q_lora = static_cast<std::size_t>(config.q_lora_rank);
  mla.kv_lora = required(config.kv_lora_rank, "kv_lora_rank");
  mla.nope = of_heads(config.qk_nope_head_dim, "qk_nope_head_dim");
  mla.rope_dim = of_heads(config.qk_rope_head_dim, "qk_rope_head_dim");
  mla.v = of_heads(config.v_head_dim, "v_head_dim");
  spec.mla = mla;
  spec.rope =
      rope_spec(config.rope, mla.rope_dim, spec_fields(config).boolean("rope_interleave", true));
  spec.softmax_scale = static_cast<float>(yarn_softmax_factor(config.rope) /
                                          std::sqrt(static_cast<double>(mla.nope + mla.rope_dim)));
}

// `interleaved` is its rope layout where the config does not say.
void add_indexer(const ModelConfig& config, bool interleaved, ModelSpec& spec) {
  const JsonFields fields = spec_fields(config);
  IndexerSpec indexer;
  indexer.heads = of_heads(config.index_n_heads, "index_n_heads");
  indexer.head_dim = of_heads(config.index_head_dim, "index_head_dim");
  indexer.topk = required(config.index_topk, "index_topk");
  if (indexer.head_dim < spec.rope.dim) {
    refuse(fmt::format("'index_head_dim' is {}, less than the {} values that are rotated",
                       indexer.head_dim, spec.rope.dim));
  }
  if (spec.mla->q_lora == 0) refuse("an indexer needs 'q_lora_rank'");
  indexer.rope = spec.rope;
  indexer.rope.interleaved = fields.boolean("indexer_rope_interleave", interleaved);
  indexer.own = own_indexers(fields, spec.layers);
  indexer.own.resize(spec.layers + spec.mtp_layers, true);
  indexer.power_of_two_keys = config.quantization && config.quantization->scale_fmt == "ue8m0";
  spec.indexer = std::move(indexer);
}

// The sigmoid gate of DeepSeek-V3: selection by score + correction bias, groups by their two best,
// weights normalized and scaled.
void set_sigmoid_router(const ModelConfig& config, ModelSpec& spec) {
  if (!spec.router) return;
  const JsonFields fields = spec_fields(config);
  require_text(fields, "scoring_func", "sigmoid");
  require_text(fields, "topk_method", "noaux_tc");
  spec.router->score = GateScore::kSigmoid;
  spec.router->correction_bias = true;
  spec.router->normalize = fields.boolean("norm_topk_prob", true);
  spec.router->scale = routed_scale(fields);
}

// DeepSeek-V2: softmax gate without correction bias, groups by their best expert, and queries
// without low rank in the Lite model.
ModelSpec deepseek_v2(const ModelConfig& config) {
  ModelSpec spec = decoder_spec(config);
  add_latent_attention(config, spec);
  if (!spec.router) return spec;
  const JsonFields fields = spec_fields(config);
  require_text(fields, "scoring_func", "softmax");
  const std::string method = fields.text("topk_method", "greedy");
  if (method == "greedy") {
    spec.router->groups = 1;
    spec.router->topk_groups = 1;
  } else if (method != "group_limited_greedy") {
    refuse(ErrorCode::kUnsupported,
           fmt::format("'topk_method' is '{}'; this family knows greedy and group_limited_greedy",
                       method));
  }
  spec.router->score = GateScore::kSoftmax;
  // Its code either normalizes or scales, never both.
  spec.router->normalize = fields.boolean("norm_topk_prob", false) && spec.router->topk > 1;
  spec.router->scale = spec.router->normalize ? 1.0F : routed_scale(fields);
  return spec;
}

// DeepSeek-V3, R1 and V3.1; Kimi-K2 is the same model with other numbers.
ModelSpec deepseek_v3(const ModelConfig& config) {
  ModelSpec spec = decoder_spec(config);
  add_latent_attention(config, spec);
  set_sigmoid_router(config, spec);
  return spec;
}

// DeepSeek-V3.2: V3 with sparse attention. Its indexer rotates half-split pairs although latent
// attention rotates interleaved ones, and its reference code scores with FP8 keys after a Hadamard
// transform.
ModelSpec deepseek_v32(const ModelConfig& config) {
  ModelSpec spec = deepseek_v3(config);
  add_indexer(config, /*interleaved=*/false, spec);
  if (!std::has_single_bit(spec.indexer->head_dim)) {
    refuse(ErrorCode::kUnsupported,
           "'index_head_dim' is no power of two, as the Hadamard transform needs");
  }
  spec.indexer->hadamard_fp8 = true;
  return spec;
}

// GLM-5: DeepSeek-V3.2's layers with plain rope, interleaved in the indexer too. The norms of the
// latents keep 1e-6 whatever rms_norm_eps says, as transformers has it.
ModelSpec glm_moe_dsa(const ModelConfig& config) {
  ModelSpec spec = deepseek_v3(config);
  add_indexer(config, /*interleaved=*/true, spec);
  return spec;
}

// Qwen3-MoE: grouped-query attention with norms on queries and keys, half-split rope over the whole
// head, a softmax gate over all experts whose chosen weights are normalized, no shared experts.
ModelSpec qwen3_moe(const ModelConfig& config) {
  ModelSpec spec = decoder_spec(config);
  const JsonFields fields = spec_fields(config);
  if (fields.boolean("use_sliding_window", false)) {
    refuse(ErrorCode::kUnsupported, "'use_sliding_window' is true; only full attention is known");
  }
  GqaSpec gqa;
  gqa.heads = static_cast<std::size_t>(config.num_attention_heads);
  gqa.kv_heads = static_cast<std::size_t>(config.num_key_value_heads);
  gqa.head_dim = static_cast<std::size_t>(config.head_dim);
  constexpr std::size_t kMost = std::size_t{1} << 16;  // so that no product wraps around
  if (gqa.heads == 0 || gqa.kv_heads == 0 || gqa.head_dim == 0 || gqa.heads > kMost ||
      gqa.head_dim > kMost || gqa.heads % gqa.kv_heads != 0) {
    refuse(ErrorCode::kCorrupt, fmt::format("{} heads of {} over {} key heads make no attention",
                                            gqa.heads, gqa.head_dim, gqa.kv_heads));
  }
  spec.gqa = gqa;
  spec.rope = rope_spec(config.rope, gqa.head_dim, /*interleaved=*/false);
  spec.softmax_scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(gqa.head_dim)));
  if (spec.router) {
    spec.router->groups = 1;
    spec.router->topk_groups = 1;
    spec.router->score = GateScore::kSoftmax;
    spec.router->normalize = fields.boolean("norm_topk_prob", false);
  }
  return spec;
}

constexpr std::array kFamilies = {
    ModelFamily{"deepseek_v2", deepseek_v2},   ModelFamily{"deepseek_v3", deepseek_v3},
    ModelFamily{"deepseek_v32", deepseek_v32}, ModelFamily{"kimi_k2", deepseek_v3},
    ModelFamily{"glm_moe_dsa", glm_moe_dsa},   ModelFamily{"qwen3_moe", qwen3_moe},
};

}  // namespace

std::span<const ModelFamily> model_families() {
  return kFamilies;
}

ModelSpec model_spec(const formats::Family& family, const ModelConfig& config) {
  std::string known;
  for (const ModelFamily& row : kFamilies) {
    if (row.name == family.name) {
      ModelSpec spec = row.spec(config);
      spec.family = row.name;
      return spec;
    }
    known += (known.empty() ? "" : ", ") + std::string(row.name);
  }
  refuse(ErrorCode::kUnsupported,
         fmt::format("no forward pass for family {} (there is one for {})", family.name, known));
}

ModelSpec model_spec(const formats::Checkpoint& source) {
  ModelSpec spec = model_spec(source.family(), source.config());
  const formats::SlicingRecord* slicing = source.slicing();
  if (slicing == nullptr || slicing->rank->whole_config.is_null()) return spec;
  const ModelConfig whole =
      formats::parse_model_config(formats::json_text(slicing->rank->whole_config),
                                  fmt::format("{}: whole_config", formats::kManifestName));
  spec.vocab = std::min(spec.vocab, model_spec(source.family(), whole).vocab);
  return spec;
}

namespace {

bool is_yarn(const formats::RopeConfig& config) {
  if (config.type == "yarn") return true;
  if (config.type.empty() || config.type == "default") return false;
  refuse(ErrorCode::kUnsupported,
         fmt::format("rope scaling of type '{}'; the forward pass knows default and yarn",
                     config.type));
}

double yarn_factor(const formats::RopeConfig& config) {
  const double factor = config.factor.value_or(0);
  if (!(factor >= 1) || factor > 1e6) refuse("rope scaling yarn needs a 'factor' of at least 1");
  return factor;
}

// How much attention is sharpened for a context `factor` times as long.
double magnitude(double factor, double mscale) {
  return factor <= 1 ? 1.0 : 0.1 * mscale * std::log(factor) + 1.0;
}

// The pair whose wave turns `turns` times within the original context.
double pair_of_turns(double turns, double dim, double theta, double length) {
  return dim * std::log(length / (turns * 2 * std::numbers::pi)) / (2 * std::log(theta));
}

}  // namespace

double yarn_softmax_factor(const formats::RopeConfig& config) {
  const double all_dim = config.mscale_all_dim.value_or(0);
  if (!is_yarn(config) || all_dim == 0) return 1.0;
  const double g = magnitude(yarn_factor(config), all_dim);
  return g * g;
}

RopeSpec rope_spec(const formats::RopeConfig& config, std::size_t dim, bool interleaved) {
  if (dim == 0 || dim % 2 != 0) refuse(fmt::format("a rotated slice of {} values", dim));
  if (!(config.theta > 1) || !std::isfinite(config.theta)) refuse("'rope_theta' is not above 1");
  RopeSpec spec{.dim = dim, .interleaved = interleaved, .freqs = {}};
  const std::size_t n_pairs = dim / 2;
  const auto width = static_cast<float>(dim);
  spec.freqs.resize(n_pairs);
  std::vector<float> periods(n_pairs);
  for (std::size_t i = 0; i < n_pairs; ++i) {
    const float exponent = static_cast<float>(2 * i) / width;
    periods[i] = static_cast<float>(std::pow(config.theta, static_cast<double>(exponent)));
    spec.freqs[i] = 1.0F / periods[i];
  }
  if (!is_yarn(config)) return spec;

  const double factor = yarn_factor(config);
  const auto length = static_cast<double>(config.original_max_position_embeddings.value_or(0));
  if (length < 1) refuse("rope scaling yarn needs 'original_max_position_embeddings'");
  const auto d = static_cast<double>(dim);
  const double fast = config.beta_fast.value_or(32), slow = config.beta_slow.value_or(1);
  if (!(fast > 0) || !(slow > 0)) refuse("'beta_fast' and 'beta_slow' are not above 0");
  const double low = std::max(std::floor(pair_of_turns(fast, d, config.theta, length)), 0.0);
  double high = std::min(std::ceil(pair_of_turns(slow, d, config.theta, length)), d - 1);
  if (low == high) high += 0.001;
  for (std::size_t i = 0; i < n_pairs; ++i) {
    const float position = static_cast<float>(i) - static_cast<float>(low);
    const float ramp = std::clamp(position / static_cast<float>(high - low), 0.0F, 1.0F);
    const float kept = 1.0F - ramp;
    const float stretched = 1.0F / (static_cast<float>(factor) * periods[i]);
    spec.freqs[i] = stretched * (1.0F - kept) + spec.freqs[i] * kept;
  }
  // Without mscale the whole effect is on cos and sin; with mscale_all_dim it is in the softmax
  // scale, and what is left here is the quotient.
  const bool has_mscales = config.mscale.value_or(0) != 0 && config.mscale_all_dim.value_or(0) != 0;
  spec.magnitude = static_cast<float>(has_mscales ? magnitude(factor, *config.mscale) /
                                                        magnitude(factor, *config.mscale_all_dim)
                                                  : magnitude(factor, 1.0));
  return spec;
}

}  // namespace ingot::inference
