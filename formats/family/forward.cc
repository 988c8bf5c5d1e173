#include "formats/family/forward.h"

#include <array>

#include <fmt/format.h>

namespace ingot::formats {

namespace {

constexpr std::size_t kMaxParts = 64;

ForwardParameters parameters_of(const Yaml& map, std::string_view what) {
  ForwardParameters parameters;
  for (const auto& [key, line, value] : map.members(what)) {
    if (key == "layers") continue;
    parameters.emplace_back(
        key, ForwardValue{.text = value.is_null() ? "null" : value.text(key), .line = line});
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
  yaml.require_keys(std::array<std::string_view, 4>{"only", "mtp", "mixer", "mixture"});
  Forward forward;
  if (const Yaml* only = yaml.find("only")) forward.only = parameters_of(*only, "only");
  if (const Yaml* mtp = yaml.find("mtp")) {
    forward.mtp = mtp->text("mtp");
    if (forward.mtp != "joined" && forward.mtp != "left-out" && forward.mtp != "unsaid")
      mtp->refuse(fmt::format("mtp '{}' is none of joined, left-out, unsaid", forward.mtp));
  }
  const Yaml* mixer = yaml.find("mixer");
  if (mixer == nullptr) yaml.refuse("forward lacks what mixes the tokens of a layer (mixer)");
  if (!mixer->is_list()) {
    forward.mixers.push_back(part_of(*mixer, layers));
  } else {
    if (mixer->list("mixer").size() > kMaxParts)
      mixer->refuse(fmt::format("there are more than {} mixers", kMaxParts));
    for (const Yaml& one : mixer->list("mixer")) forward.mixers.push_back(part_of(one, layers));
  }
  if (const Yaml* mixture = yaml.find("mixture")) forward.mixture = part_of(*mixture, layers);
  return forward;
}

}  // namespace ingot::formats
