#include "engines/versions/versions.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <map>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "formats/base/error.h"

namespace ingot::engines {
namespace {

constexpr std::array kVersions = {&kVllmRow,       &kVllm032Row,      &kSglangRow,  &kTrtllmRow,
                                  &kVllmAscendRow, &kTransformersRow, &kDeepseekRow};

/// The facts of a version by their ids.
std::map<std::string, std::string> facts_of(const EngineRow& row) {
  std::map<std::string, std::string> facts;
  const auto add = [&facts](std::string id, std::string_view text) {
    std::string& known = facts[std::move(id)];
    known += known.empty() ? std::string(text) : fmt::format("; {}", text);
  };
  for (const EngineLoad& load : row.loads) {
    const std::string_view evidence = evidence_text(row.evidence_of(load));
    add(row_id(load), load.option.empty() ? std::string(evidence)
                                          : fmt::format("{}, with {}", evidence, load.option));
  }
  for (const EngineLimit& limit : row.limits)
    add(row_id(limit), fmt::format("{}: {}", engine_effect_text(limit), limit.reason));
  for (const EngineFamily& family : row.families) {
    const std::string id = fmt::format("family.{}", family.family);
    if (facts.contains(id)) continue;  // another row of the same family
    std::map<Evidence, std::vector<std::string_view>> schemes;
    for (const formats::SchemeFacts& scheme : formats::schemes()) {
      const bool is_in_row = std::ranges::any_of(row.families, [&](const EngineFamily& other) {
        return other.family == family.family && other.schemes.contains(scheme.id);
      });
      if (is_in_row) schemes[row.family_evidence(family.family, scheme.id)].push_back(scheme.name);
    }
    for (const auto& [evidence, names] : schemes)
      add(id, fmt::format("{}: {}", evidence_text(evidence), fmt::join(names, ", ")));
  }
  for (const EngineNames& names : row.names)
    add(fmt::format("names.{}", names.family), names.alias);
  if (!row.skip_option.empty()) add("experts.skipped", row.skip_option);
  for (const std::string_view family : row.stacks) add(fmt::format("stacks.{}", family), "taken");
  for (const std::string_view name : row.pooling_classes)
    add(fmt::format("class.{}", name), "known");
  for (const EngineReading reading : row.readings)
    add(std::string(reading_id(reading)), reading_text(reading));
  for (const EnginePin& pin : row.pins) add(fmt::format("pin.{}", pin.package), pin.version);
  return facts;
}

}  // namespace

std::span<const EngineRow* const> engine_versions() {
  return kVersions;
}

std::vector<const EngineRow*> judged_versions() {
  std::vector<const EngineRow*> rows;
  std::ranges::copy_if(engines(), std::back_inserter(rows), &EngineRow::is_judged);
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

std::vector<EngineChange> changes_since(const EngineRow& version) {
  const std::map<std::string, std::string> was = facts_of(version);
  std::map<std::string, std::string> is = facts_of(newest(version.engine));
  std::vector<EngineChange> changes;
  for (const auto& [id, text] : was) is.try_emplace(id);
  for (const auto& [id, text] : is) {
    const auto known = was.find(id);
    const std::string before = known == was.end() ? std::string() : known->second;
    if (before != text) changes.push_back({id, before, text});
  }
  return changes;
}

}  // namespace ingot::engines
