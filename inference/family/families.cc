#include "formats/family/families.h"

#include <algorithm>
#include <array>
#include <string>

#include "formats/json/json.h"
#include "formats/records/manifest.h"
#include "inference/family/forward_table.h"
#include "inference/family/spec_parts.h"

// Families whose files cannot say all of their forward pass (forward_table.h): a function from
// config.json in a file of its own, and a row here.

namespace ingot::inference {

using formats::ModelConfig;

namespace {

constexpr std::array kFamilies = {
    ModelFamily{"deepseek_v4", deepseek_v4},
};

}  // namespace

std::span<const ModelFamily> model_families() {
  return kFamilies;
}

ModelSpec model_spec(const formats::Family& family, const ModelConfig& config) {
  // A file may have the name of a family of the program, and say nothing of the forward pass.
  const formats::Family* own = family.forward ? &family : formats::find_family(family.name);
  const auto row = std::ranges::find(kFamilies, family.name, &ModelFamily::name);
  ModelSpec spec;
  if (own != nullptr && own->forward != nullptr) {
    spec = spec_of_file(*own, config);
  } else if (row != kFamilies.end()) {
    spec = row->spec(config);
  } else {
    std::string known;
    for (const formats::FamilyEntry& entry : formats::family_entries()) {
      const bool has_one =
          std::ranges::find(kFamilies, entry.name, &ModelFamily::name) != kFamilies.end() ||
          formats::find_family(entry.name)->forward != nullptr;
      if (has_one) known += (known.empty() ? "" : ", ") + std::string(entry.name);
    }
    refuse(ErrorCode::kUnsupported,
           fmt::format("no forward pass for family {} (there is one for {})", family.name, known));
  }
  spec.family = own != nullptr ? own->name : row->name;
  return spec;
}

ModelSpec model_spec(const formats::Checkpoint& source) {
  ModelSpec spec = model_spec(source.family(), source.config());
  const formats::SlicingRecord* slicing = source.slicing();
  if (slicing == nullptr || slicing->rank->whole_config.is_null()) return spec;
  const ModelConfig whole =
      formats::parse_model_config(formats::json_text(slicing->rank->whole_config),
                                  fmt::format("{}: whole_config", formats::kManifestName));
  spec.vocab = std::min(spec.vocab, model_spec(source.family(), whole).vocab);
  return spec;
}

}  // namespace ingot::inference
