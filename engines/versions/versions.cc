#include "engines/versions/versions.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "formats/base/error.h"

namespace ingot::engines {
namespace {

constexpr std::array kVersions = {&kVllmRow,       &kSglangRow,       &kTrtllmRow,
                                  &kVllmAscendRow, &kTransformersRow, &kDeepseekRow};

}  // namespace

std::span<const EngineRow* const> engine_versions() {
  return kVersions;
}

std::vector<const EngineRow*> judged_versions() {
  std::vector<const EngineRow*> rows;
  std::ranges::copy_if(kVersions, std::back_inserter(rows), &EngineRow::is_judged);
  return rows;
}

std::span<const EngineRow* const> engines() {
  static const std::vector<const EngineRow*> newest_of_each = [] {
    std::vector<const EngineRow*> rows;
    for (const EngineRow* row : kVersions) {
      if (std::ranges::find(rows, row->engine, &EngineRow::engine) == rows.end())
        rows.push_back(row);
    }
    return rows;
  }();
  return newest_of_each;
}

const EngineRow& newest(Engine engine) {
  return **std::ranges::find(kVersions, engine, &EngineRow::engine);
}

const EngineRow* find_engine(std::string_view word) {
  const auto* const row = std::ranges::find(kVersions, word, &EngineRow::word);
  return row == kVersions.end() ? nullptr : *row;
}

const EngineRow& engine_of(std::string_view text) {
  const std::size_t colon = text.find(':');
  const std::string_view word = text.substr(0, colon);
  const EngineRow* row = find_engine(word);
  if (row == nullptr) {
    std::vector<std::string_view> words;
    for (const EngineRow* known : engines()) words.push_back(known->word);
    throw Error(ErrorCode::kInvalidArgument, "'{}' is no engine (known: {})", word,
                fmt::join(words, ", "));
  }
  if (colon == std::string_view::npos) return *row;
  const std::string_view version = text.substr(colon + 1);
  std::vector<std::string_view> names;
  for (const EngineRow* known : kVersions) {
    if (known->word != word) continue;
    if (known->version == version && !version.empty()) return *known;
    names.push_back(known->name);
  }
  throw Error(ErrorCode::kUnsupported, "only {} is known, not version '{}'", fmt::join(names, ", "),
              version);
}

}  // namespace ingot::engines
