#include <array>

#include "formats/family/family_table.h"

namespace ingot::formats {
namespace {

constexpr std::array kFamilies = {&kDeepseekV3, &kDeepseekV32, &kDeepseekV2, &kKimiK2,
                                  &kQwen3Moe,   &kGlmMoeDsa,   &kDeepseekV4, &kGeneric};

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
  for (const Family* family : kFamilies) {
    for (const std::string_view type : family->model_types) {
      if (type == config.model_type) return family;
    }
  }
  return nullptr;
}

}  // namespace ingot::formats
