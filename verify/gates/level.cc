#include "verify/gates/level.h"

#include <algorithm>
#include <array>
#include <set>

#include "formats/text/spelling.h"

namespace ingot::verify {
namespace {

constexpr std::array kLevels{
    LevelFacts{Level::kStructure, "structure",
               "names, shapes, schemes, scales, config, lists, side files, hashes, loader rules"},
    LevelFacts{Level::kWeights, "weights", "every weight of both sides, decoded and compared"},
    LevelFacts{Level::kLayers, "layers",
               "hidden states after every layer, routing and logits, on prompts", true},
    LevelFacts{Level::kGreedy, "greedy", "the tokens that both generate", true},
    LevelFacts{Level::kDraft, "draft",
               "how many drafts of their MTP layers both would choose themselves", true},
};

}  // namespace

std::span<const LevelFacts> levels() {
  return kLevels;
}

std::string_view level_name(Level level) {
  return kLevels[static_cast<std::size_t>(level)].name;
}

bool runs_model(Level level) {
  return kLevels[static_cast<std::size_t>(level)].runs_model;
}

std::vector<Level> parse_levels(std::string_view text) {
  std::set<Level> chosen;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    const std::string_view word = text.substr(begin, end - begin);
    begin = end + 1;
    bool is_known = false;
    for (const LevelFacts& facts : kLevels) {
      if (word != "all" && word != facts.name) continue;
      chosen.insert(facts.level);
      is_known = true;
    }
    if (is_known) continue;
    std::vector<std::string_view> known = row_names(kLevels, &LevelFacts::name);
    known.emplace_back("all");
    refuse_word("level", word, known);
  }
  return {chosen.begin(), chosen.end()};
}

}  // namespace ingot::verify
