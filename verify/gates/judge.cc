#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <set>

#include <fmt/format.h>

#include "formats/storage/encoding.h"
#include "formats/text/spelling.h"
#include "verify/gates/gate.h"
#include "verify/gates/report.h"

namespace ingot::verify {

namespace {

constexpr std::string_view kDefault = "default";

// How well a gate's group fits the group of a value: 0 not at all, 1 for a gate of every group, 2
// for a group of schemes ("int8" of "int8-channel"), 3 for the very word.
int group_fit(std::string_view gate, std::string_view value) {
  if (gate.empty()) return 1;
  if (gate == value) return 3;
  const bool begins = value.starts_with(gate) && value.substr(gate.size()).starts_with('-');
  return begins ? 2 : 0;
}

bool holds(Bound bound, double value, double limit) {
  return bound == Bound::kAtLeast ? value >= limit : value <= limit;
}

// How far a value is beyond its limit. Infinite values have no distance from one another.
bool is_worse(Bound bound, double value, double limit, const GateResult& than) {
  // NaN is worse than every number.
  if (std::isnan(than.worst)) return false;
  if (std::isnan(value)) return true;
  if (limit != than.limit && std::isfinite(value) && std::isfinite(than.worst)) {
    value -= limit - than.limit;
  }
  return bound == Bound::kAtLeast ? value < than.worst : value > than.worst;
}

void see_value(GateResult& result, double value, double limit, const std::string& subject) {
  const bool passed = holds(result.gate.bound, value, limit);
  if (!passed) ++result.failed;
  if (result.checked == 0 || is_worse(result.gate.bound, value, limit, result)) {
    result.worst = value;
    result.subject = subject;
    result.limit = limit;
  }
  ++result.checked;
  result.passed = result.passed && passed;
}

// The demands on one metric, and the result of each.
class MetricJudge {
 public:
  MetricJudge(const Metric& metric, const Thresholds& thresholds) : metric_(metric) {
    for (const Gate& gate : thresholds.gates) {
      if (gate.metric == metric.name)
        rows_.push_back({.result = {.gate = gate, .limit = gate.limit}});
    }
  }

  [[nodiscard]] bool empty() const { return rows_.empty(); }

  /// `tensor`: that the value is of, where limits depend on it.
  void see(double value, std::string_view group, const std::string& subject,
           const TensorWeights* tensor) {
    const auto [at, is_new] = row_of_.try_emplace(std::string(group));
    if (is_new) at->second = choose(group);
    if (!at->second) return;
    GateResult& result = rows_[*at->second].result;
    const bool is_own = tensor != nullptr && result.gate.origin == kDefault;
    see_value(result, value,
              is_own ? metric_.limit_of(result.gate.limit, *tensor) : result.gate.limit, subject);
  }

  void append_to(std::vector<GateResult>& results) {
    for (Row& row : rows_) {
      if (row.result.checked == 0 && !fails_unmet(row)) continue;
      row.result.passed = row.result.passed && row.result.checked > 0;
      results.push_back(row.result);
    }
  }

 private:
  struct Row {
    GateResult result;
    bool met = false;  // some value was of its groups, whether or not another gate replaced it
  };

  // The last origin that says something of the group, and there the gate that fits it best.
  std::optional<std::size_t> choose(std::string_view group) {
    std::optional<std::size_t> best;
    int best_fit = 0;
    for (std::size_t i = 0; i < rows_.size(); ++i) {
      const int fit = group_fit(rows_[i].result.gate.group, group);
      if (fit == 0) continue;
      rows_[i].met = true;
      const bool same_origin =
          best && rows_[*best].result.gate.origin == rows_[i].result.gate.origin;
      if (same_origin && fit < best_fit) continue;
      best = i;
      best_fit = fit;
    }
    return best;
  }

  // A demand of --require must meet something itself. A file speaks of groups that a checkpoint
  // need not have: one of them must.
  [[nodiscard]] bool fails_unmet(const Row& row) const {
    const std::string& origin = row.result.gate.origin;
    if (row.met || origin == kDefault) return false;
    if (origin == "--require" || row.result.gate.group.empty()) return true;
    return std::ranges::none_of(
        rows_, [&](const Row& other) { return other.met && other.result.gate.origin == origin; });
  }

  const Metric& metric_;
  std::vector<Row> rows_;
  std::map<std::string, std::optional<std::size_t>, std::less<>> row_of_;
};

constexpr std::array<std::string_view, 6> kKinds = {"plain", "int8",          "int8-static",
                                                    "fp8",   "nvfp4-experts", "4-bit"};

}  // namespace

std::vector<GateResult> judge(const Report& report, const Thresholds& thresholds) {
  std::vector<GateResult> results;
  for (const Metric& metric : metrics()) {
    MetricJudge judge_of(metric, thresholds);
    if (judge_of.empty()) continue;
    std::size_t n = 0;
    metric.values(report, [&](double value, std::string_view group, const std::string& subject) {
      judge_of.see(value, group, subject,
                   metric.limit_of == nullptr ? nullptr : &report.weights->tensors[n++]);
    });
    judge_of.append_to(results);
  }
  return results;
}

std::optional<std::string> inconclusive_warning(const Report& report) {
  if (!report.greedy) return std::nullopt;
  const std::size_t all = report.greedy->prompts.size();
  const std::size_t inconclusive = report.greedy->inconclusive;
  if (3 * inconclusive <= all) return std::nullopt;
  return fmt::format(
      "greedy: {} of {} prompts part where the source was nearly undecided; longer or plainer "
      "prompts tell more (--prompts)",
      inconclusive, all);
}

bool is_group(std::string_view metric, std::string_view group) {
  const auto fits = [&](std::string_view value) { return group_fit(group, value) > 1; };
  if (metric.starts_with("structure.") || metric == "weights.unmatched") return false;
  if (!metric.starts_with("weights.")) return std::any_of(kKinds.begin(), kKinds.end(), fits);
  const auto schemes = formats::schemes();
  return std::any_of(schemes.begin(), schemes.end(),
                     [&](const formats::SchemeFacts& facts) { return fits(facts.name); });
}

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
