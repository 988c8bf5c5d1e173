#include "formats/family/family_table.h"
#include "formats/family/mla_rules.h"
#include "formats/family/reference_configs.h"

namespace ingot::formats {
namespace {

constexpr std::array<std::string_view, 1> kModelTypes = {"deepseek_v2"};

// Softmax routing without a correction bias, no MTP; V2-Lite has no low-rank queries either, which
// the config says.
constexpr auto kRules = concat_rules(kModelRules, kLayerNormRules, kMlaRules, kRotaryRules,
                                     kDenseMlpRules, kExpertRules, kSharedExpertRules);

}  // namespace

// The config is that of V2-Lite.
const Family kDeepseekV2 = {
    .name = "deepseek_v2",
    .summary = "DeepSeek V2, V2-Lite: MLA with or without low-rank queries, softmax MoE",
    .model_types = kModelTypes,
    .architecture = "DeepseekV2ForCausalLM",
    .rules = kRules,
    .reference_config = kDeepseekV2Config};

}  // namespace ingot::formats
