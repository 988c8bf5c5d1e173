#include "formats/family/forward.h"

#include <algorithm>
#include <array>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace ingot::formats {

namespace {

constexpr std::size_t kMaxForwardParts = 64;

// A text, or `{key: KEY, WORD: TEXT, WORD: TEXT, absent: WORD}`.
ForwardValue forward_value(const Yaml& value, const std::string& name) {
  ForwardValue read{.text = value.is_null() ? "null" : "", .line = value.line()};
  if (value.is_null()) return read;
  if (!value.is_map()) {
    read.text = value.text(name);
    return read;
  }
  for (const auto& [word, line, text] : value.members(name)) {
    if (word == "key") {
      read.key = text.text(word);
    } else if (word == "absent") {
      read.text = text.text(word);
    } else {
      read.choices.emplace_back(word, text.text(word));
    }
  }
  if (read.key.empty()) value.refuse("the words of '{}' lack their key", name);
  return read;
}

ForwardParameters parameters_of(const Yaml& map, std::string_view what) {
  ForwardParameters parameters;
  for (const auto& [key, line, value] : map.members(what)) {
    if (key == "layers") continue;
    parameters.emplace_back(key, forward_value(value, key));
    parameters.back().second.line = line;
  }
  return parameters;
}

ForwardPart part_of(const Yaml& map, const std::function<TensorRule(const Yaml&)>& layers) {
  ForwardPart part{.where = {.scope = Scope::kLayer},
                   .parameters = parameters_of(map, "a part of the forward pass"),
                   .line = map.line()};
  if (const Yaml* where = map.find("layers")) part.where = layers(*where);
  return part;
}

}  // namespace

Forward read_forward(const Yaml& yaml, const std::function<TensorRule(const Yaml&)>& layers) {
  yaml.require_keys(std::array<std::string_view, 8>{"only", "needs", "mtp", "mixer", "blocks",
                                                    "mixture", "mlp", "model"});
  Forward forward;
  if (const Yaml* only = yaml.find("only")) forward.only = parameters_of(*only, "only");
  if (const Yaml* needs = yaml.find("needs")) forward.needs = needs->texts("needs");
  if (const Yaml* mtp = yaml.find("mtp")) {
    forward.mtp = mtp->text("mtp");
    constexpr std::array<std::string_view, 4> kWays = {"joined", "dense", "left-out", "unsaid"};
    if (std::ranges::find(kWays, forward.mtp) == kWays.end())
      mtp->refuse("mtp '{}' is none of {}", forward.mtp, fmt::join(kWays, ", "));
  }
  const Yaml* blocks = yaml.find("blocks");
  const Yaml* parts = blocks != nullptr ? blocks : yaml.find("mixer");
  if (parts == nullptr || (blocks != nullptr && yaml.find("mixer") != nullptr))
    yaml.refuse("forward needs what mixes the tokens of a layer (mixer), or its blocks");
  forward.are_blocks = blocks != nullptr;
  if (!parts->is_list()) {
    forward.parts.push_back(part_of(*parts, layers));
  } else {
    if (parts->list("parts").size() > kMaxForwardParts)
      parts->refuse("there are more than {} mixers or blocks", kMaxForwardParts);
    for (const Yaml& one : parts->list("parts")) forward.parts.push_back(part_of(one, layers));
  }
  if (const Yaml* mixture = yaml.find("mixture")) forward.mixture = part_of(*mixture, layers);
  if (const Yaml* mlp = yaml.find("mlp")) forward.mlp = part_of(*mlp, layers);
  if (const Yaml* model = yaml.find("model")) forward.model = part_of(*model, layers);
  return forward;
}

}  // namespace ingot::formats
