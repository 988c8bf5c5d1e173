#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "formats/base/fd.h"
#include "formats/files/folder.h"
#include "formats/json/json_fwd.h"
#include "formats/records/calibration.h"
#include "verify/calibrate/planned_file.h"

namespace ingot::verify {

/// A directory of statistics while it is made: files are in `.ingot-partial/` below it, with the
/// state that a later run continues from, until all of them are renamed out of it, the record last.
class StatisticsDirectory {
 public:
  /// The progress of a run.
  struct State {
    std::uint64_t steps = 0;   ///< steps whose results are on disk
    std::uint64_t states = 0;  ///< number of the file with the hidden states behind them
    std::vector<formats::CalibrationFile> moments;
  };

  /// Makes the directory, which must be absent, or continues in it. `identity` says what is
  /// calibrated and how. Throws kExists where it is there, or another run is at work in it;
  /// kNotFound where no run can be continued; kMismatch where that has another identity.
  StatisticsDirectory(const std::filesystem::path& path, bool resumes,
                      const formats::Json& identity);
  /// Removes everything, unless it was published or is kept.
  ~StatisticsDirectory();
  StatisticsDirectory(const StatisticsDirectory&) = delete;
  StatisticsDirectory& operator=(const StatisticsDirectory&) = delete;

  [[nodiscard]] const Folder& partial() const { return *partial_; }
  /// The state of the run that is continued; nullopt: it begins.
  [[nodiscard]] const std::optional<State>& earlier() const { return earlier_; }
  /// True if only renaming is left to be done.
  [[nodiscard]] bool is_complete() const;

  /// Replaces the state on disk. Everything that it tells of must be synced.
  void commit(const State& state);
  /// A run that ends now can be continued.
  void keep() { is_kept_ = true; }
  /// Writes the record, and renames the files that it names.
  void publish(const formats::CalibrationRecord& record);
  /// Renames what another run did not come to.
  void publish_again();

 private:
  void rename_files();
  void read_state(const formats::Json& identity);

  std::filesystem::path path_;
  std::optional<Folder> folder_, partial_;
  Fd lock_;
  std::string identity_;
  std::optional<State> earlier_;
  bool is_kept_ = false;
};

}  // namespace ingot::verify
