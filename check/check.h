#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <vector>

#include "check/opened.h"
#include "check/rules/loader_rules.h"
#include "check/stored_hashes.h"

namespace ingot::check {

/// How a checkpoint is checked. A StopScope ends it.
struct CheckOptions {
  std::string family = {};  ///< family, as OpenOptions::family
  bool deep = false;        ///< read every FP8 weight for NaN codes
  bool hashes = true;       ///< true: every tensor is hashed where a manifest is with the weights
  std::uint64_t most_bytes = UINT64_MAX;  ///< see RuleOptions::most_bytes
  bool manifest = true;  ///< false: the files are checked as those of another program
  std::size_t threads = 1;
  std::uint64_t tensor_parallel = 1;  ///< ranks, as RuleOptions::tensor_parallel
  HashLedger* ledger = nullptr;       ///< hashes that are shared with other runs, or null
};

struct CheckResult {
  /// Findings of the structure, then of loader rules in table order, then of hashes.
  std::vector<Finding> findings;
  std::uint64_t n_files = 0, n_tensors = 0, n_bytes = 0, n_hashed = 0;
  Unread unread;  ///< scales that are larger than CheckOptions::most_bytes
  bool has_manifest = false;
  /// Weights are in files or codes of a form that this version does not read: how engines read them
  /// is unknown.
  bool has_unread_form = false;
  std::string family, dialect;

  /// Adds a finding of no row; `file` and `tensor` may be empty.
  void add(ErrorCode code, std::string_view file, std::string_view tensor, std::string message) {
    findings.push_back(violation(code, file, tensor, std::move(message)));
  }
  /// Sets the counts of files, tensors and bytes.
  void count(std::span<const formats::SourceFile> files, std::size_t n_stored);
};

/// Finds all faults of a directory at once; throws only when it cannot be read at all (no such
/// directory, permission). Where a checkpoint was cut for ranks, every rank's directory is checked
/// too; where its layout has files of all ranks side by side, only sizes and hashes.
CheckResult check_checkpoint(const std::filesystem::path& directory, const CheckOptions& options);

/// Checks that `source` is the checkpoint that `converted` was made from, by the per-tensor source
/// hashes in the latter's manifest. One finding per tensor that differs or is missing.
CheckResult check_is_source_of(const std::filesystem::path& source,
                               const std::filesystem::path& converted, std::size_t threads = 1);

/// Adds the result of `path`, the directory `name` of a whole: its findings with that name before
/// their files, and its counts.
void add_directory(const std::string& name, const std::filesystem::path& path, CheckResult part,
                   CheckResult& whole);

/// check_checkpoint of any directory, or single weights file, that can be opened. Where it holds
/// slices, each directory that has a manifest is checked by itself, and then the model that they
/// are together: contradictions between them, and refusals of loaders. A finding of one directory
/// is not repeated. `config`: as SourceOptions has it.
CheckResult check_directory(const std::filesystem::path& directory, const CheckOptions& options,
                            const std::filesystem::path& config);
/// Checks one that is open already, under the family of `options`.
CheckResult check_directory(const Opened& opened, const CheckOptions& options);

}  // namespace ingot::check
