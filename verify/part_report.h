#pragma once

#include <filesystem>
#include <span>
#include <string>

#include "formats/json/json_fwd.h"
#include "verify/verification.h"

namespace ingot::verify {

/// The findings of a run with a share of the work, for reports to be joined:
/// `{"part": {...}}`, of a document. `report` is that of verify_pair() with `options`, whose ledger
/// is not null. `settings`: of the comparison, without those of the run.
formats::Json part_json(const Report& report, const VerificationOptions& options,
                        const formats::Json& settings);

/// Reports of all parts.
struct JoinedParts {
  PartLedger ledger;
  formats::JsonValue settings;  ///< settings of the parts, from who knows where
  std::string subject;          ///< the parts of the model that were compared, and how

  /// Throws kMismatch unless the parts are of the same verification as this report.
  void require_of(const Report& report, const VerificationOptions& options) const;
};

/// Reads the reports of all parts of one verification, in any order. Throws kCorrupt for a file
/// that is none, kMismatch for reports of different checkpoints, options or versions,
/// kInvalidArgument for a part that is there twice, and kNotFound naming those that are missing.
JoinedParts join_parts(std::span<const std::filesystem::path> reports);

}  // namespace ingot::verify
