#include "formats/checkpoint/family_match.h"

#include <algorithm>

#include <fmt/format.h>

namespace ingot::formats {
namespace {

constexpr std::size_t kShownUnknown = 20;

bool is_float_dtype(DType dtype) {
  return dtype == DType::kF64 || plain_scheme(dtype) != SchemeId::kRaw;
}

bool is_allowed(const std::vector<Pattern>* patterns, const std::string& name) {
  return patterns != nullptr &&
         std::any_of(patterns->begin(), patterns->end(),
                     [&](const Pattern& pattern) { return pattern.matches(name); });
}

void compare(const LogicalTensor& tensor, const FamilyMatch& with, ErrorList& faults) {
  const StoredTensor& weight = with.stored[tensor.encoding.stored.weight()];
  const auto fault = [&](ErrorCode code, std::string message) {
    faults.add(Error(code, std::move(message))
                   .in_file(with.files[weight.file].name)
                   .in_tensor(tensor.name));
  };
  const bool is_released_so = weight.dtype == tensor.rule->synth_dtype;
  if (tensor.encoding.scheme == SchemeId::kRaw && !is_float_dtype(weight.dtype) &&
      !is_released_so) {
    fault(ErrorCode::kDtypeMismatch,
          fmt::format("is {} without a scale, family {} has floating-point numbers here",
                      dtype_name(weight.dtype), with.family.name));
  }
  if (tensor.rule->any_shape || with.are_slices) return;
  const Shape expected = rule_shape(*tensor.rule, with.config);
  if (tensor.shape != expected) {
    fault(ErrorCode::kShapeMismatch, fmt::format("has shape {}, by config.json it should have {}",
                                                 shape_text(tensor.shape), shape_text(expected)));
  }
}

Error unknown_tensors(std::string_view family, const std::vector<std::string>& unknown) {
  std::string text = fmt::format(
      "{} tensor(s) that family {} does not have (--allow unknown-tensor=PATTERN copies them "
      "untouched, --family generic "
      "takes any name)",
      unknown.size(), family);
  for (std::size_t i = 0; i < unknown.size() && i < kShownUnknown; ++i) text += "\n  " + unknown[i];
  if (unknown.size() > kShownUnknown)
    text += fmt::format("\n  ... and {} more", unknown.size() - kShownUnknown);
  return Error(ErrorCode::kUnknownTensor, text);
}

}  // namespace

void match_family(const FamilyMatch& with, std::vector<LogicalTensor>& tensors, ErrorList& faults) {
  if (with.family.rules.empty()) return;
  const NameGrammar grammar(with.family, with.config);
  std::vector<std::string> unknown;
  for (LogicalTensor& tensor : tensors) {
    if (const auto match = grammar.match(tensor.name)) {
      tensor.rule = match->rule;
      tensor.layer = match->layer;
      tensor.expert = match->expert;
      compare(tensor, with, faults);
    } else if (!is_allowed(with.allow_unknown, tensor.name)) {
      const StoredTensor& weight = with.stored[tensor.encoding.stored.weight()];
      unknown.push_back(fmt::format("{}: {}", with.files[weight.file].name, tensor.name));
    }
  }
  if (!unknown.empty()) faults.add(unknown_tensors(with.family.name, unknown));
}

}  // namespace ingot::formats
