#include <algorithm>
#include <charconv>
#include <map>

#include "formats/family/family.h"
#include "formats/family/rule_scope.h"

// A name is turned into its pattern (numbers behind `layers`, `mtp` and `experts` become marks),
// and the pattern is looked up: one binary search per name instead of a comparison with every row.

namespace ingot::formats {
namespace {

/// A decimal number as our names have it: digits only, no leading zero, below 2^32.
std::optional<std::uint32_t> number_of(std::string_view text) {
  if (text.empty() || (text.size() > 1 && text.front() == '0')) return std::nullopt;
  std::uint32_t value = 0;
  const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (failure != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

struct NumberedName {
  std::string pattern;
  std::optional<std::uint32_t> layer, mtp, expert;
};

NumberedName split_numbers(std::string_view name) {
  NumberedName result;
  result.pattern.reserve(name.size() + 8);
  std::string_view previous;
  while (true) {
    const std::size_t dot = name.find('.');
    const std::string_view component = name.substr(0, dot);
    const auto number = number_of(component);
    if (number && previous == "layers" && !result.layer) {
      result.layer = number;
      result.pattern += "{layer}";
    } else if (number && previous == "mtp" && !result.layer && !result.mtp) {
      result.mtp = number;
      result.pattern += "{mtp}";
    } else if (number && previous == "experts" && !result.expert) {
      result.expert = number;
      result.pattern += "{expert}";
    } else {
      result.pattern += component;
    }
    if (dot == std::string_view::npos) return result;
    result.pattern += '.';
    previous = component;
    name.remove_prefix(dot + 1);
  }
}

}  // namespace

NameGrammar::NameGrammar(const Family& family, const ModelConfig& config) : config_(&config) {
  std::map<std::string, std::vector<const TensorRule*>> sorted;
  for (const TensorRule& rule : family.rules) sorted[std::string(rule.pattern)].push_back(&rule);
  by_pattern_.assign(sorted.begin(), sorted.end());
}

std::optional<NameGrammar::Match> NameGrammar::match(std::string_view name) const {
  // A name that holds our marks would look like a pattern.
  if (name.find('{') != std::string_view::npos) return std::nullopt;
  NumberedName numbered = split_numbers(name);
  const auto found =
      std::lower_bound(by_pattern_.begin(), by_pattern_.end(), numbered.pattern,
                       [](const auto& entry, const std::string& key) { return entry.first < key; });
  if (found == by_pattern_.end() || found->first != numbered.pattern) return std::nullopt;
  if (numbered.expert && *numbered.expert >= config_->n_routed_experts) return std::nullopt;
  if (numbered.mtp) {
    // Counted from 0 in the name, behind the main layers everywhere else.
    const std::uint64_t layer = config_->num_hidden_layers + *numbered.mtp;
    if (layer >= layer_count(*config_)) return std::nullopt;
    numbered.layer = static_cast<std::uint32_t>(layer);
  }
  for (const TensorRule* rule : found->second) {
    if (!scope_holds(rule->scope, *config_, numbered.layer)) continue;
    if (promise_of(rule->presence, *config_, numbered.layer) == Promise::kForbidden) continue;
    return Match{.rule = rule, .layer = numbered.layer, .expert = numbered.expert};
  }
  return std::nullopt;
}

}  // namespace ingot::formats
