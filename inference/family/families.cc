#include <array>
#include <string>

#include <fmt/format.h>

#include "formats/base/error.h"
#include "inference/family/family_rows.h"

namespace ingot::inference {
namespace {

constexpr std::array kFamilies = {&kDeepseekV2, &kDeepseekV3, &kDeepseekV32,
                                  &kKimiK2,     &kGlmMoeDsa,  &kQwen3Moe};

}  // namespace

std::span<const ModelFamily* const> model_families() {
  return kFamilies;
}

ModelSpec model_spec(const formats::Family& family, const formats::ModelConfig& config) {
  std::string known;
  for (const ModelFamily* row : kFamilies) {
    if (row->name == family.name) {
      ModelSpec spec = row->spec(config);
      spec.family = row->name;
      return spec;
    }
    known += (known.empty() ? "" : ", ") + std::string(row->name);
  }
  throw Error(
      ErrorCode::kUnsupported,
      fmt::format("no forward pass for family {} (there is one for {})", family.name, known))
      .in_file("config.json");
}

}  // namespace ingot::inference
