#include "formats/modules/module_patterns.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "formats/base/error.h"
#include "formats/modules/module_census.h"
#include "formats/modules/module_list.h"

// Covering the modules of a class by few patterns is a set cover; greedy choice is good enough and
// does not depend on the order of the tensors.

namespace ingot::formats {

namespace {

constexpr std::string_view kModelLayers = "model.layers.";
constexpr std::string_view kDecoder = "model.decoder.";

/// What a pattern takes in behind a layer's number.
enum class Reach : std::uint8_t {
  kLeaf,    ///< what ends with the path
  kParent,  ///< where a component starts like the path
  kLayer,   ///< everything
};

/// What a pattern is about, in whichever layers.
struct Selector {
  Reach reach{};
  std::string path;  ///< of the tail, `#` for the number of an expert; empty for kLayer
};

/// A selector with the layers that it is to match in.
struct LayeredSelector {
  const Selector* selector = nullptr;
  bool is_everywhere = false;       ///< in all layers, whose numbers need not be said
  std::vector<std::size_t> layers;  ///< positions in the census; of kGlob one, unless everywhere
};

/// The layers of a model.
struct PatternPlaces {
  const ModuleCensus& census;
  std::uint64_t n_main_layers = 0;  ///< 0: not known
  /// vLLM inserts a component behind the number of an MTP layer.
  [[nodiscard]] bool is_mtp(std::size_t layer) const {
    return n_main_layers != 0 && census.layers()[layer] >= n_main_layers;
  }
  /// SGLang makes a model of this layer.
  [[nodiscard]] bool is_draft(std::size_t layer) const {
    return n_main_layers != 0 && census.layers()[layer] == n_main_layers &&
           census.prefix() == kModelLayers;
  }
};

/// Everything but letters, digits and `_` is escaped.
std::string escaped(std::string_view path) {
  std::string text;
  for (const char c : path) {
    const bool is_word = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') ||
                         (c >= 'A' && c <= 'Z') || c == '_' || (c & 0x80) != 0;
    if (c == '#') {
      text += "\\d+";
    } else if (is_word) {
      text += c;
    } else {
      text += '\\';
      text += c;
    }
  }
  return text;
}

std::string regex_text(const LayeredSelector& pattern, const PatternPlaces& places) {
  const Selector& selector = *pattern.selector;
  const ModuleCensus& census = places.census;
  const std::string path = escaped(selector.path);
  const char* end = selector.reach == Reach::kParent ? ".*" : "$";
  if (pattern.is_everywhere) {
    if (selector.reach == Reach::kLayer) return "re:.*layers\\.\\d+\\..*";
    return fmt::format("re:.*\\.{}{}", path, end);
  }
  const std::size_t first = pattern.layers.front();
  const bool is_one_module = selector.reach == Reach::kLeaf && pattern.layers.size() == 1 &&
                             selector.path.find('#') == std::string::npos;
  if (is_one_module && !places.is_mtp(first))
    return fmt::format("{}{}.{}", census.prefix(), census.layers()[first], selector.path);
  std::vector<std::uint32_t> numbers;
  for (const std::size_t layer : pattern.layers) numbers.push_back(census.layers()[layer]);
  std::string layers = numbers.size() == 1 ? fmt::format("layers\\.{}", numbers.front())
                                           : fmt::format("layers\\.({})", fmt::join(numbers, "|"));
  if (std::ranges::any_of(pattern.layers, [&](std::size_t l) { return places.is_draft(l); }))
    layers = fmt::format("({}|model\\.decoder)", layers);
  if (selector.reach == Reach::kLayer) return fmt::format("re:.*{}\\..*", layers);
  return fmt::format("re:.*{}\\.(.*\\.)?{}{}", layers, path, end);
}

/// Layer 6 beside layer 61.
bool is_start_of_another(std::uint32_t number, const ModuleCensus& census) {
  const std::string digits = std::to_string(number);
  return std::any_of(census.layers().begin(), census.layers().end(), [&](std::uint32_t other) {
    return other != number && std::to_string(other).starts_with(digits);
  });
}

std::string glob_text(const LayeredSelector& pattern, const PatternPlaces& places) {
  const Selector& selector = *pattern.selector;
  const ModuleCensus& census = places.census;
  std::string path = selector.path;
  std::replace(path.begin(), path.end(), '#', '*');
  const char* end = selector.reach == Reach::kParent ? "*" : "";
  if (pattern.is_everywhere) {
    if (selector.reach == Reach::kLayer) return census.prefix() + "*";
    return fmt::format("*.{}{}", path, end);
  }
  const std::size_t layer = pattern.layers.front();
  const std::uint32_t number = census.layers()[layer];
  const std::string stem = fmt::format("{}{}", census.prefix(), number);
  if (selector.reach == Reach::kLayer)
    return stem + (is_start_of_another(number, census) ? ".*" : "*");
  return fmt::format("{}{}.{}{}", stem, places.is_mtp(layer) ? "*" : "", path, end);
}

/// The glob of an MTP layer for the model that SGLang makes of it, or empty.
std::string draft_glob_text(const LayeredSelector& pattern, const PatternPlaces& places) {
  if (pattern.is_everywhere || !places.is_draft(pattern.layers.front())) return {};
  if (pattern.selector->reach == Reach::kLayer) return std::string(kDecoder).append("*");
  std::string path = pattern.selector->path;
  std::replace(path.begin(), path.end(), '#', '*');
  const char* end = pattern.selector->reach == Reach::kParent ? "*" : "";
  return fmt::format("{}*{}{}", kDecoder, path, end);
}

struct Candidate : LayeredSelector {
  std::vector<std::size_t> cells;  ///< layer * n_tails + tail, of the class, ascending
};

bool is_fused_member(std::string_view tail) {
  constexpr std::array<std::string_view, 7> kMembers = {
      "gate_proj", "up_proj", "q_a_proj", "kv_a_proj_with_mqa", "q_proj", "k_proj", "v_proj"};
  const std::string_view leaf = tail.substr(tail.rfind('.') + 1);
  return std::find(kMembers.begin(), kMembers.end(), leaf) != kMembers.end();
}

/// What a pattern for the selector matches behind the layer: a parent wherever a component starts
/// like it, a leaf at the end.
bool matches_tail(const Selector& selector, std::string_view tail) {
  if (selector.reach == Reach::kLayer) return true;
  const std::string dotted = fmt::format(".{}", tail);
  const std::string path = fmt::format(".{}", selector.path);
  return selector.reach == Reach::kParent ? dotted.find(path) != std::string::npos
                                          : dotted.ends_with(path);
}

std::vector<Selector> list_selectors(const ModuleCensus& census) {
  std::vector<Selector> selectors = {{Reach::kLayer, ""}};
  std::vector<std::string> parents;
  for (const std::string& tail : census.tails()) {
    selectors.push_back({Reach::kLeaf, tail});
    for (std::size_t dot = tail.find('.'); dot != std::string::npos;
         dot = tail.find('.', dot + 1)) {
      std::string parent = tail.substr(0, dot);
      if (!parent.ends_with('#')) parents.push_back(std::move(parent));
    }
  }
  sort_unique(parents);
  for (std::string& parent : parents) selectors.push_back({Reach::kParent, std::move(parent)});
  return selectors;
}

class Cover {
 public:
  Cover(const ModuleCensus& census, std::uint32_t cls, std::uint64_t n_main_layers,
        PatternSyntax syntax)
      : census_(census),
        cls_(cls),
        places_{.census = census, .n_main_layers = n_main_layers},
        syntax_(syntax),
        selectors_(list_selectors(census)) {}

