#pragma once

#include <string>

#include "convert/plan/plan.h"
#include "report/document.h"

namespace ingot::cli {

/// The dry run of a sliced plan: the table of ranks with the bytes that each loads, the experts,
/// and the changes of --tp-fit. Empty for an unsliced one.
std::vector<Block> slicing_blocks(const convert::Plan& plan);
formats::Json slicing_report_json(const convert::Plan& plan);

/// Facts that a user must know of a plan that --tp-fit changed, one line each.
std::vector<std::string> alignment_notes(const convert::Plan& plan);

}  // namespace ingot::cli
