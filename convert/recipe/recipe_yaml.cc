#include <algorithm>
#include <array>
#include <filesystem>
#include <span>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "convert/recipe/composition.h"
#include "convert/recipe/recipe.h"
#include "formats/base/error.h"
#include "formats/composed.h"
#include "formats/text/spelling.h"
#include "formats/yaml/yaml.h"

namespace ingot::convert {

using formats::Yaml;

namespace {

constexpr std::size_t kMaxRules = 10'000;
constexpr std::size_t kMaxGivers = 64;
constexpr std::size_t kMaxNameLength = 32;
constexpr std::array<std::string_view, 6> kComposeKeys = {"base",       "sources", "overlays",
                                                          "side-files", "fused",   kEditsName};

std::vector<std::string_view> keys(bool composes) {
  std::vector<std::string_view> keys = {"rules", "allow", "quantize-attention", "gptq",
                                        "zero-points"};
  if (composes) keys.insert(keys.end(), kComposeKeys.begin(), kComposeKeys.end());
  for (const RecipeOption& option : recipe_options()) keys.push_back(option.name.substr(2));
  return keys;
}

/// Takes the giver of a rule's tensors, which the recipe must name.
void read_from(const Yaml& row, const Composition& composition, Rule& rule) {
  const Yaml* from = row.find("from");
  if (from == nullptr) return;
  std::vector<std::string_view> names;
  for (const NamedDirectory& giver : composition.givers)
    if (giver.kind == GiverKind::kBase || giver.kind == GiverKind::kSource)
      names.push_back(giver.name);
  rule.from = from->text("from");
  if (std::ranges::find(names, rule.from) == names.end())
    from->refuse("no source '{}' (the recipe has {}){}", rule.from, fmt::join(names, ", "),
                 did_you_mean(rule.from, names));
}

void read_rules(const Yaml& rules, std::string_view where, const Composition* composition,
                Recipe& recipe) {
  const std::span<const Yaml> rows = rules.list("rules");
  if (rows.size() > kMaxRules) rules.refuse("more than {} rules", kMaxRules);
  for (const Yaml& row : rows) {
    if (!row.is_map()) row.refuse("a rule is not a map of match and scheme");
    const Yaml* match = row.find("match");
    const Yaml* scheme = row.find("scheme");
    const Yaml* from = row.find("from");
    if (from != nullptr && composition == nullptr)
      row.refuse("`from` belongs to a recipe of several sources (ingot compose RECIPE OUT)");
    row.require_keys(composition != nullptr
                         ? std::vector<std::string_view>{"match", "from", "scheme"}
                         : std::vector<std::string_view>{"match", "scheme"});
    if (match == nullptr || (scheme == nullptr && from == nullptr))
      row.refuse("a rule needs match and {}", composition != nullptr ? "from or scheme" : "scheme");
    const std::string& selector = match->text("match");
    const std::string word = scheme != nullptr ? scheme->text("scheme") : "keep";
    row.at_line([&] {
      Rule& rule = recipe.rules.emplace_back(make_rule(selector, word, RuleOrigin::kRecipe));
      rule.file = where;
      rule.line = row.line();
    });
    if (composition != nullptr) read_from(row, *composition, recipe.rules.back());
  }
}

void read_allowances(const Yaml& allow, Recipe& recipe) {
  if (!allow.is_map()) allow.refuse("allow is not a map from kind to patterns");
  allow.require_keys(Allowances::kinds());
  for (const Yaml::Member& kind : allow.members("allow")) {
    for (const Yaml& pattern : kind.value.list(fmt::format("allow.{}", kind.key))) {
      const std::string text = kind.key + "=" + pattern.text("a pattern");
      pattern.at_line([&] { recipe.allow.add(text); });
    }
  }
}

void read_options(const Yaml& root, Recipe& recipe) {
  for (const RecipeOption& option : recipe_options()) {
    const std::string_view key = option.name.substr(2);
    const Yaml* value = root.find(key);
    if (value == nullptr) continue;
    const std::string& word = value->text(key);
    value->at_line([&] { take_option(option.name, word, recipe); });
    if (option.name == "--lora") recipe.choices.lora_line = value->line();
  }
  const auto read_switch = [&](std::string_view key, bool Choices::*choice) {
    const Yaml* value = root.find(key);
    if (value == nullptr) return;
    recipe.choices.*choice = value->boolean(key);
    if (recipe.choices.*choice) recipe.given.push_back(fmt::format("--{}", key));
  };
  read_switch("quantize-attention", &Choices::quantize_attention);
  read_switch("gptq", &Choices::gptq);
  read_switch("zero-points", &Choices::zero_points);
}

/// Adds a directory that the recipe names. Its name becomes a part of file names.
void add_giver(GiverKind kind, const std::string& name, const Yaml& path,
               Composition& composition) {
  const auto is_plain = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '_';
  };
  if (name.empty() || name.size() > kMaxNameLength || !std::ranges::all_of(name, is_plain))
    path.refuse("the name of a source is 1 to {} letters, digits, '-' and '_'", kMaxNameLength);
  if (kind != GiverKind::kEdits && name == kEditsName)
    path.refuse("'{}' is the name of the directory of edited values (take another)", name);
  if (std::ranges::find(composition.givers, name, &NamedDirectory::name) !=
      composition.givers.end())
    path.refuse("'{}' names two directories", name);
  if (composition.givers.size() >= kMaxGivers) path.refuse("more than {} directories", kMaxGivers);
  const std::string& text = path.text(name);
  if (text.empty() || text.find('\0') != std::string::npos)
    path.refuse("the path of '{}' is empty, or none", name);
  const std::filesystem::path folder = std::filesystem::path(composition.where).parent_path();
  composition.givers.push_back({.kind = kind,
                                .name = name,
                                .path = (folder / text).lexically_normal(),
                                .given = text,
                                .line = path.line()});
}

void read_composition(const Yaml& root, std::string_view where, Composition& composition) {
  composition.where = where;
  const Yaml* base = root.find("base");
  if (base == nullptr) root.refuse("a recipe of several sources needs `base: DIR`");
  add_giver(GiverKind::kBase, std::string(formats::kBaseGiver), *base, composition);
  const auto read_map = [&](std::string_view key, GiverKind kind) {
    const Yaml* directories = root.find(key);
    if (directories == nullptr) return;
    if (!directories->is_map())
      directories->refuse("{} is not a map from names to directories", key);
    for (const Yaml::Member& directory : directories->members(key))
      add_giver(kind, directory.key, directory.value, composition);
  };
  read_map("sources", GiverKind::kSource);
  read_map("overlays", GiverKind::kOverlay);
  if (const Yaml* edits = root.find("edits"))
    add_giver(GiverKind::kEdits, std::string(kEditsName), *edits, composition);
  const auto is_said = [&](std::string_view key, std::string_view word, std::string_view other) {
    const Yaml* value = root.find(key);
    if (value == nullptr) return false;
    const std::string& text = value->text(key);
    if (text != word && (other.empty() || text != other))
      value->refuse("{} '{}' is not {}{}{}", key, text, word, other.empty() ? "" : " or ", other);
    return text == word;
  };
  composition.takes_base_side_files = is_said("side-files", "base", "");
  composition.rescales = is_said("fused", "rescale", "refuse");
}

}  // namespace

