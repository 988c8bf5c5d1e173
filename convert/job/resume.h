#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "convert/job/journal.h"
#include "convert/output/output_directory.h"
#include "convert/plan/plan.h"
#include "formats/base/job_threads.h"

namespace ingot::convert {

/// The items of an earlier run whose sources still hash to what was read then, of those that read a
/// file in `changed`; all others. Tensors of a fused set stay or go together.
std::map<std::uint32_t, TensorResult> results_of_same_source(
    const Plan& plan, const std::map<std::uint32_t, TensorResult>& items,
    const std::set<std::string>& changed, const JobThreads& threads);

/// The items that cannot be made again, since a source file of theirs, or of their fused set, was
/// consumed.
std::map<std::uint32_t, TensorResult> results_without_source(
    const Plan& plan, const std::map<std::uint32_t, TensorResult>& items);

/// Reads what the journal claims to be done from the staged files and keeps the items whose bytes
/// hash to it; the others are done again. Items come in ascending order.
std::vector<std::uint32_t> verify_journal(const Plan& plan, const OutputPaths& paths,
                                          const std::map<std::uint32_t, TensorResult>& items,
                                          const JobThreads& threads);

/// True when the bytes of one item in the staged files hash to `expected`.
bool verify_tensor(const PlannedTensor& planned, const Plan& plan, const OutputPaths& paths,
                   const std::vector<std::vector<Hash128>>& expected, const CheckStop& check_stop);

}  // namespace ingot::convert
