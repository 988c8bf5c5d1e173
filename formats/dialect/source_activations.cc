#include "formats/dialect/source_activations.h"

#include <fmt/format.h>

#include "formats/dialect/dialect_table.h"
#include "formats/dialect/other_tools.h"
#include "formats/json/json.h"

namespace ingot::formats {

SourceActivations::SourceActivations(const ModelConfig& config, const Dialect& dialect,
                                     const Json& description)
    : config_(&config), dialect_(&dialect) {
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
    const StorageRow* algo = modelopt_->algo_of(module);
    if (algo != nullptr && algo->scheme == encoding.scheme) return algo->activations;
  }
  const bool has_inputs = encoding.stored.has(Part::kInputScale);
  if (const auto said = said_activations(*config_, module)) {
    const bool is_possible = *said != Activations::kStatic || has_inputs;
    if (is_possible && find_storage(*dialect_, encoding.scheme, said) != nullptr) return *said;
  }
  if (has_inputs) return Activations::kStatic;
  const StorageRow* row = find_storage(*dialect_, encoding.scheme);
  if (row != nullptr) return row->activations;
  // Codes of 4 bits in a dialect that does not write them are there for their size: DeepSeek-V4's
  // FP4 experts have no activations in FP4.
  const CodeKind code = scheme_facts(encoding.scheme).code;
  return code == CodeKind::kE2m1 ? Activations::kWeightOnly : Activations::kDynamic;
}

bool SourceActivations::leaves_inputs(std::string_view name, const Encoding& encoding) const {
  const StorageRow* algo = modelopt_ ? modelopt_->algo_of(module_name(name)) : nullptr;
  return algo != nullptr && algo->scheme == encoding.scheme &&
         algo->activations == Activations::kWeightOnly;
}

std::string SourceActivations::text(std::string_view name, const Encoding& encoding) const {
  const Activations activations = of(name, encoding);
  if (activations == Activations::kWeightOnly) return std::string(activations_name(activations));
  const std::string_view module = module_name(name);
  const ConfigGroup* group = groups_ ? groups_->stored_group(module) : nullptr;
  if (group != nullptr && group->scheme == encoding.scheme)
    if (std::string said = activations_text(*group); !said.empty()) return said;
  // Where nothing else is said they become numbers of the weights' kind.
  const CodeKind code = scheme_facts(encoding.scheme).code;
  const bool is_float = code == CodeKind::kE4m3 || code == CodeKind::kE2m1;
  return fmt::format("{} in {} bits of type {}", activations_name(activations),
                     scheme_facts(encoding.scheme).code_bits, is_float ? "float" : "int");
}

}  // namespace ingot::formats
