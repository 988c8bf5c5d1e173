#include "formats/dialect/source_activations.h"

#include <fmt/format.h>

namespace ingot::formats {

SourceActivations::SourceActivations(const ModelConfig& config, const Dialect& dialect,
                                     const Json& description)
    : dialect_(&dialect) {
  if (dialect.said_forms != nullptr) forms_ = dialect.said_forms(config, description, nullptr);
  if (!forms_) forms_ = [](std::string_view) { return SaidForm(); };
}

Activations SourceActivations::of(std::string_view name, const Encoding& encoding) const {
  const bool has_inputs = encoding.stored.has(Part::kInputScale);
  const SaidForm said = forms_(name);
  if (said.activations && said.scheme == encoding.scheme) return *said.activations;
  if (said.activations && !said.scheme) {
    const bool is_possible = said.activations != Activations::kStatic || has_inputs;
    if (is_possible && find_storage(*dialect_, encoding.scheme, said.activations) != nullptr)
      return *said.activations;
  }
  if (has_inputs) return Activations::kStatic;
  const StorageRow* row = find_storage(*dialect_, encoding.scheme);
  if (row != nullptr) return row->activations;
  // Codes of 4 bits in a dialect that does not write them are there for their size: DeepSeek-V4's
  // FP4 experts have no activations in FP4.
  const CodeKind code = scheme_facts(encoding.scheme).code;
  return code == CodeKind::kE2m1 ? Activations::kWeightOnly : Activations::kDynamic;
}

std::string SourceActivations::text(std::string_view name, const Encoding& encoding) const {
  const Activations activations = of(name, encoding);
  if (activations == Activations::kWeightOnly) return std::string(activations_name(activations));
  const SaidForm form = forms_(name);
  if (form.numbers && form.scheme == encoding.scheme)
    if (std::string said = form.numbers(); !said.empty()) return said;
  // Where nothing else is said they become numbers of the weights' kind.
  const CodeKind code = scheme_facts(encoding.scheme).code;
  const bool is_integer = code == CodeKind::kInt8 || code == CodeKind::kInt4;
  return fmt::format("{} in {} bits of type {}", activations_name(activations),
                     scheme_facts(encoding.scheme).code_bits, is_integer ? "int" : "float");
}

}  // namespace ingot::formats