  /// Texts of the chosen patterns; `left` receives the cells that none of them covers.
  std::vector<std::string> choose(std::vector<std::size_t>& left) {
    std::vector<Candidate> candidates;
    for (const Selector& selector : selectors_) add_candidates(selector, candidates);
    std::vector<bool> is_open(census_.layers().size() * census_.tails().size(), false);
    for (std::size_t i = 0; i < is_open.size(); ++i) is_open[i] = class_of(i) == cls_;
    std::vector<const Candidate*> chosen;
    while (const Candidate* best = best_of(candidates, is_open)) {
      chosen.push_back(best);
      for (const std::size_t cell : best->cells) is_open[cell] = false;
    }
    drop_redundant(chosen);
    for (std::size_t i = 0; i < is_open.size(); ++i) {
      if (is_open[i]) left.push_back(i);
    }
    std::vector<std::string> texts;
    for (const Candidate* candidate : chosen) {
      if (syntax_ == PatternSyntax::kRegex) {
        texts.push_back(regex_text(*candidate, places_));
        continue;
      }
      texts.push_back(glob_text(*candidate, places_));
      std::string draft = draft_glob_text(*candidate, places_);
      if (!draft.empty()) texts.push_back(std::move(draft));
    }
    return texts;
  }

 private:
  [[nodiscard]] std::uint32_t class_of(std::size_t cell) const {
    return census_.cell(cell / census_.tails().size(), cell % census_.tails().size());
  }

