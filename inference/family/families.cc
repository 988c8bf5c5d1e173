#include "formats/family/families.h"

#include <algorithm>
#include <string>

#include "formats/family/family_yaml.h"
#include "formats/records/manifest.h"
#include "inference/family/forward_table.h"
#include "inference/family/spec_parts.h"

namespace ingot::inference {

using formats::ModelConfig;

ModelSpec model_spec(const formats::Family& family, const ModelConfig& config) {
  // A file may have the name of a family of the program, and say nothing of the forward pass.
  const formats::Family* own = family.forward ? &family : formats::find_family(family.name);
  if (own == nullptr || own->forward == nullptr) {
    std::string known;
    for (const formats::FamilyEntry& entry : formats::family_entries()) {
      if (formats::find_family(entry.name)->forward != nullptr)
        known += (known.empty() ? "" : ", ") + std::string(entry.name);
    }
    refuse(ErrorCode::kUnsupported,
           fmt::format("no forward pass for family {} (there is one for {})", family.name, known));
  }
  ModelSpec spec = spec_of_file(*own, formats::config_of(*own, config));
  spec.family = own->name;
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
