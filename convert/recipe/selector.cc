#include "convert/recipe/selector.h"

#include <algorithm>
#include <optional>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "formats/base/error.h"
#include "formats/base/words.h"
#include "formats/family/family.h"
#include "formats/text/spelling.h"

namespace ingot::convert {

using formats::LogicalTensor;
using formats::RoleSet;

namespace {

constexpr std::string_view kRolePrefix = "role:";
constexpr std::string_view kLayersPrefix = "layers:";

// Beyond every number that a config may have.
constexpr std::uint64_t kLastLayer = ~std::uint64_t{0} - 1;
constexpr std::uint64_t kMtpLayers = ~std::uint64_t{0};

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view kSpaces = " \t";
  const std::size_t first = text.find_first_not_of(kSpaces);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kSpaces) - first + 1);
}

// Calls `visit` for each piece between separators, the spaces around it gone.
template <typename Visit>
void for_each_piece(std::string_view text, char separator, const Visit& visit) {
  while (true) {
    const std::size_t end = text.find(separator);
    visit(trimmed(text.substr(0, end)));
    if (end == std::string_view::npos) return;
    text.remove_prefix(end + 1);
  }
}

std::optional<std::uint64_t> layer_number(std::string_view word) {
  if (word == "last") return kLastLayer;
  return number_from(word);
}

std::vector<std::string_view> group_names() {
  std::vector<std::string_view> names;
  for (const formats::RoleGroup& group : formats::role_groups()) names.push_back(group.name);
  return names;
}

}  // namespace

std::vector<std::string_view> role_words() {
  std::vector<std::string_view> words = group_names();
  for (std::size_t r = 0; r <= static_cast<std::size_t>(formats::Role::kOther); ++r)
    words.push_back(formats::role_name(static_cast<formats::Role>(r)));
  return words;
}

Selector::Selector(std::string_view text) : text_(text) {
  if (text.find('&') == std::string_view::npos) {
    terms_.push_back(parse_term(text));
    return;
  }
  for_each_piece(text, '&', [&](std::string_view term) {
    if (term.empty()) {
      throw Error(ErrorCode::kInvalidArgument, "rule '{}' has nothing on one side of an '&'",
                  text_);
    }
    terms_.push_back(parse_term(term));
  });
}

Selector::Term Selector::parse_term(std::string_view text) const {
  if (text.starts_with(kLayersPrefix)) return parse_layers(text.substr(kLayersPrefix.size()));
  if (!text.starts_with(kRolePrefix)) return Pattern(text);
  const std::string_view name = text.substr(kRolePrefix.size());
  const std::optional<RoleSet> roles = formats::find_roles(name);
  if (!roles) {
    throw Error(ErrorCode::kInvalidArgument,
                "rule '{}': no role '{}' (groups are {}; see ingot list roles DIR for the roles of "
                "a checkpoint){}",
                text_, name, fmt::join(group_names(), ", "), did_you_mean(name, role_words()));
  }
  return *roles;
}

Selector::Layers Selector::parse_layers(std::string_view list) const {
  Layers layers;
  for_each_piece(list, ',', [&](std::string_view item) {
    if (item == "mtp") {
      layers.push_back({kMtpLayers, kMtpLayers});
      return;
    }
    const std::size_t dash = item.find('-');
    const auto first = layer_number(item.substr(0, dash));
    const auto last = dash == std::string_view::npos ? first : layer_number(item.substr(dash + 1));
    if (!first || !last || *first > *last) {
      throw Error(
          ErrorCode::kInvalidArgument,
          "rule '{}': '{}' is no layer, range of layers, last or mtp (as in layers:0-2,last)",
          text_, item);
    }
    layers.push_back({*first, *last});
  });
  return layers;
}

bool Selector::is_in(const Layers& layers, std::uint64_t layer) const {
  const auto resolved = [&](std::uint64_t number) {
    return number == kLastLayer ? n_layers_ - 1 : number;
  };
  return std::any_of(layers.begin(), layers.end(), [&](const LayerRange& range) {
    const bool needs_count = range.last >= kLastLayer;
    if (needs_count && n_layers_ == 0) return false;
    if (range.first == kMtpLayers) return layer >= n_layers_;
    return resolved(range.first) <= layer && layer <= resolved(range.last);
  });
}

bool Selector::matches(const LogicalTensor& tensor) const {
  return std::all_of(terms_.begin(), terms_.end(), [&](const Term& term) {
    if (const auto* pattern = std::get_if<Pattern>(&term)) return pattern->matches(tensor.name);
    if (const auto* roles = std::get_if<RoleSet>(&term)) return roles->has(role_of(tensor));
    return tensor.layer && is_in(std::get<Layers>(term), *tensor.layer);
  });
}

bool Selector::names(const LogicalTensor& tensor) const {
  return std::any_of(terms_.begin(), terms_.end(), [&](const Term& term) {
    const auto* pattern = std::get_if<Pattern>(&term);
    return pattern != nullptr ? pattern->text() == tensor.name
                              : std::holds_alternative<RoleSet>(term);
  });
}

std::string Selector::excess(std::span<const LogicalTensor> tensors) const {
  std::uint64_t largest = 0;
  for (const Term& term : terms_) {
    const auto* layers = std::get_if<Layers>(&term);
    if (layers == nullptr) continue;
    for (const LayerRange& range : *layers) {
      for (const std::uint64_t number : {range.first, range.last})
        if (number < kLastLayer) largest = std::max(largest, number);
    }
  }
  // A single file, or the slices of a rank, may lack the last ones.
  std::uint64_t last = n_layers_ == 0 ? 0 : n_layers_ - 1;
  for (const LogicalTensor& tensor : tensors)
    last = std::max<std::uint64_t>(last, tensor.layer.value_or(0));
  return largest <= last
             ? std::string()
             : fmt::format("gives layers up to {}, and the last one is {}", largest, last);
}

bool Selector::knows_family() const {
  return std::any_of(terms_.begin(), terms_.end(),
                     [](const Term& term) { return !std::holds_alternative<Pattern>(term); });
}

}  // namespace ingot::convert
