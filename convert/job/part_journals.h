#pragma once

#include <optional>
#include <vector>

#include "convert/job/journal.h"
#include "convert/job/run_files.h"
#include "convert/plan/plan.h"

namespace ingot::convert {

/// The journals of the runs that parts of a job have had. That of a run holds everything that the
/// part has, once it has taken over the results of earlier runs.
struct PartJournal {
  RunFile file;
  JournalContents contents;
};
std::vector<PartJournal> read_part_journals(const OutputPaths& paths);

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

/// The runs of parts, and then of the whole, that asked for a verification, in their order.
std::vector<RunRecord> gated_runs(const OutputPaths& paths);

/// The settings of a part's run that this output has; null when there is none, or they were not
/// recorded. Those that ask for a verification come before others.
formats::JsonValue settings_of_part(const OutputPaths& paths);

/// Throws kExists when an unfinished job is there that `part`, begun without --resume, is not one
/// of: it was begun whole, or in another number of parts, or has this one already.
void require_new_part(const OutputPaths& paths, const JobPart& part);

}  // namespace ingot::convert
