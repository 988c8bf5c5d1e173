#include <array>
#include <span>

#include <fmt/format.h>

#include "convert/recipe/recipe.h"
#include "formats/base/error.h"
#include "formats/yaml/yaml.h"

namespace ingot::convert {

using formats::Yaml;

namespace {

constexpr std::size_t kMaxRules = 10'000;

std::vector<std::string_view> keys() {
  std::vector<std::string_view> keys = {"rules", "allow", "quantize-attention", "gptq",
                                        "zero-points"};
  for (const RecipeOption& option : recipe_options()) keys.push_back(option.name.substr(2));
  return keys;
}

void read_rules(const Yaml& rules, std::string_view where, Recipe& recipe) {
  const std::span<const Yaml> rows = rules.list("rules");
  if (rows.size() > kMaxRules) rules.refuse("more than {} rules", kMaxRules);
  for (const Yaml& row : rows) {
    if (!row.is_map()) row.refuse("a rule is not a map of match and scheme");
    row.require_keys(std::array<std::string_view, 2>{"match", "scheme"});
    const Yaml* match = row.find("match");
    const Yaml* scheme = row.find("scheme");
    if (match == nullptr || scheme == nullptr) row.refuse("a rule needs match and scheme");
    const std::string& selector = match->text("match");
    const std::string& word = scheme->text("scheme");
    row.at_line([&] {
      Rule& rule = recipe.rules.emplace_back(make_rule(selector, word, RuleOrigin::kRecipe));
      rule.file = where;
      rule.line = row.line();
    });
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

}  // namespace

Recipe parse_recipe(std::string_view yaml, std::string_view where) {
  const Yaml root = formats::parse_yaml(yaml, where);
  try {
    Recipe recipe;
    if (root.is_null()) return recipe;
    if (!root.is_map()) root.refuse("a recipe is a map of to, mtp, rules, allow and so on");
    root.require_keys(keys());
    if (const Yaml* rules = root.find("rules")) read_rules(*rules, where, recipe);
    if (const Yaml* allow = root.find("allow")) read_allowances(*allow, recipe);
    read_options(root, recipe);
    return recipe;
  } catch (Error& error) {
    error.in_file(where);
    throw;
  }
}

}  // namespace ingot::convert
