#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "formats/json/json_fwd.h"
#include "verify/verification.h"

namespace ingot::verify {

/// The words of a command, and where they were said.
struct CommandWords {
  std::string directory;
  std::vector<std::string> words;
};

/// The findings of a run with a share of the work, for reports to be joined:
/// `{"part": {...}}`, of a document. `report` is that of verify_pair() with `options`, whose ledger
/// is not null. `command`: the run's, without its part.
formats::Json part_json(const Report& report, const VerificationOptions& options,
                        const CommandWords& command);

/// Reports of all parts.
struct JoinedParts {
  PartLedger ledger;
  CommandWords command;  ///< command of the first part
  std::string subject;   ///< the parts of the model that were compared, and how

  /// Throws kMismatch unless the parts are of the same verification as this report.
  void require_of(const Report& report, const VerificationOptions& options) const;
};

/// Reads the reports of all parts of one verification, in any order. Throws kCorrupt for a file
/// that is none, kMismatch for reports of different checkpoints, options or versions,
/// kInvalidArgument for a part that is there twice, and kNotFound naming those that are missing.
JoinedParts join_parts(std::span<const std::filesystem::path> reports);

}  // namespace ingot::verify
