#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "delta/chain.h"
#include "formats/files/folder.h"

// A change of a checkpoint in its place, which a second run can finish: everything that is to be
// written is on disk before the first byte of the checkpoint changes. Until then it lies in
// DIR/.ingot-delta, then in DIR/.ingot-partial, which every reader of ours refuses to read past.
// Ranges of weights files are in `runs-N`: absolute bytes, so writing them twice does no harm.
// Files that are replaced whole are in `files/`. `delta.json` says what all of it is.

namespace ingot::delta {

/// The content of `delta.json`.
struct JournalFacts {
  std::uint64_t version = 0;
  std::size_t n_runs = 0;                      ///< files of runs
  std::map<std::uint64_t, std::string> files;  ///< weights files in which runs are, by number
  std::vector<std::string> staged;             ///< files that get their names from `files/`
  std::vector<std::string> removed;            ///< files that go
  /// Directories of ranks, which get the state of the version as the directory above them does.
  std::vector<std::string> folders = {};
};

/// Ranges of one worker, as a zstd stream. From one thread.
class RunWriter {
 public:
  explicit RunWriter(Fd file);
  ~RunWriter();
  RunWriter(RunWriter&&) noexcept;
  RunWriter& operator=(RunWriter&&) noexcept;
  /// Notes the bytes in which a piece differs. Pieces of a tensor come in order.
  void add(const TensorPiece& piece);
  /// Ends the stream, on disk when this returns.
  void finish();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Where a journal is in the making, and where it is when it holds.
inline constexpr std::string_view kStagingName = ".ingot-delta";
inline constexpr std::string_view kStagedFiles = "files";
/// The name of a finished journal until it is removed.
inline constexpr std::string_view kSweptName = ".ingot-swept";
std::string runs_name(std::size_t worker);

/// Makes the journal in `folder`/.ingot-delta hold: from here on the new version is the only one.
void commit_journal(const Folder& folder, const JournalFacts& facts);
/// True if the directory has a journal that holds.
bool has_journal(const std::filesystem::path& directory);
/// Does what the journal says, and removes it. May be repeated, whatever ended it. Returns the
/// version that the directory holds then. Never opens a file that has other names.
std::uint64_t finish_journal(const Folder& folder, std::size_t threads);

/// Puts `.weight_sync/state.json` in its place in `folder`, or in the directory `inside` of it, on
/// disk when this returns.
void write_state(const Folder& folder, const std::filesystem::path& inside, std::uint64_t version);

}  // namespace ingot::delta
