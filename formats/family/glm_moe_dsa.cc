#include "formats/family/family_table.h"
#include "formats/family/mla_rules.h"
#include "formats/family/reference_configs.h"

namespace ingot::formats {
namespace {

constexpr std::array<std::string_view, 1> kModelTypes = {"glm_moe_dsa"};

// FP8 releases of GLM quantize the head of the multi-token prediction layer.
constexpr auto make_rules() {
  auto rules = concat_rules(kDeepseekV3Rules, kIndexerRules);
  for (TensorRule& rule : rules) rule.may_be_quantized = rule.role == Role::kMtpHead;
  return rules;
}

constexpr auto kRules = make_rules();

}  // namespace

// GLM-5. `rms_norm_eps` and the rope base were not seen published and are the defaults that
// transformers gives this family; `index_head_dim` and `index_topk` were not either and are those
// of DeepSeek-V3.2. The released weights are BF16.
const Family kGlmMoeDsa = {.name = "glm_moe_dsa",
                           .summary = "GLM-5: V3.2's shape, layers may share an indexer",
                           .model_types = kModelTypes,
                           .architecture = "GlmMoeDsaForCausalLM",
                           .rules = kRules,
                           .reference_config = kGlmMoeDsaConfig};

}  // namespace ingot::formats
