#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "formats/base/words.h"
#include "formats/checkpoint/checkpoint_listing.h"
#include "formats/checkpoint/part_names.h"
#include "formats/checkpoint/passes.h"
#include "formats/checkpoint/promised_tensors.h"
#include "formats/config/routing.h"
#include "formats/family/family_check.h"
#include "formats/family/family_yaml.h"
#include "formats/family/forward.h"
#include "formats/family/roles.h"
#include "formats/family/text_names.h"
#include "formats/storage/stack_form.h"
#include "formats/storage/stored_names.h"

// Logical tensors held against the grammar of a family, under a config.

namespace ingot::formats {
namespace {

// A config has at most so many experts.
constexpr std::uint64_t kMostExperts = std::uint64_t{1} << 20;

constexpr RoleSet kFirstExpertRoles = {Role::kExpertGate, Role::kExpertUp, Role::kExpertsGateUp,
                                       Role::kExpertsGate, Role::kExpertsUp};

/// The experts behind those with tensors, which the forward pass of a family has.
std::uint64_t identity_experts(const Family& family, const ModelConfig& config) {
  if (family.forward == nullptr || !family.forward->mixture) return 0;
  for (const auto& [key, value] : family.forward->mixture->parameters) {
    if (key == "identity_experts") return Width::parse(value.text, family.widths).size(config);
  }
  return 0;
}

// Endings of the names of routers.
std::vector<std::string_view> router_ends(const Family& family) {
  std::vector<std::string_view> ends;
  for (const TensorRule& rule : family.rules) {
    if (rule.role == Role::kRouter)
      ends.push_back(rule.pattern.substr(rule.pattern.rfind('}') + 1));
  }
  return ends;
}

bool is_float_dtype(DType dtype) {
  return dtype == DType::kF64 || plain_scheme(dtype) != SchemeId::kRaw;
}

/// The shape that the config promises for a tensor with a row, in the order of its stack.
Shape promised_shape(const LogicalTensor& tensor, const ModelConfig& config) {
  Shape shape = rule_shape(*tensor.rule, config, tensor.layer);
  if (tensor.stack != tensor.rule->stack) std::swap(shape.at(1), shape.at(2));
  return shape;
}

/// Reports numbers and shapes that `config` does not promise; a rank's shapes are left to
/// match_slices().
void compare(const LogicalTensor& tensor, const Draft& draft, const ModelConfig& config,
             ErrorList& faults) {
  const StoredTensor& weight = draft.stored[tensor.encoding.stored.weight()];
  const auto add = [&](Error fault) {
    faults.add(fault.in_file(draft.bytes->files()[weight.file].name).in_tensor(tensor.name));
  };
  const bool is_released_so = weight.dtype == tensor.rule->synth_dtype || tensor.rule->any_shape;
  if (tensor.encoding.scheme == SchemeId::kRaw && !is_float_dtype(weight.dtype) &&
      !is_released_so) {
    add(Error(ErrorCode::kDtypeMismatch,
              "is {} without a scale, family {} has floating-point numbers here",
              dtype_name(weight.dtype), draft.family->name));
  }
  if (tensor.rule->any_shape || draft.slices != nullptr) return;
  const Shape expected = promised_shape(tensor, config);
  if (tensor.shape == expected) return;
  const bool is_matrix = tensor.shape.size() == 2 && tensor.rule->is_flat;
  const bool is_aside =
      is_matrix && (tensor.shape == Shape{expected[2], expected[0] * expected[1]} ||
                    tensor.shape == Shape{expected[1], expected[0] * expected[2]});
  add(Error(ErrorCode::kShapeMismatch, "has shape {}, by config.json it should have {}{}",
            shape_text(tensor.shape),
            shape_text(is_matrix ? stored_shape(tensor.rule, expected) : expected),
            is_aside ? " (the matrices of its experts are side by side, where they are read one "
                       "below the other: transpose it)"
                     : ""));
}

/// Tensors that the family does not have as they are called, and has under another beginning.
class OtherPrefixes {
 public:
  OtherPrefixes(const Draft& draft, const NameGrammar& grammar)
      : family_(*draft.family),
        grammar_(grammar),
        heads_{stored_text_name("model.", draft.config.text)} {
    for (const std::string_view head : {std::string_view(draft.config.text.prefix), kNone}) {
      if (std::ranges::find(heads_, head) == heads_.end()) heads_.emplace_back(head);
    }
    for (const LogicalTensor& tensor : draft.tensors) present_.insert(tensor.name);
  }

