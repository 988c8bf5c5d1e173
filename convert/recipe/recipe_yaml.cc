#include <array>
#include <span>

#include <fmt/format.h>

#include "convert/recipe/default_recipes.h"
#include "convert/recipe/engine_choice.h"
#include "convert/recipe/recipe.h"
#include "formats/base/error.h"
#include "formats/yaml/yaml.h"

namespace ingot::convert {

using formats::Yaml;

namespace {

constexpr std::size_t kMaxRules = 10'000;

constexpr std::array<std::string_view, 13> kKeys = {"to",
                                                    "mtp",
                                                    "rules",
                                                    "allow",
                                                    "for",
                                                    "dialect",
                                                    "activations",
                                                    "fp8-grid",
                                                    "search",
                                                    "group-size",
                                                    "via",
                                                    "quantize-attention",
                                                    "input-scale"};

void read_rules(const Yaml& rules, std::string_view where, Recipe& recipe) {
  const std::span<const Yaml> rows = rules.list("rules");
  if (rows.size() > kMaxRules) rules.refuse(fmt::format("more than {} rules", kMaxRules));
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

// Reads the choices of --dialect, --activations and so on from a recipe file.
void read_choices(const Yaml& root, Recipe& recipe) {
  Choices& choices = recipe.choices;
  const auto read = [&](const char* key, const auto& take) {
    const Yaml* value = root.find(key);
    if (value == nullptr) return;
    const std::string& text = value->text(key);
    value->at_line([&] { take(text); });
    recipe.given.push_back(fmt::format("--{}", key));
  };
  read("for", [&](const std::string& text) { choices.engine = parse_engine(text); });
  read("dialect", [&](const std::string& text) {
    choices.dialect = text;
    (void)require_dialect(text, "--dialect");
  });
  read("activations",
       [&](const std::string& text) { choices.activations = parse_activations(text); });
  read("fp8-grid", [&](const std::string& text) { choices.fp8_grid = parse_fp8_grid(text); });
  read("search", [&](const std::string& text) { choices.search = parse_scale_search(text); });
  read("group-size", [&](const std::string& text) { choices.group_size = parse_group_size(text); });
  read("via", [&](const std::string& text) { choices.via = parse_via(text); });
  if (const Yaml* value = root.find("quantize-attention")) {
    choices.quantize_attention = value->boolean("quantize-attention");
    recipe.given.emplace_back("--quantize-attention");
  }
  if (!choices.quantize_attention) std::erase(recipe.given, "--quantize-attention");
  read("input-scale",
       [&](const std::string& text) { choices.input_scale = parse_input_scale(text); });
}

}  // namespace

Recipe parse_recipe(std::string_view yaml, std::string_view where) {
  const Yaml root = formats::parse_yaml(yaml, where);
  try {
    Recipe recipe;
    if (root.is_null()) return recipe;
    if (!root.is_map()) root.refuse("a recipe is a map of to, mtp, rules, allow and so on");
    root.require_keys(kKeys);
    if (const Yaml* to = root.find("to")) {
      const std::string& word = to->text("to");
      to->at_line([&] { recipe.to = parse_scheme_word(word, "to"); });
    }
    if (const Yaml* mtp = root.find("mtp")) {
      const std::string& word = mtp->text("mtp");
      mtp->at_line([&] { recipe.mtp = parse_mtp_policy(word, "mtp"); });
    }
    if (const Yaml* rules = root.find("rules")) read_rules(*rules, where, recipe);
    if (const Yaml* allow = root.find("allow")) read_allowances(*allow, recipe);
    read_choices(root, recipe);
    return recipe;
  } catch (Error& error) {
    error.in_file(where);
    throw;
  }
}

}  // namespace ingot::convert