  /// Whether a module outside the table and of another class would be matched in this layer (in any
  /// for nothing).
  [[nodiscard]] bool hits_outside(const Selector& selector,
                                  std::optional<std::uint32_t> layer) const {
    return std::any_of(
        census_.outside().begin(), census_.outside().end(), [&](const ClassedModule& module) {
          if (module.cls == cls_) return false;
          const auto split = split_layer(module.name);
          if (layer) return split && split->layer == *layer && matches_tail(selector, split->tail);
          if (selector.reach == Reach::kLayer) return split.has_value();
          return matches_tail(selector, split ? split->tail : module.name);
        });
  }

  void add_candidates(const Selector& selector, std::vector<Candidate>& candidates) const {
    const std::size_t n_tails = census_.tails().size();
    std::vector<bool> is_matched(n_tails);
    for (std::size_t t = 0; t < n_tails; ++t)
      is_matched[t] = matches_tail(selector, census_.tails()[t]);
    Candidate some;
    some.selector = &selector;
    bool is_clean = true;
    for (std::size_t l = 0; l < census_.layers().size(); ++l) {
      std::vector<std::size_t> cells;
      bool layer_is_clean = true;
      for (std::size_t t = 0; t < n_tails; ++t) {
        const std::uint32_t cell = census_.cell(l, t);
        if (!is_matched[t] || cell == ModuleCensus::kAbsent) continue;
        if (cell == cls_) cells.push_back(l * n_tails + t);
        layer_is_clean = layer_is_clean && cell == cls_;
      }
      is_clean = is_clean && layer_is_clean;
      if (cells.empty() || !layer_is_clean || hits_outside(selector, census_.layers()[l])) continue;
      some.layers.push_back(l);
      some.cells.insert(some.cells.end(), cells.begin(), cells.end());
    }
    if (some.layers.empty()) return;
    if (is_clean && !hits_outside(selector, std::nullopt) && may_be_everywhere(selector)) {
      Candidate everywhere = some;
      everywhere.is_everywhere = true;
      candidates.push_back(std::move(everywhere));
    } else if (syntax_ == PatternSyntax::kRegex) {
      candidates.push_back(std::move(some));
      return;
    }
    if (syntax_ == PatternSyntax::kGlob) add_single_layers(some, candidates);
  }

  [[nodiscard]] bool may_be_everywhere(const Selector& selector) const {
    return syntax_ == PatternSyntax::kRegex || selector.reach != Reach::kLeaf ||
           !is_fused_member(selector.path);
  }

  /// A glob has no way to name several layers.
  void add_single_layers(const Candidate& some, std::vector<Candidate>& candidates) const {
    const std::size_t n_tails = census_.tails().size();
    for (const std::size_t layer : some.layers) {
      Candidate single;
      single.selector = some.selector;
      single.layers = {layer};
      for (const std::size_t cell : some.cells) {
        if (cell / n_tails == layer && is_in_glob(*some.selector, layer, cell % n_tails))
          single.cells.push_back(cell);
      }
      if (!single.cells.empty()) candidates.push_back(std::move(single));
    }
  }

  /// Globs of one main layer are anchored behind its number.
  [[nodiscard]] bool is_in_glob(const Selector& selector, std::size_t layer,
                                std::size_t tail) const {
    const std::string_view name = census_.tails()[tail];
    if (selector.reach == Reach::kLayer || places_.is_mtp(layer)) return true;
    return selector.reach == Reach::kParent ? name.starts_with(selector.path)
                                            : name == selector.path;
  }

  static const Candidate* best_of(const std::vector<Candidate>& candidates,
                                  const std::vector<bool>& is_open) {
    const Candidate* best = nullptr;
    using Rank = std::tuple<std::size_t, bool, int, std::size_t>;
    Rank best_rank{};
    for (const Candidate& candidate : candidates) {
      const auto n =
          static_cast<std::size_t>(std::count_if(candidate.cells.begin(), candidate.cells.end(),
                                                 [&](std::size_t cell) { return is_open[cell]; }));
      if (n == 0) continue;
      // Among equals, the one that says less of layers, then the one that names its module best.
      const int reach = candidate.is_everywhere ? -static_cast<int>(candidate.selector->reach)
                                                : static_cast<int>(candidate.selector->reach);
      const Rank rank{n, candidate.is_everywhere, reach, candidate.selector->path.size()};
      if (best == nullptr || rank > best_rank) {
        best = &candidate;
        best_rank = rank;
      }
    }
    return best;
  }

