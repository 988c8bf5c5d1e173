#include "verify/level.h"

#include <algorithm>
#include <array>
#include <string>

#include <fmt/format.h>

#include "formats/base/error.h"

namespace ingot::verify {
namespace {

constexpr std::array kLevels{
    LevelFacts{Level::kStructure, "structure",
               "names, shapes, schemes, scales, config, lists, side files, hashes, loader rules"},
    LevelFacts{Level::kWeights, "weights", "every weight of both sides, decoded and compared"},
    LevelFacts{Level::kLayers, "layers",
               "hidden states after every layer, routing and logits, on prompts"},
    LevelFacts{Level::kGreedy, "greedy", "the tokens that both generate"},
};

}  // namespace

std::span<const LevelFacts> levels() {
  return kLevels;
}

std::string_view level_name(Level level) {
  return kLevels[static_cast<std::size_t>(level)].name;
}

std::vector<Level> parse_levels(std::string_view text) {
  std::vector<Level> chosen;
  std::size_t begin = 0;
  while (begin <= text.size()) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    const std::string_view word = text.substr(begin, end - begin);
    begin = end + 1;
    if (word == "all") {
      for (const LevelFacts& facts : kLevels) chosen.push_back(facts.level);
      continue;
    }
    const auto found = std::find_if(kLevels.begin(), kLevels.end(),
                                    [&](const LevelFacts& facts) { return facts.name == word; });
    if (found == kLevels.end()) {
      std::string known;
      for (const LevelFacts& facts : kLevels) known += fmt::format("{}, ", facts.name);
      throw Error(
          ErrorCode::kInvalidArgument,
          fmt::format("'{}' is not a level of verification (choose from {}all)", word, known));
    }
    chosen.push_back(found->level);
  }
  std::sort(chosen.begin(), chosen.end());
  chosen.erase(std::unique(chosen.begin(), chosen.end()), chosen.end());
  return chosen;
}

}  // namespace ingot::verify