  /// True if the name is explained; then it is kept for report().
  bool explain(std::string_view name) {
    for (std::size_t at = 0; at != std::string_view::npos;) {
      const std::string_view rest = name.substr(at);
      for (const std::string& head : heads_) {
        const std::string meant = head + std::string(rest);
        if (present_.contains(meant) || !grammar_.match(meant)) continue;
        Found& found = found_[{std::string(name.substr(0, at)), head}];
        ++found.count;
        const std::size_t word = rest.find('.');
        if (word != std::string_view::npos) found.words.emplace(rest.substr(0, word + 1));
        if (found.first.empty()) found.first = name;
        return true;
      }
      const std::size_t dot = name.find('.', at);
      at = dot == std::string_view::npos ? dot : dot + 1;
    }
    return false;
  }

  [[nodiscard]] bool empty() const { return found_.empty(); }

  void report(ErrorList& faults) const {
    for (const auto& [prefixes, found] : found_) {
      const auto& [stored, meant] = prefixes;
      std::vector<std::string> aliases;
      for (const std::string& word : found.words)
        aliases.push_back(fmt::format("{}{}: {}{}", stored, word, meant, word));
      const auto quoted = [](const std::string& prefix) {
        return prefix.empty() ? std::string("no prefix") : fmt::format("prefix '{}'", prefix);
      };
      faults.add(
          Error(ErrorCode::kUnknownTensor,
                "{} tensors have {} where family {} has {}: rename them, or have them read so by a "
                "--family-file of three lines, `family: renamed`, `like: {}`, `aliases: {{{}}}`",
                found.count, quoted(stored), family_.name, quoted(meant), family_.name,
                fmt::join(aliases, ", "))
              .in_tensor(found.first));
    }
  }

 private:
  struct Found {
    std::size_t count = 0;
    std::string first;
    std::set<std::string> words;  // words behind the prefix, with a dot
  };
  static constexpr std::string_view kNone = "";

  const Family& family_;
  const NameGrammar& grammar_;
  std::vector<std::string> heads_;  // beginnings of the family's names in this checkpoint
  std::set<std::string_view> present_;
  std::map<std::pair<std::string, std::string>, Found> found_;  // names by prefix there and here
};

bool has_row(const NameGrammar& grammar, LogicalTensor& tensor) {
  const auto match = grammar.match(tensor.name);
  if (!match) return false;
  tensor.rule = match->rule;
  tensor.layer = match->layer;
  tensor.expert = match->expert;
  tensor.stack = stack_order(*match->rule, turns_stacks(tensor.encoding.scheme));
  return true;
}

/// Stacks are found in either order, whatever their row and scheme say: by their shape, or, where
/// both orders have the same, by that of another stack of the layer.
void orient_stacks(Draft& draft) {
  if (draft.slices != nullptr) return;
  const auto turn = [](LogicalTensor& tensor) {
    tensor.stack = tensor.stack == StackOrder::kInputMajor ? StackOrder::kOutputMajor
                                                           : StackOrder::kInputMajor;
  };
  std::vector<LogicalTensor*> untold;
  std::set<std::optional<std::uint32_t>> turned;  // layers
  for (LogicalTensor& tensor : draft.tensors) {
    if (tensor.stack == StackOrder::kNone || tensor.rule->any_shape || tensor.shape.size() != 3)
      continue;
    const Shape usual = promised_shape(tensor, draft.config);
    if (usual.at(1) == usual.at(2)) {
      untold.push_back(&tensor);
    } else if (tensor.shape[1] == usual.at(2) && tensor.shape[2] == usual.at(1)) {
      turn(tensor);
      turned.insert(tensor.layer);
    }
  }
  for (LogicalTensor* tensor : untold) {
    if (turned.contains(tensor->layer)) turn(*tensor);
  }
}

/// Layers with another number of experts than config.json has for all of them.
class UnevenLayers {
 public:
  explicit UnevenLayers(const Draft& draft)
      : draft_(draft), numbers_(uneven_experts(*draft.family, draft.config, draft.stored)) {
    for (const auto& [layer, n_experts] : numbers_)
      grammars_.try_emplace(n_experts, *draft.family, draft.config, n_experts);
  }

  /// The layer whose own number of experts is the only reason why this tensor is a fault.
  [[nodiscard]] std::optional<std::uint32_t> layer_of(LogicalTensor tensor) const {
    for (const auto& [n_experts, own] : grammars_) {
      const StackOrder order = tensor.stack;
      if (!has_row(own.grammar, tensor) || !tensor.layer) continue;
      if (order != StackOrder::kNone) tensor.stack = order;
      const auto layer = numbers_.find(*tensor.layer);
      if (layer == numbers_.end() || layer->second != n_experts) continue;
      ErrorList faults;
      compare(tensor, draft_, own.config, faults);
      if (faults.empty()) return tensor.layer;
    }
    return std::nullopt;
  }

