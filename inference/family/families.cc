#include "formats/family/families.h"

#include <algorithm>
#include <array>
#include <string>
#include <string_view>

#include "formats/family/family_yaml.h"
#include "formats/records/manifest.h"
#include "inference/family/forward_table.h"
#include "inference/family/spec_parts.h"

namespace ingot::inference {

using formats::ModelConfig;

namespace {

/// A part that no kind of layer here computes, of a family that was read from the source of
/// engines.
struct Missing {
  std::string_view family, part;
};
constexpr std::array kMissing = {
    Missing{"gigachat3_5",
            "gated norms behind blocks, of latents and at the end, and the factor of the delta "
            "net's norm (norm_type, layernorm_type, linear_sigmoid_gate_scale)"},
    Missing{"interns2_mobius", "mixtures that several layers share (num_blocks)"},
    Missing{"step5",
            "attention over blocks of tokens that an indexer of proxies chooses "
            "(sparse_config)"},
};

std::string missing_in(std::string_view family) {
  const auto found = std::ranges::find(kMissing, family, &Missing::family);
  return found == kMissing.end() ? std::string() : fmt::format(", which needs {}", found->part);
}

}  // namespace

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
           fmt::format("no forward pass for family {}{} (there is one for {})", family.name,
                       missing_in(family.name), known));
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
