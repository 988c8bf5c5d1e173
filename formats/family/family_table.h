#pragma once

#include "formats/family/family.h"

// The rows that families.cc lists, one per file of this folder.

namespace ingot::formats {

extern const Family kDeepseekV3;
extern const Family kDeepseekV32;
extern const Family kDeepseekV2;
extern const Family kKimiK2;
extern const Family kQwen3Moe;
extern const Family kQwen35Moe;
extern const Family kGlmMoeDsa;
extern const Family kLlama4;
extern const Family kGptOss;
extern const Family kDeepseekV4;
extern const Family kGeneric;

}  // namespace ingot::formats
