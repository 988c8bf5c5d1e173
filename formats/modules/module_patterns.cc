#include "formats/modules/module_patterns.h"

#include <algorithm>
#include <map>
#include <set>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "formats/base/error.h"
#include "formats/modules/module_census.h"
#include "formats/modules/module_list.h"
#include "formats/modules/mtp_names.h"

namespace ingot::formats {

namespace {

/// Everything but letters, digits and `_` is escaped; `#` is the number of an expert.
std::string pattern_escaped(std::string_view path) {
  std::string text;
  for (const char c : path) {
    const bool is_word = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') ||
                         (c >= 'A' && c <= 'Z') || c == '_' || (c & 0x80) != 0;
    if (!is_word && c != '#') text += '\\';
    text += c == '#' ? "\\d+" : std::string(1, c);
  }
  return text;
}

/// Names as a tree of their components.
struct NameTree {
  std::map<std::string, NameTree, std::less<>> below;
  std::set<std::uint32_t> classes;  ///< classes of all modules at and below this component

  void add(std::string_view name, std::uint32_t cls) {
    classes.insert(cls);
    if (name.empty()) return;
    const std::string_view word = name.substr(0, name.find('.'));
    below[std::string(word)].add(name.substr(std::min(name.size(), word.size() + 1)), cls);
  }

  /// Paths of the modules of `cls` below this component, whose path with a dot is `start`: of a
  /// module, or with a star of all that is below.
  void append(const std::string& start, std::uint32_t cls, std::vector<std::string>& paths) const {
    for (const auto& [word, tree] : below) {
      if (!tree.classes.contains(cls)) continue;
      const std::string path = start + word;
      const bool is_whole = tree.below.size() != 1 || tree.below.contains("#");
      if (tree.classes.size() != 1 || !is_whole) {
        tree.append(path + ".", cls, paths);
      } else if (tree.below.empty()) {
        paths.push_back(path);
      } else {
        paths.push_back(path + (is_longer_in_another(word, cls) ? ".*" : "*"));
      }
    }
  }

  /// Paths of the modules of `cls` in a layer, which is never taken whole.
  [[nodiscard]] std::vector<std::string> paths_in_layer(std::uint32_t cls) const {
    std::vector<std::string> paths;
    append("", cls, paths);
    return paths;
  }

 private:
  /// True if a longer name of another class begins with `word`, as `shared_expert_gate` does.
  [[nodiscard]] bool is_longer_in_another(std::string_view word, std::uint32_t cls) const {
    for (auto at = below.upper_bound(word); at != below.end() && at->first.starts_with(word);
         ++at) {
      if (at->second.classes != std::set{cls}) return true;
    }
    return false;
  }
};

/// compressed-tensors: an expression for each path.
class Expressions {
 public:
  Expressions(const ModuleCensus& census, std::uint32_t cls, std::uint64_t n_main_layers)
      : census_(census), cls_(cls), n_main_layers_(n_main_layers) {}

  void append(std::vector<std::string>& entries) const {
    std::map<std::string, std::vector<std::uint32_t>> layers_of;
    for (std::size_t l = 0; l < census_.layers().size(); ++l) {
      NameTree layer;
      for (std::size_t t = 0; t < census_.tails().size(); ++t) {
        if (const std::uint32_t cell = census_.cell(l, t); cell != ModuleCensus::kAbsent)
          layer.add(census_.tails()[t], cell);
      }
      for (const std::string& path : layer.paths_in_layer(cls_))
        layers_of[path].push_back(census_.layers()[l]);
    }
    for (const auto& [path, layers] : layers_of) entries.push_back(expression(path, layers));
  }

 private:
  /// True if an expression without a prefix takes in a module with this tail.
  static bool takes_in(std::string_view path, std::string_view tail) {
    const bool is_parent = path.ends_with('*');
    if (is_parent) path.remove_suffix(1);
    const std::string end = fmt::format(".{}", path), whole = fmt::format(".{}", tail);
    return is_parent ? whole.find(end) != std::string::npos : whole.ends_with(end);
  }

  [[nodiscard]] bool is_everywhere(std::string_view path) const {
    for (std::size_t t = 0; t < census_.tails().size(); ++t) {
      if (!takes_in(path, census_.tails()[t])) continue;
      for (std::size_t l = 0; l < census_.layers().size(); ++l) {
        const std::uint32_t cell = census_.cell(l, t);
        if (cell != ModuleCensus::kAbsent && cell != cls_) return false;
      }
    }
    return !takes_in_outside(path);
  }

  [[nodiscard]] bool takes_in_outside(std::string_view path) const {
    return std::ranges::any_of(census_.outside(), [&](const ClassedModule& module) {
      const auto split = split_layer(module.name);
      return module.cls != cls_ && takes_in(path, split ? split->tail : module.name);
    });
  }

