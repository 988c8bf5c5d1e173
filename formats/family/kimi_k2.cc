#include "formats/family/family_table.h"
#include "formats/family/mla_rules.h"
#include "formats/family/reference_configs.h"

namespace ingot::formats {
namespace {

constexpr std::array<std::string_view, 1> kModelTypes = {"kimi_k2"};

}  // namespace

// The tensors of DeepSeek V3 in other sizes. Not confirmed by a published file: `rms_norm_eps` and
// the quantization block (those of V3), and the YaRN numbers (the factor is max_position_embeddings
// / original_max_position_embeddings).
const Family kKimiK2 = {
    .name = "kimi_k2",
    .summary = "Kimi K2: DeepSeek V3 with 384 experts in one group, no MTP layer",
    .model_types = kModelTypes,
    .architecture = "DeepseekV3ForCausalLM",
    .rules = kDeepseekV3Rules,
    .reference_config = kKimiK2Config};

}  // namespace ingot::formats
