#include "formats/family/families.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <string>

#include "formats/json/json.h"
#include "formats/records/manifest.h"
#include "inference/family/forward_table.h"
#include "inference/family/spec_parts.h"

// Families whose files cannot say all of their forward pass (forward_table.h): a function from
// config.json, here or in a file of its own, and a row behind them.

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

constexpr std::array kFamilies = {
    ModelFamily{"deepseek_v2", deepseek_v2},
    ModelFamily{"deepseek_v32", deepseek_v32},
    ModelFamily{"glm_moe_dsa", glm_moe_dsa},
    ModelFamily{"deepseek_v4", deepseek_v4},
    ModelFamily{"qwen3_next", qwen3_next},
    ModelFamily{"qwen3_5_moe", qwen3_5_moe},
    ModelFamily{"kimi_linear", kimi_linear},
    ModelFamily{"bailing_hybrid", bailing_hybrid},
    ModelFamily{"nemotron_h", nemotron_h},
    ModelFamily{"glm5_next", glm5_next},
    ModelFamily{"hunyuan_v1_moe", hunyuan_v1_moe},
    ModelFamily{"mistral_large4", mistral_large4},
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
  // A file may have the name of a family of the program, and say nothing of the forward pass.
  const formats::Family* own = family.forward ? &family : formats::find_family(family.name);
  const auto row = std::ranges::find(kFamilies, family.name, &ModelFamily::name);
  ModelSpec spec;
  if (own != nullptr && own->forward != nullptr) {
    spec = spec_of_file(*own, config);
  } else if (row != kFamilies.end()) {
    spec = row->spec(config);
  } else {
    std::string known;
    for (const formats::FamilyEntry& entry : formats::family_entries()) {
      const bool has_one =
          std::ranges::find(kFamilies, entry.name, &ModelFamily::name) != kFamilies.end() ||
          formats::find_family(entry.name)->forward != nullptr;
      if (has_one) known += (known.empty() ? "" : ", ") + std::string(entry.name);
    }
    refuse(ErrorCode::kUnsupported,
           fmt::format("no forward pass for family {} (there is one for {})", family.name, known));
  }
  spec.family = own != nullptr ? own->name : row->name;
  return spec;
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
