#pragma once

#include <string>

#include "convert/execute.h"
#include "convert/plan.h"
#include "convert/preflight.h"
#include "formats/json/json.h"

namespace ingot::cli {

/// What a dry run shows: everything is decided from headers.
struct DryRun {
  const convert::Plan& plan;
  const formats::Checkpoint& source;
  const convert::Recipe& recipe;
  const convert::Preflight& checked;
  bool is_assumed = false;  ///< the free disk, by --assume-disk
};

std::string dry_run_text(const DryRun& dry_run);
formats::Json dry_run_json(const DryRun& dry_run);

/// The report at the end of a conversion.
std::string report_text(const convert::Plan& plan, const convert::ExecuteReport& report);
formats::Json report_json(const convert::Plan& plan, const convert::ExecuteReport& report);

/// The rule that fires for one tensor, and what becomes of it.
std::string explain_text(const convert::Plan& plan, const formats::Checkpoint& source,
                         const convert::Recipe& recipe, std::string_view tensor);

}  // namespace ingot::cli
