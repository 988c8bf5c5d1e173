#include <algorithm>
#include <array>
#include <string>

#include "formats/family/family_table.h"

namespace ingot::formats {
namespace {

constexpr std::array kFamilies = {&kDeepseekV3, &kDeepseekV32, &kDeepseekV2, &kKimiK2,
                                  &kQwen3Moe,   &kQwen35Moe,   &kLlama4,     &kGptOss,
                                  &kGlmMoeDsa,  &kDeepseekV4,  &kGeneric};

}  // namespace

std::span<const Family* const> families() {
  return kFamilies;
}

const Family* find_family(std::string_view name) {
  for (const Family* family : kFamilies) {
    if (family->name == name) return family;
  }
  return nullptr;
}

const Family* family_of(const ModelConfig& config) {
  for (const std::string& type : {config.model_type, config.text.model_type}) {
    for (const Family* family : kFamilies) {
      if (std::ranges::find(family->model_types, type) != family->model_types.end()) return family;
    }
  }
  return nullptr;
}

}  // namespace ingot::formats
