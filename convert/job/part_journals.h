#pragma once

#include <optional>
#include <vector>

#include "convert/job/journal.h"
#include "convert/output/output_directory.h"
#include "convert/plan/plan.h"

namespace ingot::convert {

/// The leftovers of all runs on this output of the items that this plan's run writes: of the whole
/// (its journal) and of parts, whatever their number. Nullopt when there is no journal. Throws
/// kMismatch when they are not of one job. An item that two journals tell differently is left out.
std::optional<JournalContents> earlier_contents(const Plan& plan, const OutputPaths& paths);

/// The results of all parts of a job, when each of them is complete: every item of the plan, whose
/// run is that of the whole. Doubtful when a run in another number of parts, or without, has a
/// journal too: its files are these. Throws kNotFound, naming the parts that are missing or
/// unfinished; kMismatch when parts are not of one job or two of them read a tensor differently,
/// and, collected, for weights files that have not the size and header that their parts gave them.
JournalContents joined_contents(const Plan& plan, const OutputPaths& paths);

/// The runs of parts, and then of the whole, that have journals here, in their order.
std::vector<RunRecord> runs_of(const OutputPaths& paths);

/// The settings with which the job is joined: of a run of a part, or of a join that was killed;
/// null when none were recorded. Those that ask for a verification come before others.
formats::JsonValue settings_of_part(const OutputPaths& paths);

/// Throws kExists when an unfinished job is there that `part`, begun without --resume, is not one
/// of: it was begun whole, or in another number of parts, or has this one already.
void require_new_part(const OutputPaths& paths, const JobPart& part);

}  // namespace ingot::convert
