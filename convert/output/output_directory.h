#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "convert/output/staged_files.h"
#include "convert/plan/plan.h"

namespace ingot::convert {

/// The state of the place of the output.
enum class OutputState : std::uint8_t {
  kEmpty,       ///< no entry, or an empty directory
  kUnfinished,  ///< .ingot-partial holds more than claims: another run was here, or is
  kFinished,    ///< holds a manifest
  kForeign,     ///< anything else
};

OutputState output_state(const std::filesystem::path& output);
/// Returns the state that the output would have without .ingot-partial.
OutputState state_beneath(const std::filesystem::path& output);

/// Paths of an output in the making.
struct OutputPaths {
  explicit OutputPaths(std::filesystem::path directory);
  std::filesystem::path output;
  std::filesystem::path partial;  ///< output/.ingot-partial
  std::filesystem::path staged;   ///< partial/files: everything that will be published
  std::filesystem::path
      consumed;                   ///< partial/consumed: headers of source files that may be deleted
  std::filesystem::path journal;  ///< partial/journal.jsonl
  std::filesystem::path claims;   ///< partial/claims: who is writing here (claim.h)
  std::filesystem::path parts;    ///< partial/parts: journals of parts (run_files.h)
  std::filesystem::path swept;    ///< output/.ingot-swept: the partial folder of a finished output
};

/// Throws kExists where a folder that a run writes into, empties or removes is a symbolic link or
/// another mount: those of an unfinished output, and those of ranks and of the files `names`.
void require_own_folders(const OutputPaths& paths, const std::vector<std::string>& names = {});

/// Removes everything of an unfinished output but claims, and the leftovers of a publication.
void clear_partial(const OutputPaths& paths);

/// Every file of the output in the order in which it gets its final name: weights and side files,
/// then config.json and the index, then the records, the manifest last; so in all directories of
/// ranks at once, and above them after all of them.
std::vector<std::string> publish_order(const Plan& plan);

/// Gives the staged files their final names, if they are those of `staged` (null: any files of
/// these names, for a publication that was cut). May be repeated after a kill: a file that is no
/// longer staged must be in place already.
void publish(const OutputPaths& paths, const std::vector<std::string>& names,
             const StagedFiles* staged);

/// Makes the output a finished one, by the rename of .ingot-partial to .ingot-swept: files that may
/// be needed until then, as headers of consumed source files, are whole until the last step.
void sweep(const OutputPaths& paths);
/// Removes .ingot-swept. REQUIRES: none of its files is open. Network and FUSE file systems keep an
/// open file under another name, and its folder with it.
void remove_swept(const OutputPaths& paths);

}  // namespace ingot::convert
