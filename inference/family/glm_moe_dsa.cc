// GLM-5: DeepSeek-V3.2's layers with plain rope, interleaved in the indexer too. The norms of the
// latents keep 1e-6 whatever rms_norm_eps says, as transformers has it.

#include "inference/family/decoder_spec.h"
#include "inference/family/family_rows.h"

namespace ingot::inference {
namespace {

ModelSpec spec_of(const formats::ModelConfig& config) {
  ModelSpec spec = decoder_spec(config);
  add_latent_attention(config, spec);
  add_indexer(config, /*interleaved=*/true, spec);
  set_sigmoid_router(config, spec);
  return spec;
}

}  // namespace

const ModelFamily kGlmMoeDsa = {.name = "glm_moe_dsa", .spec = spec_of};

}  // namespace ingot::inference