  [[nodiscard]] std::string expression(std::string_view path,
                                       std::span<const std::uint32_t> layers) const {
    const bool is_parent = path.ends_with('*');
    const std::string end = is_parent ? pattern_escaped(path.substr(0, path.size() - 1)) + ".*"
                                      : pattern_escaped(path) + "$";
    if (is_everywhere(path)) return fmt::format("re:.*\\.{}", end);
    // vLLM inserts a component behind the number of an MTP layer, SGLang makes a model of the
    // first.
    const bool is_mtp = n_main_layers_ != 0 && layers.back() >= n_main_layers_;
    const bool is_one = layers.size() == 1;
    // Engines put `model.` before the names of a model that was saved without it.
    const bool is_bare = census_.prefix() == "layers.";
    if (is_one && !is_mtp && !is_bare && path.find_first_of("#*") == std::string_view::npos)
      return fmt::format("{}{}.{}", census_.prefix(), layers.front(), path);
    std::string where = takes_in_outside(path) ? pattern_escaped(census_.prefix()) : ".*layers\\.";
    where += is_one ? std::to_string(layers.front()) : fmt::format("({})", fmt::join(layers, "|"));
    if (is_mtp && std::ranges::binary_search(layers, n_main_layers_))
      where = fmt::format("({}|.*model\\.decoder)", where);
    return fmt::format("re:{}\\.{}{}", where, is_mtp ? "(.*\\.)?" : "", end);
  }

  const ModuleCensus& census_;
  std::uint32_t cls_;
  std::uint64_t n_main_layers_;
};

/// ModelOpt: a glob for each path of each layer, under the engines' names of these too.
void append_globs(std::span<const ClassedModule> modules, std::uint32_t cls,
                  std::vector<std::string>& entries) {
  std::map<std::string, NameTree> layers;
  for (const ClassedModule& module : modules) {
    constexpr std::string_view kDraft = "model.decoder.", kAnyLayer = "layers.0.";
    const bool is_draft = module.name.starts_with(kDraft);
    const std::string name =
        is_draft ? std::string(kAnyLayer).append(module.name, kDraft.size()) : module.name;
    const auto split = split_layer(name);
    if (split) {
      layers[is_draft ? "model.decoder" : fmt::format("{}{}", split->prefix, split->layer)].add(
          split->tail, module.cls);
    } else if (module.cls == cls) {
      entries.push_back(module.name);
    }
  }
  for (const auto& [stem, layer] : layers) {
    for (std::string path : layer.paths_in_layer(cls)) {
      std::ranges::replace(path, '#', '*');
      entries.push_back(fmt::format("{}.{}", stem, path));
    }
  }
}

/// One module of each kind, since an expert's number makes no difference where all experts are of
/// one class.
std::vector<ClassedModule> kinds_of(std::span<const ClassedModule> modules,
                                    const ModuleCensus& census) {
  std::vector<ClassedModule> kinds(census.outside().begin(), census.outside().end());
  std::set<std::size_t> seen;
  for (const ClassedModule& module : modules) {
    const auto cell = census.cell_of(module.name);
    if (cell && seen.insert(*cell).second) kinds.push_back(module);
  }
  return kinds;
}

/// A list that takes in too little or too much would make an engine load garbage.
void require_exact(std::span<const ClassedModule> modules, std::uint32_t cls,
                   const ModuleList& list) {
  for (const ClassedModule& module : modules) {
    const bool is_wanted = module.cls == cls;
    if (is_wanted ? list.covers_for_all(module.name) : !list.covers_for_any(module.name)) continue;
    throw Error(ErrorCode::kUnsupported,
                "no list of this dialect can {} '{}' without a change for others (give it the "
                "scheme of its neighbours)",
                is_wanted ? "name" : "leave out", module.name);
  }
}

void refuse_mixed_experts(const ModuleCensus& census) {
  for (std::size_t l = 0; l < census.layers().size(); ++l) {
    for (std::size_t t = 0; t < census.tails().size(); ++t) {
      if (census.cell(l, t) != ModuleCensus::kMixed) continue;
      throw Error(ErrorCode::kUnsupported,
                  "experts '{}{}.{}' are in several schemes, but engines of this dialect load the "
                  "experts of a layer as one (give them one scheme)",
                  census.prefix(), census.layers()[l], census.tails()[t]);
    }
  }
}

}  // namespace

std::vector<std::string> module_patterns(std::span<const ClassedModule> modules, std::uint32_t cls,
                                         std::uint64_t n_main_layers, PatternSyntax syntax) {
  const ModuleCensus census(modules);
  const std::vector<ClassedModule> stored = kinds_of(modules, census);
  std::vector<ClassedModule> named = stored;
  for (const ClassedModule& module : stored) {
    for (std::string& name : mtp_names(module.name, n_main_layers).all())
      named.push_back({std::move(name), module.cls});
  }
  std::vector<std::string> entries;
  if (syntax == PatternSyntax::kGlob) {
    refuse_mixed_experts(census);
    append_globs(named, cls, entries);
  } else {
    Expressions(census, cls, n_main_layers).append(entries);
    const ModuleList known(entries, syntax);
    for (const ClassedModule& module : named) {
      const bool is_open = module.cls == cls && !known.covers_for_all(module.name);
      if (is_open) entries.push_back(module.name);
    }
  }
  sort_unique(entries);
  require_exact(named, cls, ModuleList(entries, syntax));
  return entries;
}

}  // namespace ingot::formats
