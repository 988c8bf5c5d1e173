#include "formats/family/proposal/class_plan.h"

#include <algorithm>
#include <array>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "formats/family/family_check.h"

namespace ingot::formats {
namespace {

struct PlanWord {
  std::string_view word;
  Cut cut;
};
constexpr std::array kPlanWords = {
    PlanWord{"colwise", Cut::kColumn}, PlanWord{"packed_colwise", Cut::kColumn},
    PlanWord{"rowwise", Cut::kRow}, PlanWord{"embedding_rowwise", Cut::kVocab}};

/// The pattern of a name; empty for names that no family can have.
std::string pattern_of(std::string_view stored, const NamedLayers& named) {
  auto name = named.words_of(stored);
  if (!name) return {};
  if (name->is_numbered) name->words[name->at] = kLayerMark;
  mark_expert(name->words);
  return fmt::format("{}", fmt::join(name->words, "."));
}

}  // namespace

ClassPlan::ClassPlan(const ModelClass& known, const NamedLayers& named) {
  for (const auto& [name, word] : known.plan) words_.emplace(pattern_of(name, named), word);
  for (const auto& [name, own] : known.names)
    names_.emplace(pattern_of(name, named), pattern_of(own, named));
  for (const auto& [name, order] : known.joined) joined_.emplace(pattern_of(name, named), order);
  for (const std::string& name : known.stacks) stacks_.insert(pattern_of(name, named));
}

std::string_view ClassPlan::word(const std::string& pattern) const {
  return find(words_, pattern);
}

const std::string& ClassPlan::meant(const std::string& pattern) const {
  const auto found = names_.find(pattern);
  return found == names_.end() || found->second.empty() ? pattern : found->second;
}

std::string_view ClassPlan::joined(const std::string& pattern) const {
  return find(joined_, pattern);
}

std::string_view ClassPlan::find(const Texts& texts, const std::string& pattern) {
  const auto found = texts.find(pattern);
  return found == texts.end() ? std::string_view() : found->second;
}

std::optional<Cut> ClassPlan::cut(const std::string& pattern) const {
  const auto found = std::ranges::find(kPlanWords, word(pattern), &PlanWord::word);
  return found == kPlanWords.end() ? std::nullopt : std::optional(found->cut);
}

void ClassPlan::choose(const std::string& pattern, std::vector<NeighbourRow>& rows) const {
  const std::optional<Cut> planned = cut(pattern);
  const auto is_as_planned = [&](const NeighbourRow& row) { return row.rule->cut == planned; };
  const bool is_told = std::ranges::any_of(
      rows, [&](const NeighbourRow& row) { return row.fits && is_as_planned(row); });
  if (!planned || !is_told) return;
  std::erase_if(rows, [&](const NeighbourRow& row) { return row.fits && !is_as_planned(row); });
}

}  // namespace ingot::formats
