#include "formats/family/family_table.h"
#include "formats/family/mla_rules.h"
#include "formats/family/reference_configs.h"

namespace ingot::formats {
namespace {

constexpr std::array<std::string_view, 1> kModelTypes = {"deepseek_v3"};

}  // namespace

// Source of the config: docs/formats.md, "Families"; V3, R1 and V3.1 are alike but for `scale_fmt`.
const Family kDeepseekV3 = {.name = "deepseek_v3",
                            .summary = "DeepSeek V3, R1, V3.1: MLA, sigmoid MoE, one MTP layer",
                            .model_types = kModelTypes,
                            .architecture = "DeepseekV3ForCausalLM",
                            .rules = kDeepseekV3Rules,
                            .reference_config = kDeepseekV3Config};

}  // namespace ingot::formats
