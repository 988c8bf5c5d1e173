#pragma once

#include "inference/family/model_family.h"

// The rows that families.cc lists, one per file of this folder.

namespace ingot::inference {

extern const ModelFamily kDeepseekV2;
extern const ModelFamily kDeepseekV3;
extern const ModelFamily kDeepseekV32;
extern const ModelFamily kKimiK2;
extern const ModelFamily kGlmMoeDsa;
extern const ModelFamily kQwen3Moe;

}  // namespace ingot::inference
