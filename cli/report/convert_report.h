#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "convert/job/estimate.h"
#include "convert/job/execute.h"
#include "convert/job/preflight.h"
#include "convert/plan/plan.h"
#include "formats/json/json_fwd.h"

namespace ingot::cli {

/// The contents of a dry run: everything is decided from headers.
struct DryRun {
  const convert::Plan& plan;
  const convert::Preflight& checked;
  std::string output;                              ///< its directory
  bool is_assumed = false;                         ///< the free disk, by --assume-disk
  std::optional<convert::TimeEstimate> time = {};  ///< nullopt: not measured
};

inline constexpr std::string_view kAlreadyFinished =
    "already finished: the output is this conversion of this source";

/// The word for an action of a plan (convert::action_name()) in a report for people.
std::string action_word(std::string_view action);

/// At most kScreenLines lines, unless it `is_whole`.
std::string dry_run_text(const DryRun& dry_run, bool is_whole);
formats::Json dry_run_json(const DryRun& dry_run);

/// The warnings of a plan, for documents, without those of loader rules.
formats::Json warnings_json(const convert::Plan& plan);
/// Facts to be known before the work: a few lines, unless it `is_whole`.
std::string remarks_text(const convert::Plan& plan, bool is_whole);

/// The report at the end of a conversion: as verify::report_text, a screen, or `n_worst` tensors
/// and every other line.
std::string report_text(const convert::Plan& plan, const convert::ExecuteReport& report,
                        const std::string& output, std::optional<std::size_t> n_worst);
formats::Json report_json(const convert::Plan& plan, const convert::ExecuteReport& report,
                          const std::string& output);

}  // namespace ingot::cli
