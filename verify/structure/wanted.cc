#include "verify/structure/wanted.h"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "formats/checkpoint/stored_facts.h"
#include "formats/family/roles.h"
#include "formats/json/json.h"

namespace ingot::verify {

using formats::Json;
using formats::json_member;
using formats::text_at;

namespace {

// True if a term of a selector is the whole name of the tensor, or has its role.
bool names(std::string_view term, const formats::LogicalTensor& tensor) {
  constexpr std::string_view kRole = "role:";
  if (!term.starts_with(kRole)) return term == tensor.name;
  const auto roles = formats::find_roles(term.substr(kRole.size()));
  return roles && roles->has(role_of(tensor));
}

}  // namespace

bool Wanted::narrows(const formats::LogicalTensor& tensor, formats::SchemeId to) const {
  if (narrower == to && formats::is_saved_wider(tensor, to)) return true;
  return std::ranges::any_of(plain_rules, [&](const auto& rule) {
    std::string_view rest = rule.first;
    bool is_named = false;
    while (!rest.empty() && !is_named) {
      const std::size_t end = std::min(rest.find('&'), rest.size());
      is_named = names(rest.substr(0, end), tensor);
      rest.remove_prefix(std::min(end + 1, rest.size()));
    }
    return is_named && rule.second == formats::scheme_facts(to).name;
  });
}

std::string Wanted::sentence() const {
  if (!is_recorded) {
    return "no ingot.json names the options of the conversion: codes of an unchanged scheme are "
           "assumed to be kept, and other values to be rounded once, from the source's (as without "
           "--via, --fp8-grid, --scales-from and rules that narrow)";
  }
  std::vector<std::string> words;
  if (via_bf16) words.emplace_back("--via bf16");
  if (!fp8_grid.empty()) words.push_back("--fp8-grid " + fp8_grid);
  if (has_given_scales) words.emplace_back("--scales-from");
  for (const auto& [selector, scheme] : plain_rules)
    words.push_back(fmt::format("--rule '{}={}'", selector, scheme));
  return words.empty() ? "" : fmt::format("judged as asked for: {}", fmt::join(words, ", "));
}

Wanted wanted_of(const std::optional<formats::Manifest>& manifest) {
  Wanted wanted;
  if (!manifest) return wanted;
  const Json& recipe = manifest->recipe;
  const Json& choices = json_member(recipe, "choices");
  wanted.is_recorded = recipe.is_object() && !recipe.empty();
  const bool is_weighted = !json_member(choices, "importance").is_null();
  wanted.search = is_weighted ? std::string(kWeightedSearch) : text_at(choices, "search");
  wanted.fp8_grid = text_at(choices, "fp8_grid");
  wanted.activations = text_at(choices, "activations");
  wanted.is_repair = !json_member(choices, "repair").is_null();
  wanted.via_bf16 = text_at(choices, "via") == "bf16";
  wanted.has_given_scales = !json_member(choices, "scales_from").is_null();
  const Json& rules = json_member(recipe, "rules");
  for (const Json& rule : rules.is_array() ? rules : Json::array()) {
    const std::string scheme = text_at(rule, "scheme");
    const auto id = formats::find_scheme(scheme);
    if (id && !formats::scheme_facts(*id).quantized && text_at(rule, "origin") != "default")
      wanted.plain_rules.emplace_back(text_at(rule, "match"), scheme);
  }
  return wanted;
}

}  // namespace ingot::verify
