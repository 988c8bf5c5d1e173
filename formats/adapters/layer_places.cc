#include "formats/adapters/layer_places.h"

#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "formats/experts/expert_view.h"
#include "formats/experts/separation.h"
#include "formats/family/text_names.h"

namespace ingot::formats {
namespace {

// Words before the names of a text model, in files and in memory.
constexpr std::array<std::string_view, 5> kTextPrefixes = {
    "model.language_model.model.", "model.language_model.", "language_model.model.",
    "language_model.", "model."};

// The module of a mixture, which transformers 5 calls by one name, and its other names.
constexpr std::array<std::string_view, 3> kMixtures = {".mlp.", ".block_sparse_moe.",
                                                       ".feed_forward."};

// Words for the projections of an expert.
struct Leaf {
  std::string_view word;
  std::array<Role, 2> members;
  std::size_t n = 1;
};
constexpr std::array kLeaves = {
    Leaf{"gate_up_proj", {Role::kExpertGate, Role::kExpertUp}, 2},
    Leaf{"gate_proj", {Role::kExpertGate}},
    Leaf{"w1", {Role::kExpertGate}},
    Leaf{"up_proj", {Role::kExpertUp}},
    Leaf{"w3", {Role::kExpertUp}},
    Leaf{"down_proj", {Role::kExpertDown}},
    Leaf{"w2", {Role::kExpertDown}},
};

const Leaf* find_leaf(std::string_view word) {
  const auto* const found = std::ranges::find(kLeaves, word, &Leaf::word);
  return found == kLeaves.end() ? nullptr : found;
}

/// Names by which the model may have `name`, the likeliest first.
std::vector<std::string> names_for(std::string_view name, const TextNesting& nesting) {
  std::vector<std::string> names = {std::string(name)};
  const auto add = [&](std::string text) {
    if (std::ranges::find(names, text) == names.end()) names.push_back(std::move(text));
  };
  std::string_view rest = name;
  for (const std::string_view prefix : kTextPrefixes) {
    if (!rest.starts_with(prefix)) continue;
    rest.remove_prefix(prefix.size());
    break;
  }
  // Heads are outside of `model.`.
  for (const std::string_view before : {"model.", ""})
    add(stored_text_name(fmt::format("{}{}", before, rest), nesting));
  if (rest.starts_with("unembed_tokens.")) {
    add(stored_text_name(fmt::format("lm_head.{}", rest.substr(rest.find('.') + 1)), nesting));
  }
  const std::size_t n_names = names.size();
  for (std::size_t i = 0; i < n_names; ++i) {
    for (const std::string_view from : kMixtures) {
      const std::size_t at = names[i].find(from);
      if (at == std::string::npos) continue;
      for (const std::string_view to : kMixtures) {
        std::string other = names[i];
        add(other.replace(at, from.size(), to));
      }
      break;
    }
  }
  return names;
}

}  // namespace

LayerPlaces::LayerPlaces(const Checkpoint& model)
    : model_(model), grammar_(model.family(), model.config()) {
  for (std::uint32_t i = 0; i < model.tensors().size(); ++i) {
    const LogicalTensor& tensor = model.tensors()[i];
    by_name_.emplace(tensor.name, i);
    if (!tensor.layer) continue;
    if (tensor.expert) {
      singles_.emplace(std::pair(std::pair(*tensor.layer, role_of(tensor)), *tensor.expert), i);
    } else {
      stacks_.emplace(std::pair(*tensor.layer, role_of(tensor)), i);
    }
  }
}

std::optional<std::uint32_t> LayerPlaces::tensor(std::string_view name) const {
  for (const std::string& known : names_for(name, model_.config().text)) {
    if (const auto found = by_name_.find(known); found != by_name_.end()) return found->second;
  }
  return std::nullopt;
}

bool LayerPlaces::may_be(std::string_view name, std::string_view stored) const {
  const std::vector<std::string> names = names_for(name, model_.config().text);
  return std::ranges::find(names, stored) != names.end();
}

std::optional<NameGrammar::Match> LayerPlaces::match(std::string_view name) const {
  for (const std::string& known : names_for(name, model_.config().text)) {
    if (auto found = grammar_.match(known); found && found->layer) return found;
  }
  return std::nullopt;
}

std::optional<LayerPlace> LayerPlaces::linear(std::string_view module) const {
  if (const auto found = tensor(fmt::format("{}.weight", module))) {
    const Shape& shape = model_.tensors()[*found].shape;
    if (shape.size() != 2) return std::nullopt;
    return LayerPlace{.tensor = *found, .outputs = {.n = shape[0]}, .n_inputs = shape[1]};
  }
  if (const auto found = section(module)) return found;
  // An expert, which the model may have in a stack or under another leaf.
  const std::size_t dot = module.rfind('.');
  if (dot == std::string_view::npos) return std::nullopt;
  const Leaf* leaf = find_leaf(module.substr(dot + 1));
  if (leaf == nullptr || leaf->n != 1) return std::nullopt;
  for (const Leaf& other : kLeaves) {
    if (other.n != 1 || other.members[0] != leaf->members[0]) continue;
    const auto row = match(fmt::format("{}.{}.weight", module.substr(0, dot), other.word));
    if (row && row->expert && row->rule->role == leaf->members[0])
      return expert(*row->layer, leaf->members[0], *row->expert);
  }
  return std::nullopt;
}

// `in_proj_k` of an `in_proj_qkv`, by the lengths that the family's row gives its sections.
std::optional<LayerPlace> LayerPlaces::section(std::string_view module) const {
  constexpr std::string_view kSections = "qkv";
  const std::size_t number = module.empty() ? kSections.size() : kSections.find(module.back());
  if (number >= kSections.size() || !module.substr(0, module.size() - 1).ends_with('_'))
    return std::nullopt;
  const auto found =
      tensor(fmt::format("{}{}.weight", module.substr(0, module.size() - 1), kSections));
  if (!found) return std::nullopt;
  const LogicalTensor& joined = model_.tensors()[*found];
  if (joined.rule == nullptr || joined.rule->sections.size() != kSections.size() ||
      joined.shape.size() != 2)
    return std::nullopt;
  LayerPlace place{.tensor = *found, .outputs = {}, .n_inputs = joined.shape[1]};
  for (std::size_t i = 0; i <= number; ++i) {
    place.outputs.first += place.outputs.n;
    place.outputs.n = joined.rule->sections[i]->size(model_.config(), joined.layer);
  }
  const bool is_inside = place.outputs.first + place.outputs.n <= joined.shape[0];
  return is_inside ? std::optional(place) : std::nullopt;
}

std::optional<ExpertParameter> LayerPlaces::experts(std::string_view module,
                                                    std::string_view leaf) const {
  const Leaf* of = find_leaf(leaf);
  if (of == nullptr) return std::nullopt;
  std::optional<std::uint32_t> layer;
  for (const Leaf& known : kLeaves) {
    for (const std::string& name : {fmt::format("{}.{}", module, known.word),
                                    fmt::format("{}.0.{}.weight", module, known.word)}) {
      const auto row = match(name);
      if (row && is_routed_expert(row->rule->role)) layer = row->layer;
    }
    if (layer) break;
  }
  if (!layer) return std::nullopt;
  ExpertParameter parameter{.layer = *layer, .members = {}};
  parameter.members.assign(of->members.begin(), of->members.begin() + static_cast<long>(of->n));
  const TensorRule* row =
      find_row(model_.family(), model_.config(), Role::kExpertsGateUp, parameter.layer);
  if (row != nullptr) parameter.order = row->gate_up;
  return parameter;
}

std::optional<LayerPlace> LayerPlaces::expert(std::uint32_t layer, Role member,
                                              std::uint32_t expert) const {
  if (const auto single = singles_.find({{layer, member}, expert}); single != singles_.end()) {
    const Shape& shape = model_.tensors()[single->second].shape;
    if (shape.size() != 2) return std::nullopt;
    return LayerPlace{.tensor = single->second, .outputs = {.n = shape[0]}, .n_inputs = shape[1]};
  }
  for (const StackMembers& facts : kStacks) {
    const auto found = stacks_.find({layer, facts.stack});
    if (found == stacks_.end()) continue;
    for (std::size_t m = 0; m < facts.n; ++m) {
      const LogicalTensor& stack = model_.tensors()[found->second];
      if (facts.members[m] != member || stack.shape.size() != 3 || expert >= stack.shape[0])
        continue;
      const std::size_t axis = outputs_axis(stack);
      return LayerPlace{
          .tensor = found->second,
          .matrix = expert,
          .outputs = rows_of_member(stack.rule->gate_up, stack.shape[axis], facts.n, m),
          .n_inputs = stack.shape[axis == 1 ? 2 : 1],
          .is_turned = stack.stack == StackOrder::kInputMajor};
    }
  }
  return std::nullopt;
}

}  // namespace ingot::formats
