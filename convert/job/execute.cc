#include "convert/job/execute.h"

#include <optional>

#include "convert/job/execution.h"
#include "convert/job/preflight.h"
#include "convert/output/output_directory.h"
#include "formats/base/error.h"

namespace ingot::convert {

using formats::Checkpoint;
using formats::Json;

void ExecuteOptions::check_stop() const {
  if (stop_requested && stop_requested())
    throw Error(ErrorCode::kInterrupted, "stopped; continue with --resume");
}

namespace {

ExecuteReport execute_claimed(const Plan& plan, const Checkpoint& source, const Recipe& recipe,
                              const PlanOptions& plan_options, const std::filesystem::path& output,
                              const ExecuteOptions& options) {
  const OutputPaths paths(output);
  require_place(source, output, options);
  // Nobody else is kept from reading an output that is finished, unless a run that was killed
  // between its last two steps left an empty folder, which goes with the claim.
  const bool is_read_only = options.resume && output_state(output) == OutputState::kFinished &&
                            !std::filesystem::exists(paths.partial);
  std::optional<Claim> claim;
  if (!is_read_only) claim.emplace(Claim::take(paths, options.run));
  Preflight checked = preflight(plan, source, recipe, output, options);
  require_space(plan, checked, output);
  const Json identity =
      require_resumable(plan, source, recipe, plan_options, output, checked,
                        {.n = options.threads, .check_stop = [&] { options.check_stop(); }});
  if (checked.is_finished) {
    if (claim) clear_partial(paths);
    ExecuteReport report;
    report.already_done = true;
    return report;
  }
  // Another run has replaced what was finished a moment ago.
  if (!claim) claim.emplace(Claim::take(paths, options.run));
  if (!checked.earlier) clear_partial(paths);
  if (options.accepted) options.accepted();
  return Execution(plan, source, recipe, *claim, paths, options).run(identity, std::move(checked));
}

}  // namespace

ExecuteReport execute(const Plan& plan, const Checkpoint& source, const Recipe& recipe,
                      const PlanOptions& plan_options, const std::filesystem::path& output,
                      const ExecuteOptions& options) {
  ExecuteReport report = execute_claimed(plan, source, recipe, plan_options, output, options);
  if ((report.already_done || report.only_published) && options.inspect)
    report.refused = !options.inspect(output).may_publish;
  return report;
}

std::filesystem::path consumed_headers_of(const std::filesystem::path& output) {
  const OutputPaths paths(output);
  return std::filesystem::exists(paths.consumed) ? paths.consumed : std::filesystem::path();
}

}  // namespace ingot::convert
