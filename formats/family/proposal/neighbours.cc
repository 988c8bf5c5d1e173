#include "formats/family/proposal/neighbours.h"

#include <algorithm>
#include <array>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "formats/base/error.h"
#include "formats/family/families.h"
#include "formats/family/family_check.h"
#include "formats/family/family_yaml.h"
#include "formats/family/proposal/forward_text.h"
#include "formats/family/rule_scope.h"
#include "formats/family/usual_rows.h"
#include "formats/family/usual_spellings.h"
#include "formats/family/width.h"

namespace ingot::formats {
namespace {

constexpr std::array<std::string_view, 4> kSilenceNames = {"plain", "head", "quantized", "listed"};
/// Layers in which tensors are; one nullopt for tensors outside of layers.
std::vector<std::optional<std::uint32_t>> numbers_of(const ShapesByLayer& layers) {
  std::vector<std::optional<std::uint32_t>> numbers;
  for (const auto& [layer, shape] : layers) numbers.emplace_back(layer);
  if (numbers.empty()) numbers.emplace_back();
  return numbers;
}

}  // namespace

Neighbours::Neighbours(const ModelConfig& config, std::string_view without) : config_(config) {
  for (const Family* family : families()) {
    if (family->name == without || family->rules.empty()) continue;
    try {
      asked_.push_back({.family = family, .config = formats::config_of(*family, config)});
    } catch (const Error&) {
      // A config that this family cannot have.
      continue;
    }
    for (const TensorRule& rule : family->rules) {
      if (rule.role != Role::kOtherModality)
        places_.emplace(behind_layer(rule.pattern), Place{asked_.size() - 1, &rule});
    }
  }
}

bool Neighbours::fits(const Asked& asked, const TensorRule& rule,
                      const NamedTensors& tensors) const {
  const auto is_so = [&](std::optional<std::uint32_t> layer, const Shape& shape) {
    return stored_shape(&rule, rule_shape(rule, asked.config, layer)) == shape ||
           weight_shape(rule, asked.config, layer, true) == shape;
  };
  try {
    if (rule.any_shape) return true;
    if (tensors.layers.empty()) return is_so(std::nullopt, tensors.first);
    return std::ranges::all_of(
        tensors.layers, [&](const auto& entry) { return is_so(entry.first, *entry.second); });
  } catch (const Error&) {
    // An expression that this config cannot compute.
    return false;
  }
}

std::vector<NeighbourRow> Neighbours::rows_of(const NamedTensors& tensors) const {
  std::vector<NeighbourRow> rows;
  const bool is_in_layer =
      has_mark(tensors.pattern, kLayerMark) || has_mark(tensors.pattern, kMtpMark);
  const auto [begin, end] = places_.equal_range(behind_layer(tensors.pattern));
  for (const auto& [pattern, place] : std::ranges::subrange(begin, end)) {
    const TensorRule& rule = *place.rule;
    const bool has_layer = has_mark(rule.pattern, kLayerMark) || has_mark(rule.pattern, kMtpMark);
    if (has_layer != is_in_layer) continue;
    const Asked& asked = asked_[place.asked];
    const bool is_fit = fits(asked, rule, tensors);
    if (rows.empty() || rows.back().family != asked.family) {
      rows.push_back({.family = asked.family, .rule = &rule, .fits = is_fit});
    } else if (is_fit && !rows.back().fits) {
      rows.back() = {.family = asked.family, .rule = &rule, .fits = true};
    }
  }
  return rows;
}

const ModelConfig& Neighbours::config_of(const Family& family) const {
  return std::ranges::find(asked_, &family, &Asked::family)->config;
}

std::optional<std::string> Neighbours::expression(const NeighbourRow& row, const Width& width,
                                                  const ShapesByLayer& layers) const {
  const ModelConfig& known = config_of(*row.family);
  const std::string text = spelled_out(width.text(), row.family->widths);
  std::optional<std::uint64_t> size;
  bool is_one = true, is_said = text.size() <= kMaxExpression;
  try {
    for (const std::optional<std::uint32_t> layer : numbers_of(layers)) {
      const std::uint64_t own = width.size(known, layer);
      is_said = is_said && Width::parse(text).size(config_, layer) == own;
      is_one = is_one && size.value_or(own) == own;
      size = own;
    }
  } catch (const Error&) {
    // A key whose absence means something in that family only.
    is_said = false;
  }
  if (is_said) return text;
  return is_one && size ? std::optional(std::to_string(*size)) : std::nullopt;
}

std::string Neighbours::shape_of(const NeighbourRow& row, const ShapesByLayer& layers) const {
  std::vector<std::string> sides;
  for (const Width* side : row.rule->shape) {
    if (side == nullptr) break;
    const std::optional<std::string> text = expression(row, *side, layers);
    if (!text) return {};
    sides.push_back(*text);
  }
  return row.rule->any_shape ? std::string() : fmt::format(", shape: [{}]", fmt::join(sides, ", "));
}

std::optional<std::string> Neighbours::traits_of(const NeighbourRow& row,
                                                 const ShapesByLayer& layers) const {
  const TensorRule& rule = *row.rule;
  const UsualRow usual = rule.fine ? UsualRow{} : usual_row(rule.role);
  std::string text;
  if (rule.silence != Silence::kPlain)
    text += fmt::format(", silence: {}", kSilenceNames.at(static_cast<std::size_t>(rule.silence)));
  if (rule.may_be_quantized) text += ", may_be_quantized: true";
  if (rule.fp8_by_default != usual.is_linear)
    text += fmt::format(", quantized: {}", rule.fp8_by_default);
  if (rule.cut != usual.cut)
    text += fmt::format(", cut: {}", kCutWords.at(static_cast<std::size_t>(rule.cut)));
  if (!rule.sections.empty()) {
    std::vector<std::string> lengths;
    for (const Width* length : rule.sections) {
      const std::optional<std::string> one = expression(row, *length, layers);
      if (!one) return std::nullopt;
      lengths.push_back(*one);
    }
    text += fmt::format(", sections: [{}]", fmt::join(lengths, ", "));
  }
  if (rule.heads != nullptr) {
    const std::optional<std::string> heads = expression(row, *rule.heads, layers);
    if (!heads) return std::nullopt;
    text += fmt::format(", heads: {}", *heads);
  }
  return text;
}

std::string Neighbours::layers_of(const NeighbourRow& row, const ShapesByLayer& layers) const {
  const TensorRule& rule = *row.rule;
  try {
    for (std::uint32_t layer = 0; layer < layer_count(config_); ++layer) {
      if (is_in_layer(rule, config_, layer) != layers.contains(layer)) return {};
    }
  } catch (const Error&) {
    // A list that this config lacks.
    return {};
  }
  return ", layers: " + layers_text(rule);
}

bool are_alike(const TensorRule& a, const TensorRule& b) {
  // A gate of attention is quantized as queries are where engines join it with them.
  const bool is_joined_alike = a.role != Role::kAttentionGate || a.fuse == b.fuse;
  return a.cut == b.cut && a.fp8_by_default == b.fp8_by_default &&
         a.sections.size() == b.sections.size() && is_joined_alike;
}

}  // namespace ingot::formats
