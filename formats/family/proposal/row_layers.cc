#include "formats/family/proposal/row_layers.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "formats/config/nested_config.h"
#include "formats/family/rule_scope.h"
#include "formats/json/json.h"

namespace ingot::formats {
namespace {

constexpr std::array<std::pair<Scope, std::string_view>, 7> kScopeWords = {{
    {Scope::kLayer, "all"},
    {Scope::kMainLayer, "main"},
    {Scope::kMoeLayer, "moe"},
    {Scope::kDenseLayer, "dense"},
    {Scope::kFullAttentionLayer, "full_attention"},
    {Scope::kLinearAttentionLayer, "linear_attention"},
    {Scope::kMtpLayer, "mtp"},
}};

bool is_key(std::string_view key) {
  return std::ranges::all_of(
      key, [](char c) { return c == '_' || std::isalnum(static_cast<unsigned char>(c)); });
}

/// True if a key with so many entries is by layer: by its name, or since entries recur, as kinds of
/// layers do. A text has a letter per layer only where its key says so: `silu` is a word.
bool is_by_layer(std::string_view key, std::span<const std::string> entries, bool is_text) {
  for (const std::string_view word : {"layer", "pattern", "_types"}) {
    if (key.find(word) != std::string_view::npos) return true;
  }
  if (is_text) return false;
  return std::set<std::string>(entries.begin(), entries.end()).size() < entries.size();
}

/// The entries of a list, or the letters of a text; empty where an entry cannot be one of a row's.
std::vector<std::string> entries_of(const Json& list) {
  std::vector<std::string> entries;
  if (list.is_string()) {
    for (const char letter : list.get_ref<const std::string&>()) entries.emplace_back(1, letter);
  } else if (list.is_array()) {
    for (const Json& entry : list) {
      if (!entry.is_primitive()) return {};
      entries.push_back(entry.is_string() ? entry.get<std::string>() : entry.dump());
    }
  }
  const bool is_plain = std::ranges::all_of(entries, [](const std::string& entry) {
    return std::ranges::all_of(entry,
                               [](char c) { return c >= ' ' && c < 127 && c != '"' && c != '\\'; });
  });
  return is_plain ? entries : std::vector<std::string>();
}

std::string condition_of(const std::set<std::uint32_t>& layers, const ModelConfig& config) {
  const std::uint64_t n_layers = config.num_hidden_layers;
  for (const auto& [key, list] : text_keys(config).items()) {
    if (n_layers == 0 || !is_key(key)) continue;
    const std::vector<std::string> entries = entries_of(list);
    if (entries.size() != n_layers && entries.size() != layer_count(config)) continue;
    if (!is_by_layer(key, entries, list.is_string())) continue;
    std::set<std::string> within, without;
    for (std::uint32_t layer = 0; layer < n_layers; ++layer)
      (layers.contains(layer) ? within : without).insert(entries[layer]);
    const bool is_apart =
        !within.empty() && !without.empty() &&
        std::ranges::none_of(within, [&](const auto& entry) { return without.contains(entry); });
    if (is_apart) return fmt::format("{{{}: [\"{}\"]}}", key, fmt::join(within, "\", \""));
  }
  return {};
}

}  // namespace

RowLayers row_layers(const std::set<std::uint32_t>& layers, const ModelConfig& config) {
  const auto n_all = static_cast<std::uint32_t>(layer_count(config));
  const auto is_where = [&](Scope scope, std::uint64_t n) {
    for (std::uint32_t layer = 0; layer < n; ++layer) {
      if (scope_holds(scope, config, layer) != layers.contains(layer)) return false;
    }
    return true;
  };
  for (const auto& [scope, word] : kScopeWords) {
    if (!is_where(scope, n_all)) continue;
    return {.text = scope == Scope::kLayer ? "" : fmt::format(", layers: {}", word)};
  }
  // A checkpoint that leaves MTP layers out.
  if (is_where(Scope::kLayer, config.num_hidden_layers)) return {};
  std::set<std::uint32_t> main = layers;
  for (auto layer = static_cast<std::uint32_t>(config.num_hidden_layers); layer < n_all; ++layer)
    main.erase(layer);
  if (!main.empty() && main.size() + n_all - config.num_hidden_layers == layers.size() &&
      main.size() < layers.size()) {
    RowLayers found = row_layers(main, config);
    if (!found.text.empty() && !found.is_optional) {
      found.is_in_mtp = true;
      return found;
    }
  }
  if (const std::string condition = condition_of(layers, config); !condition.empty()) {
    return {.text = fmt::format(", layers: {}", condition),
            .guess = "by a key of the config that has the same layers"};
  }
  return {
      .guess = fmt::format("in {} of {} layers, and nothing says in which", layers.size(), n_all),
      .is_optional = true};
}

}  // namespace ingot::formats
