#include "convert/output/loadable.h"

#include <optional>
#include <set>
#include <utility>

#include <fmt/format.h>

#include "check/rules/loader_rules.h"
#include "convert/output/planned_checkpoint.h"
#include "convert/output/rank_directories.h"
#include "formats/base/error.h"

namespace ingot::convert {

using formats::Checkpoint;
using formats::Finding;

namespace {

// Beyond this many warnings of one conversion nobody reads on.
constexpr std::size_t kMaxWarnings = 20;

std::string text_of(const Finding& finding) {
  std::string text = fmt::format("{}: ", finding.rule);
  if (!finding.tensor.empty()) text += fmt::format("'{}' ", finding.tensor);
  return text + finding.message;
}

std::vector<Finding> findings_of(const Checkpoint& checkpoint, std::size_t threads) {
  return formats::run_loader_rules(checkpoint, {.threads = threads, .values = false});
}

// Collects what the rules find in one directory of the output.
class Judge {
 public:
  Judge(const Plan& plan, std::size_t threads) : plan_(plan), threads_(threads) {
    for (const Finding& finding : findings_of(plan.source, threads))
      known_.emplace(finding.rule, finding.tensor);
  }

  void judge(std::optional<std::uint32_t> rank) {
    const Checkpoint output = planned_checkpoint(plan_, rank, threads_);
    for (const Finding& finding : findings_of(output, threads_)) {
      const bool is_inherited = known_.contains({std::string(finding.rule), finding.tensor});
      if (finding.severity == formats::Severity::kError && !is_inherited && !is_allowed(finding)) {
        Error error(finding.code, fmt::format("{} (loader rule {}; nothing is published)",
                                              finding.message, finding.rule));
        errors_.add(error.in_file(finding.file).in_tensor(finding.tensor));
      } else if (warnings_.size() < kMaxWarnings) {
        warnings_.push_back(text_of(finding) + (is_inherited ? " (so it was in the source)" : ""));
      }
    }
  }

  // The plan has refused every tensor that no pattern covers.
  bool is_allowed(const Finding& finding) const {
    return !plan_.recipe.allow.engine_refuses.empty() &&
           formats::find_loader_rule(finding.rule)->is_allowable;
  }

  std::vector<std::string> finish() {
    errors_.throw_if_any();
    return std::move(warnings_);
  }

 private:
  const Plan& plan_;
  const std::size_t threads_;
  std::set<std::pair<std::string, std::string>> known_;  // rule and tensor, of the source
  std::vector<std::string> warnings_;
  ErrorList errors_;
};

}  // namespace

std::vector<std::string> require_loadable(const Plan& plan, std::size_t threads) {
  if (plan.is_sliced() && !plan.has_rank_directories()) return {};
  Judge judge(plan, threads);
  if (plan.has_rank_directories()) {
    for (const std::uint32_t rank : typical_ranks(plan)) judge.judge(rank);
  } else {
    judge.judge(std::nullopt);
  }
  return judge.finish();
}

}  // namespace ingot::convert
