#include "formats/family/family_table.h"
#include "formats/family/mla_rules.h"
#include "formats/family/reference_configs.h"

namespace ingot::formats {
namespace {

constexpr std::array<std::string_view, 1> kModelTypes = {"deepseek_v32"};

/// V3.2 was released with its norms in F32.
constexpr auto make_rules() {
  auto rules = concat_rules(kDeepseekV3Rules, kIndexerRules);
  for (TensorRule& rule : rules) {
    if (is_norm(rule.role)) rule.synth_dtype = DType::kF32;
  }
  return rules;
}

constexpr auto kRules = make_rules();
}  // namespace

const Family kDeepseekV32 = {
    .name = "deepseek_v32",
    .summary = "DeepSeek V3.2: V3 with the sparse-attention indexer, norms in F32",
    .model_types = kModelTypes,
    .architecture = "DeepseekV32ForCausalLM",
    .rules = kRules,
    .reference_config = kDeepseekV32Config};

}  // namespace ingot::formats
