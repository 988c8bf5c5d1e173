#include <string>

#include "formats/base/error.h"
#include "formats/dialect/dialect_table.h"
#include "formats/family/family.h"
#include "formats/json/json.h"

// MXFP4 as gpt-oss is released: only stacked experts, the codes of a block adjacent.

namespace ingot::formats {
namespace {

using enum DType;
using enum PartShape;

constexpr std::array kMxfp4StackParts = {PartRow{Part::kWeight, ".blocks", kU8, kBlocks},
                                         scale_part(kU8, kGrid, ".scales")};
constexpr std::array kMxfp4Storage = {with_experts(
    ExpertForm::kStacked, {SchemeId::kMxfp4, Activations::kWeightOnly, "mxfp4", kMxfp4StackParts})};

constexpr const char* kNotConverted = "modules_to_not_convert";

/// `model.layers.*.mlp.router` for that of any layer.
std::string of_all_layers(std::string_view module, std::optional<std::uint32_t> layer) {
  std::string name(module);
  if (!layer) return name;
  const std::string number = "." + std::to_string(*layer) + ".";
  if (const std::size_t at = name.find(number); at != std::string::npos)
    name.replace(at, number.size(), ".*.");
  return name;
}

Json mxfp4_block(const WrittenModel& model) {
  if (!any_quantized(model.tensors)) return nullptr;
  for (const WrittenTensor& tensor : model.tensors) {
    if (!scheme_facts(tensor.scheme).quantized || tensor.rank > 2) continue;
    throw Error(ErrorCode::kUnsupported,
                "is no stack of experts, and dialect mxfp4 has nothing else (choose --dialect "
                "compressed-tensors, or rule it out with --rule 'PATTERN=keep')")
        .in_tensor(tensor.name);
  }
  if (const Json* kept = source_block(model.source, kMxfp4Dialect)) return *kept;
  std::vector<std::string> plain;
  for (const WrittenTensor& tensor : model.tensors) {
    const bool is_linear = tensor.rank == 2 && module_name(tensor.name) != tensor.name;
    if (is_linear && !scheme_facts(tensor.scheme).quantized)
      plain.push_back(of_all_layers(module_name(tensor.name), tensor.layer));
  }
  Json block = {{"quant_method", "mxfp4"}};
  merge_into_list(block, kNotConverted, plain);
  return block;
}

ConfigForms mxfp4_forms(const ModelConfig&, const Json&, std::vector<std::string>*) {
  return [](std::string_view weight) -> ConfigForm {
    if (weight.find(".experts") == std::string_view::npos)
      return {.scheme = SchemeId::kBf16, .because = "not an expert"};
    return {.scheme = SchemeId::kMxfp4, .because = "quant_method mxfp4"};
  };
}

}  // namespace

const Dialect kMxfp4Dialect = {.name = "mxfp4",
                               .summary =
                                   "quant_method mxfp4 (gpt-oss): stacks X_blocks with X_scales, "
                                   "exponents of two",
                               .methods = {"mxfp4"},
                               .storage = kMxfp4Storage,
                               .quantization_config = mxfp4_block,
                               .config_forms = mxfp4_forms};

}  // namespace ingot::formats
