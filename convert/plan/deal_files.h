#pragma once

#include "convert/plan/plan.h"

namespace ingot::convert {

/// Deals the parts of every tensor to files: fills Plan::files (without header, sizes and data
/// order) and Plan::places (without offsets). By layout: files of the source, files of a size, rows
/// of files per owner set of ranks, one file per rank.
void deal_files(const formats::Checkpoint& source, const PlanOptions& options, Plan& plan);

}  // namespace ingot::convert