  /// A fault for the main layers.
  void report(ErrorList& faults) const {
    for (const auto& [layer, n_experts] : numbers_) {
      if (layer >= draft_.config.num_hidden_layers) continue;
      faults.add(Error(ErrorCode::kShapeMismatch, uneven_text(layer, n_experts, draft_.config))
                     .in_file(kConfigName));
    }
  }

 private:
  struct Own {
    Own(const Family& family, const ModelConfig& whole, std::uint64_t n_experts)
        : config(whole), grammar(family, config) {
      config.n_routed_experts = n_experts;
      config.by_layer.erase("n_routed_experts");
    }
    ModelConfig config;
    NameGrammar grammar;
  };

  const Draft& draft_;
  std::map<std::uint32_t, std::uint64_t> numbers_;  // numbers of experts by layer
  std::map<std::uint64_t, Own> grammars_;           // grammars by number of experts
};

/// The name that an alias makes of a name; nullopt for names that do not begin with the alias, or
/// are the alias.
std::optional<std::string> name_under(const NameAlias& alias, const std::string& name) {
  std::string stored = alias.stored, meant = alias.meant;
  if (const std::size_t at = stored.find(kLayerMark); at != std::string::npos) {
    if (!name.starts_with(std::string_view(stored).substr(0, at))) return std::nullopt;
    const std::string layer = name.substr(at, name.find('.', at) - at);
    if (!number_from(layer)) return std::nullopt;
    stored.replace(at, kLayerMark.size(), layer);
    meant.replace(meant.find(kLayerMark), kLayerMark.size(), layer);
  }
  if (!stored.ends_with('.')) return name == stored ? std::optional(meant) : std::nullopt;
  if (!name.starts_with(stored) || name.starts_with(meant)) return std::nullopt;
  return meant + name.substr(stored.size());
}

}  // namespace

std::map<std::uint32_t, std::uint64_t> uneven_experts(const Family& family,
                                                      const ModelConfig& config,
                                                      std::span<const StoredTensor> stored) {
  std::map<std::uint32_t, std::uint64_t> uneven;
  if (config.n_routed_experts == 0) return uneven;
  ModelConfig any = config;
  any.n_routed_experts = kMostExperts;
  any.by_layer.erase("n_routed_experts");
  const NameGrammar grammar(family, any);
  const std::vector<std::string_view> ends = router_ends(family);
  for (const StoredTensor& tensor : stored) {
    if (tensor.shape.empty() || std::ranges::none_of(ends, [&](std::string_view end) {
          return tensor.name.ends_with(end);
        }))
      continue;
    const auto match = grammar.match(tensor.name);
    if (!match || match->rule->role != Role::kRouter || !match->layer) continue;
    // Rows for experts without tensors, or for shared ones.
    const Shape usual = rule_shape(*match->rule, config, match->layer);
    const std::uint64_t others =
        usual.empty() ? 0 : usual[0] - std::min(usual[0], experts_of(config, match->layer));
    if (tensor.shape[0] > others &&
        tensor.shape[0] - others != experts_of(config, match->layer))
      uneven[*match->layer] = tensor.shape[0] - others;
  }
  if (uneven.empty()) return uneven;
  std::map<std::uint32_t, std::uint64_t> experts;
  for (const StoredTensor& tensor : stored) {
    const auto match = grammar.match(weight_name(tensor));
    if (!match || !match->layer || !uneven.contains(*match->layer)) continue;
    std::uint64_t& n_experts = experts[*match->layer];
    if (match->expert) {
      n_experts = std::max<std::uint64_t>(n_experts, std::uint64_t{*match->expert} + 1);
    } else if (is_routed_expert(match->rule->role) && !tensor.shape.empty()) {
      n_experts = std::max(n_experts, tensor.shape[0]);
    }
  }
  std::erase_if(uneven, [&](const auto& layer) { return experts[layer.first] != layer.second; });
  return uneven;
}

std::string uneven_text(std::uint32_t layer, std::uint64_t n_experts, const ModelConfig& config) {
  const bool is_mtp = layer >= config.num_hidden_layers;
  return fmt::format(
      "layer {}{} has {} experts, config.json says {}{} ({})", layer, is_mtp ? " (MTP)" : "",
      n_experts, experts_of(config, layer),
      has_uneven_experts(config) ? "" : ": one number for all layers",
      is_mtp ? "ingot convert --mtp drop leaves the layer out"
             : "prune the same number of experts in each layer");
}

void match_family(Draft& draft) {
  const bool names_are_known = !draft.family->rules.empty();
  const NameGrammar grammar(*draft.family, draft.config);
  std::vector<LogicalTensor*> odd;
  for (LogicalTensor& tensor : draft.tensors) has_row(grammar, tensor);
  orient_stacks(draft);
  for (LogicalTensor& tensor : draft.tensors) {
    if (tensor.rule != nullptr) {
      ErrorList own;
      compare(tensor, draft, draft.config, own);
      if (!own.empty()) odd.push_back(&tensor);
    } else if (names_are_known) {
      odd.push_back(&tensor);
    }
  }
  if (odd.empty()) return;
  const UnevenLayers uneven(draft);
  uneven.report(draft.faults);
  OtherPrefixes prefixes(draft, grammar);
  for (LogicalTensor* tensor : odd) {
    if (const auto layer = uneven.layer_of(*tensor)) {
      if (*layer < draft.config.num_hidden_layers) continue;
      tensor->rule = nullptr;
      tensor->layer = layer;
      tensor->expert.reset();
      tensor->stack = StackOrder::kNone;
    } else if (tensor->rule != nullptr) {
      compare(*tensor, draft, draft.config, draft.faults);
    } else {
      tensor->is_unknown =
          matches_any(draft.options.allow_unknown, tensor->name) || !prefixes.explain(tensor->name);
    }
  }
  prefixes.report(draft.faults);
  draft.is_understood = prefixes.empty();
}

void rename_aliases(Draft& draft) {
  for (const NameAlias& alias : aliases_of(*draft.family)) {
    const auto meant = [&](const std::string& name) { return name_under(alias, name); };
    std::vector<std::pair<StoredTensor*, std::string>> renamed;
    for (StoredTensor& tensor : draft.stored) {
      std::optional<std::string> name = meant(tensor.name);
      if (name && !draft.names().find(*name)) renamed.emplace_back(&tensor, std::move(*name));
    }
    if (renamed.empty()) continue;
    draft.remarks.push_back(
        fmt::format("{} tensors have names that begin with '{}': read as '{}', and written so",
                    renamed.size(), alias.stored, alias.meant));
    draft.forget_names();
    for (auto& [tensor, name] : renamed) {
      tensor->name = std::move(name);
      draft.aliases.emplace(tensor->name, alias.stored);
    }
    for (std::string& name : draft.lost) {
      if (std::optional<std::string> other = meant(name)) name = std::move(*other);
    }
  }
  std::ranges::sort(draft.lost);
}

void see_flat_stacks(Draft& draft) {
  const Family& family = *draft.family;
  if (std::ranges::none_of(family.rules, &TensorRule::is_flat)) return;
  const NameGrammar grammar(family, draft.config);
  for (StoredTensor& tensor : draft.stored) {
    if (tensor.shape.size() != 2 || !is_float_dtype(tensor.dtype)) continue;
    const auto match = grammar.match(tensor.name);
    if (!match || !match->rule->is_flat) continue;
    const Shape whole = rule_shape(*match->rule, draft.config, match->layer);
    // Ranks hold parts of a side, in the order of releases.
    const bool is_turned = draft.slices == nullptr && tensor.shape[1] != whole[2];
    const std::uint64_t rows = whole[is_turned ? 2 : 1], cols = whole[is_turned ? 1 : 2];
    if (tensor.shape[1] == cols && tensor.shape[0] % rows == 0)
      tensor.shape = {tensor.shape[0] / rows, rows, cols};
  }
}

void leave_out_identity_experts(Draft& draft) {
  const std::uint64_t n_experts = draft.config.n_routed_experts;
  ModelConfig all = draft.config;
  all.n_routed_experts += identity_experts(*draft.family, draft.config);
  if (all.n_routed_experts == n_experts) return;
  const NameGrammar grammar(*draft.family, all);
  std::size_t n_left = 0;
  const auto is_left = [&](StoredTensor& tensor) {
    const auto match = grammar.match(weight_name(tensor));
    if (!match || !kFirstExpertRoles.has(match->rule->role)) return false;
    if (match->expert) return *match->expert >= n_experts;
    if (tensor.shape.empty() || tensor.shape[0] != all.n_routed_experts) return false;
    tensor.n_bytes = tensor.n_bytes / tensor.shape[0] * n_experts;
    tensor.shape[0] = n_experts;
    ++n_left;
    return false;
  };
  draft.forget_names();
  n_left += std::erase_if(draft.stored, is_left);
  if (n_left == 0) return;
  draft.has_identity_experts = true;
  draft.remarks.push_back(fmt::format(
      "{} tensors have gates and ups of experts {} to {}, which give their input back and have no "
      "down projection: left out, as in releases",
      n_left, n_experts, all.n_routed_experts - 1));
}

}  // namespace ingot::formats
