#include "formats/dialect/source_activations.h"

#include "formats/dialect/dialect_table.h"

namespace ingot::formats {

SourceActivations::SourceActivations(const ModelConfig& config, const Dialect& dialect,
                                     const Json& description)
    : dialect_(&dialect) {
  const Json* block = source_block(config, dialect);
  if (&dialect == &kCompressedTensorsDialect && block != nullptr) groups_.emplace(*block);
  if (&dialect != &kModeloptDialect) return;
  if (description.is_object()) {
    modelopt_.emplace(description);
  } else if (block != nullptr) {
    modelopt_.emplace(*block);
  }
}

Activations SourceActivations::of(std::string_view name, const Encoding& encoding) const {
  const std::string_view module = module_name(name);
  if (groups_) {
    const auto group = groups_->group_of(module);
    if (group && group->scheme == encoding.scheme) return group->activations;
  }
  if (modelopt_) {
    const ModeloptAlgo* algo = modelopt_->algo_of(module);
    if (algo != nullptr && algo->scheme == encoding.scheme) return algo->activations;
  }
  if (encoding.stored.has(Part::kInputScale)) return Activations::kStatic;
  const SchemeSpelling* spelling = find_spelling(*dialect_, encoding.scheme);
  return spelling != nullptr ? spelling->activations : Activations::kDynamic;
}

}  // namespace ingot::formats