void Composition::replace(std::string_view text) {
  const std::size_t equals = text.find('=');
  const std::string_view name = text.substr(0, equals);
  if (equals == std::string_view::npos || equals + 1 == text.size())
    throw Error(ErrorCode::kInvalidArgument, "--source '{}' is not NAME=DIR", text);
  const auto found = std::ranges::find(givers, name, &NamedDirectory::name);
  if (found == givers.end()) {
    std::vector<std::string_view> names;
    for (const NamedDirectory& giver : givers) names.push_back(giver.name);
    throw Error(ErrorCode::kInvalidArgument,
                "--source '{}': the recipe names no '{}' (it has {}){}", text, name,
                fmt::join(names, ", "), did_you_mean(name, names))
        .in_file(where);
  }
  found->path = std::filesystem::path(text.substr(equals + 1));
  found->given = found->path.string();
  found->line = 0;
}

Recipe parse_recipe(std::string_view yaml, std::string_view where, Composition* composition) {
  const Yaml root = formats::parse_yaml(yaml, where);
  try {
    Recipe recipe;
    if (root.is_null() && composition == nullptr) return recipe;
    if (!root.is_map()) root.refuse("a recipe is a map of to, mtp, rules, allow and so on");
    if (composition == nullptr && root.find("base") != nullptr)
      root.find("base")->refuse("a recipe of several sources: ingot compose RECIPE OUT takes it");
    root.require_keys(keys(composition != nullptr));
    if (composition != nullptr) read_composition(root, where, *composition);
    if (const Yaml* rules = root.find("rules")) read_rules(*rules, where, composition, recipe);
    if (const Yaml* allow = root.find("allow")) read_allowances(*allow, recipe);
    read_options(root, recipe);
    return recipe;
  } catch (Error& error) {
    error.in_file(where);
    throw;
  }
}

}  // namespace ingot::convert
