#include <algorithm>

#include <fmt/format.h>

#include "check/rules/loader_rule_bodies.h"

// What a dialect can hold and what it calls the parts: its spellings, read as a test.

namespace ingot::formats::rule_bodies {
namespace {

// DeepSeek's own names (`X.scale`) are spelled in no row, and read by its own loader.
bool has_native_names(const Checkpoint& checkpoint, const LogicalTensor& tensor) {
  const StoredTensor* scale = part_of(checkpoint, tensor, Part::kScale);
  return scale != nullptr && scale->name.ends_with(".scale");
}

bool has_config(const Checkpoint& checkpoint) {
  return checkpoint.config().quantization || checkpoint.description().is_object();
}

// Without config or description the dialect is a guess, which quantized.config-present reports.
bool is_judged(const Checkpoint& checkpoint, const LogicalTensor& tensor) {
  return is_quantized(tensor) && has_config(checkpoint) && !has_native_names(checkpoint, tensor);
}

bool is_of_ascend(const LogicalTensor& tensor) {
  return tensor.encoding.stored.has(Part::kOffset) || tensor.encoding.stored.has(Part::kDeqScale);
}

/// The spelling of a part of this tensor; `wanted` receives the names that it could have.
const PartSpelling* spelling_of(const Dialect& dialect, const LogicalTensor& tensor, Part part,
                                const std::string& stored, std::string& wanted) {
  for (const SchemeSpelling& row : dialect.spellings) {
    if (row.scheme != tensor.encoding.scheme) continue;
    for (const PartSpelling& spelling : row.parts) {
      if (spelling.part != part) continue;
      wanted = part_name(spelling, tensor.name);
      if (wanted == stored) return &spelling;
    }
  }
  return nullptr;
}

}  // namespace

void quantized_config_present(const Checkpoint& checkpoint, const RuleOptions&,
                              const Report& report) {
  if (!checkpoint.config().raw.is_object() || has_config(checkpoint)) return;
  for (const LogicalTensor& tensor : checkpoint.tensors()) {
    // FP8 has a row of its own, and so has Ascend's description.
    if (!is_quantized(tensor) || is_of_ascend(tensor)) continue;
    const StoredTensor& codes = codes_of(checkpoint, tensor);
    if (codes.dtype == DType::kF8E4M3 || has_native_names(checkpoint, tensor)) continue;
    report(in_config(ErrorCode::kNotFound,
                     fmt::format("has no quantization_config, but '{}' is {} (copy it from the "
                                 "release)",
                                 tensor.name, scheme_facts(tensor.encoding.scheme).name)));
    return;
  }
}

void quantized_config_without_weights(const Checkpoint& checkpoint, const RuleOptions&,
                                      const Report& report) {
  const auto& quantization = checkpoint.config().quantization;
  if (checkpoint.tensors().empty() || !quantization || quantization->quant_method.empty()) return;
  // DeepSeek's own methods say which codes they mean, and have rows of their own.
  if (checkpoint.dialect().name == "deepseek") return;
  const Json* block = config_block(checkpoint);
  if (block != nullptr && block->value("format", Json()) == "dense") return;
  // By dtype: codes that could not be understood are no sign of a cast.
  const auto stored = checkpoint.stored();
  const bool has_codes = std::any_of(stored.begin(), stored.end(), [](const StoredTensor& tensor) {
    return tensor.shape.size() > 1 && dtype_bits(tensor.dtype) <= 8 && tensor.dtype != DType::kBool;
  });
  if (has_codes || is_part_of_model(checkpoint)) return;
  report(in_config(ErrorCode::kMismatch,
                   fmt::format("promises weights quantized by method {}, but none is (remove "
                               "quantization_config)",
                               quantization->quant_method)));
}

void quantized_scheme_held(const Checkpoint& checkpoint, const RuleOptions&, const Report& report) {
  FindingsByKind found;
  for (const LogicalTensor& tensor : checkpoint.tensors()) {
    if (!is_judged(checkpoint, tensor)) continue;
    if (find_spelling(checkpoint.dialect(), tensor.encoding.scheme) != nullptr) continue;
    found.add(tensor.rule, at(checkpoint, codes_of(checkpoint, tensor), ErrorCode::kUnsupported,
                              fmt::format("is {}, which loaders of {} cannot read",
                                          scheme_facts(tensor.encoding.scheme).name,
                                          checkpoint.dialect().name)));
  }
  found.report(report);
}

void quantized_one_scheme(const Checkpoint& checkpoint, const RuleOptions&, const Report& report) {
  // ModelOpt names the scheme, or that there are several: modelopt.quant-algo.
  if (checkpoint.dialect().holds_mixtures || checkpoint.dialect().name == "modelopt") return;
  const LogicalTensor* first = nullptr;
  FindingsByKind found;
  for (const LogicalTensor& tensor : checkpoint.tensors()) {
    if (!is_judged(checkpoint, tensor)) continue;
    if (find_spelling(checkpoint.dialect(), tensor.encoding.scheme) == nullptr) continue;
    if (first == nullptr) first = &tensor;
    if (tensor.encoding.scheme == first->encoding.scheme) continue;
    found.add(nullptr, at(checkpoint, codes_of(checkpoint, tensor), ErrorCode::kUnsupported,
                          fmt::format("is {}, '{}' is {}: loaders of {} read one scheme at a time",
                                      scheme_facts(tensor.encoding.scheme).name, first->name,
                                      scheme_facts(first->encoding.scheme).name,
                                      checkpoint.dialect().name)));
  }
  found.report(report);
}

void quantized_part_names(const Checkpoint& checkpoint, const RuleOptions&, const Report& report) {
  FindingsByKind found;
  for (const LogicalTensor& tensor : checkpoint.tensors()) {
    if (!is_judged(checkpoint, tensor)) continue;
    if (find_spelling(checkpoint.dialect(), tensor.encoding.scheme) == nullptr) continue;
    tensor.encoding.stored.for_each([&](Part part, std::uint32_t index) {
      const StoredTensor& stored = checkpoint.stored()[index];
      std::string wanted;
      // The global scale's name says what it means: nvfp4.global-convention.
      if (part == Part::kGlobal ||
          spelling_of(checkpoint.dialect(), tensor, part, stored.name, wanted) != nullptr)
        return;
      const std::string_view scheme = scheme_facts(tensor.encoding.scheme).name;
      found.add(tensor.rule,
                at(checkpoint, stored, ErrorCode::kMismatch,
                   wanted.empty() ? fmt::format("is a part that {} in dialect {} does not have",
                                                scheme, checkpoint.dialect().name)
                                  : fmt::format("is called '{}' by loaders of {}", wanted,
                                                checkpoint.dialect().name)));
    });
  }
  found.report(report);
}

void quantized_part_shapes(const Checkpoint& checkpoint, const RuleOptions&, const Report& report) {
  FindingsByKind found;
  for (const LogicalTensor& tensor : checkpoint.tensors()) {
    if (!is_judged(checkpoint, tensor)) continue;
    const Encoding& encoding = tensor.encoding;
    encoding.stored.for_each([&](Part part, std::uint32_t index) {
      const StoredTensor& stored = checkpoint.stored()[index];
      std::string unused;
      const PartSpelling* spelling =
          spelling_of(checkpoint.dialect(), tensor, part, stored.name, unused);
      if (spelling == nullptr || part == Part::kWeight) return;
      const Shape wanted = part_shape(spelling->shape, encoding.scheme, tensor.shape,
                                      {encoding.block_rows, encoding.block_cols});
      // [] and [1] are copied into each other.
      const bool is_number =
          spelling->shape == PartShape::kOne || spelling->shape == PartShape::kScalar;
      if (stored.shape == wanted || (is_number && element_count(stored.shape) == 1)) return;
      // Stacked matrices have a number each.
      if (is_number && tensor.shape.size() > 2) return;
      found.add(tensor.rule, at(checkpoint, stored, ErrorCode::kShapeMismatch,
                                fmt::format("has shape {}, loaders copy it into {}",
                                            shape_text(stored.shape), shape_text(wanted))));
    });
  }
  found.report(report);
}

}  // namespace ingot::formats::rule_bodies
