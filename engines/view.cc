#include "engines/view.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include <fmt/format.h>

#include "engines/readers/reader.h"
#include "formats/base/error.h"
#include "formats/base/words.h"
#include "formats/text/list_text.h"

namespace ingot::engines {

namespace {

/// A name without its numbers, and the numbers.
struct NumberedName {
  std::vector<std::string> words;  // between numbers: one more
  std::vector<std::uint64_t> numbers;
};

NumberedName split_numbers(std::string_view name) {
  NumberedName split{.words = {""}, .numbers = {}};
  for (const std::string_view word : name_words(name)) {
    if (word.data() != name.data()) split.words.back() += '.';
    if (const auto number = number_from<std::uint64_t>(word)) {
      split.numbers.push_back(*number);
      split.words.emplace_back();
    } else {
      split.words.back() += word;
    }
  }
  return split;
}

using Numbers = std::vector<std::uint64_t>;
using Ranges = std::vector<std::set<std::uint64_t>>;  // numbers by place in the name

/// Modules that differ only by numbers.
struct Kind {
  BelievedModules row;
  std::vector<std::string> words;
  std::vector<Numbers> numbers;  // numbers of each
};

/// Ranges whose products are these numbers, each once: all layers with the same experts are one.
std::vector<Ranges> ranges_of(std::span<const Numbers> all) {
  Ranges whole(all.front().size());
  for (const Numbers& numbers : all)
    for (std::size_t i = 0; i < numbers.size(); ++i) whole[i].insert(numbers[i]);
  std::size_t n = 1;
  for (const std::set<std::uint64_t>& place : whole) n *= place.size();
  if (n == all.size() || whole.size() < 2) return {whole};
  std::map<std::uint64_t, std::vector<Numbers>> rests;
  for (const Numbers& numbers : all)
    rests[numbers.front()].emplace_back(numbers.begin() + 1, numbers.end());
  std::vector<Ranges> found;
  std::map<std::vector<Ranges>, std::size_t> known;  // the first of those with the same rests
  for (const auto& [first, rest] : rests) {
    const std::vector<Ranges> behind = ranges_of(rest);
    const auto [place, is_new] = known.try_emplace(behind, found.size());
    if (is_new) {
      for (const Ranges& ranges : behind) {
        found.push_back({{}});
        found.back().insert(found.back().end(), ranges.begin(), ranges.end());
      }
    }
    for (std::size_t i = 0; i < behind.size(); ++i) found[place->second + i].front().insert(first);
  }
  return found;
}

}  // namespace

EngineView engine_view(const Checkpoint& checkpoint, const EngineRow& engine,
                       const Serving& serving) {
  if (checkpoint.slicing() != nullptr) {
    throw Error(ErrorCode::kUnsupported,
                "slices of ranks are no checkpoint that engines load (ingot merge makes one)")
        .in_file(checkpoint.directory().string());
  }
  if (!reads_config(checkpoint.dialect(), engine.engine)) {
    throw Error(ErrorCode::kUnsupported,
                "how {} reads the config of dialect {} is not known here (ingot convert writes "
                "another dialect)",
                engine.name, checkpoint.dialect().name)
        .in_file("config.json");
  }
  const EngineInput facts(checkpoint);
  EngineView view{.verdict = engine_verdict(checkpoint, facts, engine, serving), .modules = {}};
  const Reader reader = reader_of(checkpoint, facts, engine);
  std::vector<Kind> kinds;
  std::map<std::tuple<std::vector<std::string>, std::string, std::string, std::string>, std::size_t>
      number_of;
  for (std::size_t i = 0; i < facts.modules.size(); ++i) {
    const LinearModule& module = facts.modules[i];
    const Reading reading = reader.of(i);
    const std::string stored = stored_scheme(module);
    NumberedName split = split_numbers(module.name);
    const auto [place, is_new] =
        number_of.try_emplace({split.words, stored, reading.scheme, reading.because}, kinds.size());
    if (is_new) {
      kinds.push_back({.row = {.stored = stored,
                               .believed = reading.scheme,
                               .because = reading.because,
                               .joined = std::string(joined_name(*module.tensor, engine.engine))},
                       .words = split.words});
    }
    kinds[place->second].numbers.push_back(std::move(split.numbers));
  }
  for (const Kind& kind : kinds) {
    for (const Ranges& ranges : ranges_of(kind.numbers)) {
      BelievedModules row = kind.row;
      row.count = 1;
      for (std::size_t i = 0; i < kind.words.size(); ++i) {
        row.name += kind.words[i];
        if (i == ranges.size()) continue;
        const std::string numbers = ranges_text(ranges[i], "-", ",");
        row.name += ranges[i].size() == 1 ? numbers : "{" + numbers + "}";
        row.count *= ranges[i].size();
      }
      view.modules.push_back(std::move(row));
    }
  }
  return view;
}

namespace {

void deny_by_belief(std::string tensor, const std::string& stored, const Reading& reading,
                    EngineVerdict& verdict) {
  verdict.loads = false;
  verdict.tensor = std::move(tensor);
  verdict.reason =
      fmt::format("it is {}, and believed {} by {}", stored, reading.scheme, reading.because);
}

}  // namespace

void deny_by_beliefs(std::span<const BelievedModules> modules, EngineVerdict& verdict) {
  const auto row = std::ranges::find_if_not(modules, &BelievedModules::agrees);
  if (verdict.loads && row != modules.end())
    deny_by_belief(row->name, row->stored, {row->believed, row->because}, verdict);
}

std::vector<EngineVerdict> believed_verdicts(const Checkpoint& checkpoint, const EngineInput& facts,
                                             const Serving& serving) {
  std::vector<EngineVerdict> verdicts = engine_verdicts(checkpoint, facts, engines(), serving);
  if (checkpoint.slicing() != nullptr) return verdicts;
  const std::uint64_t n_layers = checkpoint.config().num_hidden_layers;
  for (EngineVerdict& verdict : verdicts) {
    if (!verdict.loads || !reads_config(checkpoint.dialect(), verdict.engine->engine)) continue;
    const Reader reader = reader_of(checkpoint, facts, *verdict.engine);
    for (std::size_t i = 0; i < facts.modules.size() && verdict.loads; ++i) {
      // Draft models are the user's choice.
      const auto& layer = facts.modules[i].tensor->layer;
      if (layer && n_layers != 0 && *layer >= n_layers) continue;
      const Reading reading = reader.of(i);
      const std::string stored = stored_scheme(facts.modules[i]);
      if (reading.scheme == stored) continue;
      deny_by_belief(facts.modules[i].tensor->name, stored, reading, verdict);
    }
  }
  return verdicts;
}

}  // namespace ingot::engines
