#include "formats/family/proposal/kind_of_tensors.h"

#include <algorithm>
#include <array>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "formats/base/words.h"

namespace ingot::formats {
namespace {

/// The most neighbours that a reason names.
constexpr std::size_t kNamedNeighbours = 2;

std::vector<StackOrder> told_by_stack(const std::string& pattern, const Kind& kind,
                                      const Kinds& kinds, const ConfigWidths& widths) {
  const Shape& shape = *kind.first->shape;
  std::vector<StackOrder> said = {
      order_by_shape(kind, usual_row(usual_spelling(pattern, 3).role), widths)};
  const auto [rows, cols] = kind.first->block;
  if (kind.is_quantized && rows == 1 && cols > 1) said.push_back(StackOrder::kOutputMajor);
  if (kind.is_quantized && cols == 1 && rows > 1) said.push_back(StackOrder::kInputMajor);
  for (const std::string_view ending : {"_bias", ".bias"}) {
    const auto bias = kinds.find(std::string(stem_of(pattern)).append(ending));
    if (bias == kinds.end() || shape[1] == shape[2]) continue;
    const Shape& lengths = *bias->second.first->shape;
    if (lengths.size() != 2 || !bias->second.has_one_shape) continue;
    if (lengths[1] == shape[1]) said.push_back(StackOrder::kOutputMajor);
    if (lengths[1] == shape[2]) said.push_back(StackOrder::kInputMajor);
  }
  return said;
}

bool is_attention(std::string_view word) {
  return word == "attn" || word.ends_with("_attn") || word.ends_with("attention");
}

}  // namespace

bool is_stack(const std::string& pattern, const Kind& kind) {
  const Role role = usual_spelling(pattern, 3).role;
  return kind.first->shape->size() == 3 &&
         (role == Role::kExpertsGateUp || role == Role::kExpertsDown);
}

StackOrder order_by_shape(const Kind& kind, const UsualRow& usual, const ConfigWidths& widths) {
  const Shape& shape = *kind.first->shape;
  const auto is = [&](std::uint64_t size, std::string_view likely) {
    return widths.is_one_of(size, likely);
  };
  if (!kind.has_one_shape || shape.size() < 2) return StackOrder::kNone;
  const std::uint64_t first = shape[shape.size() - 2], second = shape.back();
  const bool is_output_major = is(first, usual.out) && is(second, usual.in);
  const bool is_input_major = is(first, usual.in) && is(second, usual.out);
  if (is_output_major == is_input_major) return StackOrder::kNone;
  return is_output_major ? StackOrder::kOutputMajor : StackOrder::kInputMajor;
}

StackOrder order_of_stack(const std::string& pattern, const Kinds& kinds,
                          const ConfigWidths& widths) {
  StackOrder order = StackOrder::kNone;
  for (const auto& [other, kind] : kinds) {
    if (module_of(other) != module_of(pattern) || !is_stack(other, kind)) continue;
    for (const StackOrder own : told_by_stack(other, kind, kinds, widths)) {
      if (own == StackOrder::kNone) continue;
      if (order != StackOrder::kNone && order != own) return StackOrder::kNone;
      order = own;
    }
  }
  return order;
}

bool has_whole_heads(const Kind& kind, const ModelConfig& config) {
  const Judged& judged = kind.judged;
  const Shape& shape = *kind.first->shape;
  const bool is_row = judged.usual.cut == Cut::kRow;
  const std::uint64_t side = is_row ? shape.back() : shape.front();
  const bool is_of_keys =
      judged.spelling.role == Role::kKProj || judged.spelling.role == Role::kVProj;
  const std::uint64_t heads = is_of_keys ? config.num_key_value_heads : config.num_attention_heads;
  return kind.has_one_shape && shape.size() == 2 &&
         (kAttentionRoles.has(judged.spelling.role) ||
          judged.spelling.role == Role::kAttentionGate) &&
         heads > 0 && side % heads == 0;
}

void set_joined(Kind& kind, bool is_in_parts, const ConfigWidths& widths) {
  Judged& judged = kind.judged;
  const std::uint64_t out = kind.first->shape->front();
  const bool is_of_attention = judged.spelling.role == Role::kQProj;
  constexpr std::array<std::string_view, 3> kKeyHeads = {
      "num_attention_heads", "num_key_value_heads", "attn_config.kv_n_heads"};
  const auto key_heads = std::ranges::find_if(kKeyHeads, [&](std::string_view heads) {
    return widths.is_one_of(
        out, fmt::format("num_attention_heads * head_dim + 2 * {} * head_dim", heads));
  });
  if (is_of_attention && key_heads == kKeyHeads.end()) return;
  if (!is_in_parts) {
    if (!is_of_attention) return;
    judged.traits = fmt::format(", heads: {}", *key_heads);
  } else if (is_of_attention) {
    judged.fine = FineRole::kQkvProj;
    judged.traits = fmt::format(
        ", sections: [num_attention_heads * head_dim, {0} * head_dim, {0} * head_dim], heads: {0}",
        *key_heads);
  } else {
    std::string unused;
    const std::string half = widths.side(out / 2, usual_row(judged.spelling.role).out, unused);
    judged.fine = judged.spelling.role == Role::kSharedGate ? FineRole::kSharedGateUp
                                                            : FineRole::kDenseGateUp;
    judged.traits = fmt::format(", sections: [{0}, {0}]", half);
  }
  judged.usual.cut = Cut::kColumn;
}

std::set<std::uint32_t> layers_in(const Kind& kind) {
  std::set<std::uint32_t> layers;
  for (const auto& [layer, shape] : kind.layers) layers.insert(layer);
  return layers;
}

std::string reason_of(const Kind& kind, const NeighbourRow& row) {
  std::vector<std::string_view> names = {row.family->name};
  for (const NeighbourRow& other : kind.neighbours) {
    if (other.fits && other.family != row.family) names.push_back(other.family->name);
  }
  const std::size_t n_named = std::min(names.size(), kNamedNeighbours);
  std::string text = fmt::format(
      "as in {}",
      fmt::join(names.begin(), names.begin() + static_cast<std::ptrdiff_t>(n_named), ", "));
  if (names.size() > n_named) text += fmt::format(" and {} more", names.size() - n_named);
  return text;
}

std::string_view attention_of(std::string_view pattern) {
  std::size_t end = 0;
  for (const std::string_view word : name_words(pattern)) {
    end += word.size() + 1;
    if (is_attention(word)) return pattern.substr(0, end);
  }
  return {};
}

bool usual_place_is_attention(const std::string& pattern) {
  return std::ranges::any_of(name_words(pattern), [](std::string_view word) {
    return is_attention(word) || word == "mamba" || word == "mixer" || word == "conv";
  });
}

bool is_only_copied(const Kind& kind) {
  if (kind.is_of_tower) return false;
  const Judged& judged = kind.judged;
  const Role role =
      judged.neighbour != nullptr ? judged.neighbour->rule->role : judged.spelling.role;
  return role == Role::kOther || judged.is_turned ||
         (judged.stacks && judged.order == StackOrder::kNone);
}

bool is_interleaved_bias(const Kind& kind) {
  return kind.judged.neighbour != nullptr && !kind.judged.stacks &&
         kind.judged.neighbour->rule->gate_up == GateUpOrder::kInterleaved;
}

}  // namespace ingot::formats