  static void drop_redundant(std::vector<const Candidate*>& chosen) {
    for (std::size_t i = 0; i < chosen.size();) {
      const bool is_covered =
          std::all_of(chosen[i]->cells.begin(), chosen[i]->cells.end(), [&](std::size_t cell) {
            return std::any_of(chosen.begin(), chosen.end(), [&](const Candidate* other) {
              return other != chosen[i] &&
                     std::binary_search(other->cells.begin(), other->cells.end(), cell);
            });
          });
      if (is_covered) {
        chosen.erase(chosen.begin() + static_cast<std::ptrdiff_t>(i));
      } else {
        ++i;
      }
    }
  }

  const ModuleCensus& census_;
  std::uint32_t cls_;
  PatternPlaces places_;
  PatternSyntax syntax_;
  std::vector<Selector> selectors_;
};

/// A list that takes in too little or too much would make an engine load garbage.
void require_in(const ModuleList& list, const ClassedModule& module, std::uint32_t cls) {
  const bool is_wanted = module.cls == cls;
  if (is_wanted ? list.covers_for_all(module.name) : !list.covers_for_any(module.name)) return;
  throw Error(ErrorCode::kUnsupported,
              fmt::format("this dialect has no list of modules that {} '{}' and is right for the "
                          "others (give it the scheme of its neighbours)",
                          is_wanted ? "names" : "leaves out", module.name));
}

void require_exact(std::span<const ClassedModule> modules, const ModuleCensus& census,
                   std::uint32_t cls, const ModuleList& list) {
  const auto require = [&](const ClassedModule& module) { require_in(list, module, cls); };
  for (const ClassedModule& module : census.outside()) require(module);
  // One module per cell is enough: an expert's number makes no difference.
  std::set<std::pair<std::uint32_t, std::string>> seen;
  for (const ClassedModule& module : modules) {
    auto split = split_layer(module.name);
    if (!split || split->prefix != census.prefix()) continue;
    if (seen.emplace(split->layer, std::move(split->tail)).second) require(module);
  }
}

void refuse_mixed_experts(const ModuleCensus& census) {
  for (std::size_t l = 0; l < census.layers().size(); ++l) {
    for (std::size_t t = 0; t < census.tails().size(); ++t) {
      if (census.cell(l, t) != ModuleCensus::kMixed) continue;
      throw Error(ErrorCode::kUnsupported,
                  fmt::format("experts '{}{}.{}' are in several schemes, but engines of this "
                              "dialect load the experts of a layer as one (give them one scheme)",
                              census.prefix(), census.layers()[l], census.tails()[t]));
    }
  }
}

}  // namespace

std::string draft_module_name(std::string_view module, std::uint64_t n_main_layers) {
  const std::string layer = fmt::format("{}{}.", kModelLayers, n_main_layers);
  if (n_main_layers == 0 || !module.starts_with(layer)) return {};
  const std::string_view rest = module.substr(layer.size());
  if (!rest.starts_with("self_attn.") && !rest.starts_with("mlp.")) return {};
  return std::string(kDecoder).append(rest);
}

std::vector<std::string> module_patterns(std::span<const ClassedModule> modules, std::uint32_t cls,
                                         std::uint64_t n_main_layers, PatternSyntax syntax) {
  const ModuleCensus census(modules);
  if (syntax == PatternSyntax::kGlob) refuse_mixed_experts(census);
  std::vector<std::size_t> left;
  std::vector<std::string> patterns = Cover(census, cls, n_main_layers, syntax).choose(left);
  const ModuleList chosen(patterns, syntax);
  for (const ClassedModule& module : census.outside()) {
    if (module.cls == cls && !chosen.covers_for_all(module.name)) patterns.push_back(module.name);
  }
  if (!left.empty()) {
    for (const ClassedModule& module : modules) {
      const auto at = census.cell_of(module.name);
      if (at && std::binary_search(left.begin(), left.end(), *at)) patterns.push_back(module.name);
    }
  }
  // Modules that were named have two names.
  std::vector<ClassedModule> drafts;
  for (const ClassedModule& module : modules) {
    std::string name = draft_module_name(module.name, n_main_layers);
    if (!name.empty()) drafts.push_back({std::move(name), module.cls});
  }
  const ModuleList named(patterns, syntax);
  for (const ClassedModule& module : drafts) {
    if (module.cls == cls && !named.covers_for_all(module.name)) patterns.push_back(module.name);
  }
  sort_unique(patterns);
  const ModuleList list(patterns, syntax);
  require_exact(modules, census, cls, list);
  for (const ClassedModule& module : drafts) require_in(list, module, cls);
  return patterns;
}

}  // namespace ingot::formats
