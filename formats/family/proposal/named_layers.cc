#include "formats/family/proposal/named_layers.h"

#include <algorithm>
#include <cctype>
#include <map>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "formats/base/words.h"
#include "formats/family/family.h"
#include "formats/family/family_check.h"
#include "formats/family/rule_scope.h"
#include "formats/family/text_names.h"

namespace ingot::formats {
namespace {

/// True if a family can name it: the words between dots have only letters, digits, _ and -.
bool can_be_named(std::string_view name) {
  return !name.empty() && name.front() != '.' && name.back() != '.' &&
         name.find("..") == std::string_view::npos && std::ranges::all_of(name, [](char c) {
           return c == '.' || c == '_' || c == '-' || std::isalnum(static_cast<unsigned char>(c));
         });
}

}  // namespace

std::vector<std::string> split(std::string_view list, std::string_view between) {
  std::vector<std::string> parts;
  while (!list.empty()) {
    const std::size_t end = std::min(list.find(between), list.size());
    parts.emplace_back(list.substr(0, end));
    list.remove_prefix(std::min(end + between.size(), list.size()));
  }
  return parts;
}

void mark_expert(std::vector<std::string>& words) {
  for (std::size_t i = 1; i < words.size(); ++i) {
    if (number_from(words[i]) && words[i - 1].find("expert") != std::string::npos) {
      words[i] = kExpertMark;
      return;
    }
  }
}

std::string NumberedWords::prefix() const {
  const auto begin = words.begin();
  return fmt::format("{}.", fmt::join(begin, begin + static_cast<std::ptrdiff_t>(at), "."));
}

NamedLayers::NamedLayers(const ModelConfig& config, std::span<const std::string_view> names)
    : config_(config) {
  struct Layers {
    std::set<std::string> numbers;
    std::size_t n_tensors = 0;
  };
  std::map<std::string, Layers> found;
  for (const std::string_view stored : names) {
    const auto name = words_of(stored);
    if (!name || !name->is_numbered || name->is_mtp) continue;
    Layers& layers = found[name->prefix()];
    layers.numbers.insert(name->words[name->at]);
    ++layers.n_tensors;
  }
  const auto likeness = [&](const auto& entry) {
    const std::size_t n = entry.second.numbers.size();
    const bool is_as_said = n == config.num_hidden_layers || n == layer_count(config);
    return std::pair(is_as_said, entry.second.n_tensors);
  };
  const auto main = std::ranges::max_element(found, std::less<>(), likeness);
  if (main == found.end()) return;
  main_ = main->first;
  for (const auto& [prefix, layers] : found) {
    const std::size_t shared =
        static_cast<std::size_t>(std::ranges::mismatch(prefix, main_).in1 - prefix.begin());
    if (shared < prefix.size() && shared < main_.size())
      towers_.insert(prefix.substr(0, prefix.find('.', shared) + 1));
  }
}

std::optional<NumberedWords> NamedLayers::words_of(std::string_view stored) const {
  if (shared_rule(stored) != nullptr) return std::nullopt;
  const std::string name = text_model_name(stored, config_.text);
  if (!can_be_named(name)) return std::nullopt;
  NumberedWords found{.words = split(name, ".")};
  const std::vector<std::string>& words = found.words;
  while (found.at < words.size() && !number_from(words[found.at])) ++found.at;
  found.is_numbered = found.at > 0 && found.at < words.size();
  for (std::size_t i = 0; i < std::min(found.at, words.size()); ++i)
    found.is_mtp |=
        words[i].find("mtp") != std::string::npos || words[i].find("nextn") != std::string::npos;
  return found;
}

bool NamedLayers::is_of_tower(const NumberedWords& name) const {
  const std::string text = fmt::format("{}", fmt::join(name.words, "."));
  return std::ranges::any_of(towers_,
                             [&](const std::string& tower) { return text.starts_with(tower); });
}

}  // namespace ingot::formats
