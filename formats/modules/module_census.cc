#include "formats/modules/module_census.h"

#include <set>

#include "formats/base/words.h"

namespace ingot::formats {

namespace {

constexpr std::string_view kLayersWord = "layers.";
constexpr std::string_view kExpertsWord = "experts.";

/// The place of a component that begins with `word`, or npos.
std::size_t find_component(std::string_view name, std::string_view word) {
  for (std::size_t at = name.find(word); at != std::string_view::npos;
       at = name.find(word, at + 1)) {
    if (at == 0 || name[at - 1] == '.') return at;
  }
  return std::string_view::npos;
}

std::string without_expert(std::string_view rest) {
  const std::size_t at = find_component(rest, kExpertsWord);
  if (at == std::string_view::npos) return std::string(rest);
  std::string_view behind = rest.substr(at + kExpertsWord.size());
  if (!take_number(behind, ".")) return std::string(rest);
  return std::string(rest.substr(0, at + kExpertsWord.size())).append("#.").append(behind);
}

}  // namespace

std::optional<LayeredName> split_layer(std::string_view name) {
  const std::size_t at = find_component(name, kLayersWord);
  if (at == std::string_view::npos) return std::nullopt;
  const std::size_t end = at + kLayersWord.size();
  std::string_view rest = name.substr(end);
  const auto layer = take_number(rest, ".");
  if (!layer) return std::nullopt;
  return LayeredName{.prefix = name.substr(0, end), .layer = *layer, .tail = without_expert(rest)};
}

ModuleCensus::ModuleCensus(std::span<const ClassedModule> modules) {
  // A second stack of layers (an encoder of images) is small: its modules go by their names.
  std::vector<std::optional<LayeredName>> split(modules.size());
  std::set<std::string_view> tails;
  for (std::size_t i = 0; i < modules.size(); ++i) {
    split[i] = split_layer(modules[i].name);
    if (!split[i]) continue;
    if (layers_.empty()) prefix_ = split[i]->prefix;
    if (split[i]->prefix != prefix_) {
      split[i].reset();
      continue;
    }
    layers_.push_back(split[i]->layer);
    tails.insert(split[i]->tail);
  }
  sort_unique(layers_);
  tails_.assign(tails.begin(), tails.end());
  cells_.assign(layers_.size() * tails_.size(), kAbsent);
  std::vector<std::uint32_t*> cell_by_module(modules.size(), nullptr);
  for (std::size_t i = 0; i < modules.size(); ++i) {
    if (!split[i]) continue;
    std::uint32_t& cell = *(cell_by_module[i] = &cells_[*cell_of(*split[i])]);
    cell = cell == kAbsent || cell == modules[i].cls ? modules[i].cls : kMixed;
  }
  for (std::size_t i = 0; i < modules.size(); ++i) {
    if (!split[i] || *cell_by_module[i] == kMixed) outside_.push_back(modules[i]);
  }
}

std::optional<std::size_t> ModuleCensus::cell_of(const LayeredName& name) const {
  if (name.prefix != prefix_) return std::nullopt;
  const auto layer = std::lower_bound(layers_.begin(), layers_.end(), name.layer);
  const auto tail = std::lower_bound(tails_.begin(), tails_.end(), name.tail);
  if (layer == layers_.end() || *layer != name.layer) return std::nullopt;
  if (tail == tails_.end() || *tail != name.tail) return std::nullopt;
  return static_cast<std::size_t>(layer - layers_.begin()) * tails_.size() +
         static_cast<std::size_t>(tail - tails_.begin());
}

}  // namespace ingot::formats
