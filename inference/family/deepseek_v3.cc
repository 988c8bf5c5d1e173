// DeepSeek-V3, R1 and V3.1; Kimi-K2 is the same model with other numbers.

#include "inference/family/decoder_spec.h"
#include "inference/family/family_rows.h"

namespace ingot::inference {
namespace {

ModelSpec spec_of(const formats::ModelConfig& config) {
  ModelSpec spec = decoder_spec(config);
  add_latent_attention(config, spec);
  set_sigmoid_router(config, spec);
  return spec;
}

}  // namespace

const ModelFamily kDeepseekV3 = {.name = "deepseek_v3", .spec = spec_of};
const ModelFamily kKimiK2 = {.name = "kimi_k2", .spec = spec_of};

}  // namespace ingot::inference
