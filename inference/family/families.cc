#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <string>

#include "formats/json/json.h"
#include "formats/records/manifest.h"
#include "inference/family/spec_parts.h"

// The computation of each family: a function from its config.json, here or in a file of its own,
// and a row at the end.

namespace ingot::inference {

using formats::ModelConfig;

namespace {

// DeepSeek-V2: softmax gate without correction bias, groups by their best expert, and queries
// without low rank in the Lite model.
ModelSpec deepseek_v2(const ModelConfig& config) {
  Decoder model(config);
  const LatentSpec attention = latent_attention(config);
  if (!model.mixture) return model.with(attention);
  RouterSpec& router = model.mixture->router;
  require_text(model.fields, "scoring_func", "softmax");
  const std::string method = model.fields.text("topk_method", "greedy");
  if (method == "greedy") {
    router.groups = router.topk_groups = 1;
  } else if (method != "group_limited_greedy") {
    refuse(ErrorCode::kUnsupported,
           fmt::format("'topk_method' is '{}'; this family knows greedy and group_limited_greedy",
                       method));
  }
  router.score = GateScore::kSoftmax;
  // Its code either normalizes or scales, never both.
  router.normalize = model.fields.boolean("norm_topk_prob", false) && router.topk > 1;
  router.scale = router.normalize ? 1.0F : routed_scale(model.fields);
  return model.with(attention);
}

// DeepSeek-V3, R1 and V3.1; Kimi-K2 is the same model with other numbers.
ModelSpec deepseek_v3(const ModelConfig& config) {
  Decoder model(config);
  set_sigmoid_router(model);
  return model.with(latent_attention(config));
}

ModelSpec sparse_v3(const ModelConfig& config, const LatentSpec& latent,
                    const IndexerSpec& indexer) {
  Decoder model(config);
  set_sigmoid_router(model);
  return model.with([&](std::size_t l) { return with_indexer(config, latent, indexer, l); });
}

// DeepSeek-V3.2: V3 with sparse attention. Its indexer rotates half-split pairs although latent
// attention rotates interleaved ones, and its reference code scores with FP8 keys after a Hadamard
// transform.
ModelSpec deepseek_v32(const ModelConfig& config) {
  const LatentSpec latent = latent_attention(config);
  IndexerSpec indexer = lightning_indexer(config, latent, /*interleaved=*/false);
  if (!std::has_single_bit(indexer.head_dim)) {
    refuse(ErrorCode::kUnsupported,
           "'index_head_dim' is no power of two, as the Hadamard transform needs");
  }
  indexer.hadamard_fp8 = true;
  return sparse_v3(config, latent, indexer);
}

// GLM-5: DeepSeek-V3.2's layers with plain rope, interleaved in the indexer too. The norms of the
// latents keep 1e-6 whatever rms_norm_eps says, as transformers has it.
ModelSpec glm_moe_dsa(const ModelConfig& config) {
  const LatentSpec latent = latent_attention(config);
  return sparse_v3(config, latent, lightning_indexer(config, latent, /*interleaved=*/true));
}

// Qwen3-MoE: grouped-query attention with norms on queries and keys, half-split rope over the whole
// head, a softmax gate over all experts whose chosen weights are normalized, no shared experts.
ModelSpec qwen3_moe(const ModelConfig& config) {
  Decoder model(config);
  if (model.fields.boolean("use_sliding_window", false)) {
    refuse(ErrorCode::kUnsupported, "'use_sliding_window' is true; only full attention is known");
  }
  if (model.mixture) {
    RouterSpec& router = model.mixture->router;
    router.groups = router.topk_groups = 1;
    router.score = GateScore::kSoftmax;
    router.normalize = model.fields.boolean("norm_topk_prob", false);
  }
  return model.with(grouped_attention(config));
}

constexpr std::array kFamilies = {
    ModelFamily{"deepseek_v2", deepseek_v2},
    ModelFamily{"deepseek_v3", deepseek_v3},
    ModelFamily{"deepseek_v32", deepseek_v32},
    ModelFamily{"kimi_k2", deepseek_v3},
    ModelFamily{"glm_moe_dsa", glm_moe_dsa},
    ModelFamily{"qwen3_moe", qwen3_moe},
    ModelFamily{"deepseek_v4", deepseek_v4},
    ModelFamily{"qwen3_next", qwen3_next},
    ModelFamily{"qwen3_5_moe", qwen3_5_moe},
    ModelFamily{"kimi_linear", kimi_linear},
    ModelFamily{"bailing_hybrid", bailing_hybrid},
    ModelFamily{"nemotron_h", nemotron_h},
    ModelFamily{"glm5_next", glm5_next},
    ModelFamily{"glm4_moe", glm4_moe},
    ModelFamily{"glm4_moe_lite", deepseek_v3},
    ModelFamily{"solar_open", solar_open},
    ModelFamily{"dots1", dots1},
    ModelFamily{"ernie4_5_moe", ernie4_5_moe},
    ModelFamily{"hunyuan_v1_moe", hunyuan_v1_moe},
    ModelFamily{"minimax_m2", minimax_m2},
    ModelFamily{"ministral3", ministral3},
    ModelFamily{"mistral4", mistral4},
    ModelFamily{"mistral_large4", mistral_large4},
    ModelFamily{"axk1", axk1},
    ModelFamily{"gpt_oss", gpt_oss},
    ModelFamily{"mimo_v2_flash", mimo_v2_flash},
    ModelFamily{"llama4", llama4},
    ModelFamily{"step3p7", step3p7},
    ModelFamily{"minimax_m3_vl", minimax_m3_vl},
    ModelFamily{"longcat_flash", longcat_flash},
    ModelFamily{"inkling", inkling},
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

}  // namespace ingot::inference
