#pragma once

#include <map>
#include <vector>

#include "convert/journal.h"
#include "convert/output_directory.h"
#include "convert/plan.h"

namespace ingot::convert {

/// What identifies a job. Two runs with equal identities write the same bytes, so one may continue
/// the other.
formats::Json job_identity(const Plan& plan, const formats::Checkpoint& source,
                           const Recipe& recipe, const PlanOptions& options,
                           const formats::Json& fingerprint);

/// Throws kMismatch saying what differs (version, recipe, a source file, the plan).
void require_same_job(const formats::Json& earlier, const formats::Json& now);

/// Reads what the journal claims to be done from the staged files and keeps the items whose bytes
/// hash to it; the others are done again. Items come in ascending order.
std::vector<std::uint32_t> verify_journal(const Plan& plan, const formats::TensorSource& source,
                                          const OutputPaths& paths,
                                          const std::map<std::uint32_t, ItemRecord>& items,
                                          std::size_t threads);

/// True when the bytes of one item in the staged files hash to `expected`.
bool verify_item(const PlannedTensor& planned, const Plan& plan,
                 const formats::TensorSource& source, const OutputPaths& paths,
                 const std::vector<std::vector<Hash128>>& expected);

}  // namespace ingot::convert
