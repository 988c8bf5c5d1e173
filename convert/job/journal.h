#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "convert/job/claim.h"
#include "convert/output/tensor_records.h"
#include "formats/base/fd.h"
#include "formats/json/json_fwd.h"

namespace ingot::convert {

/// How a run went about the job, apart from the job's identity.
struct RunRecord {
  bool replacing = false;  ///< true: the run replaces an older checkpoint (--force)
  /// The files that were there when it began, and may be replaced and removed (OldFiles::known).
  std::vector<std::string> replaced = {};
  formats::JsonValue gate = {};      ///< gates, as ExecuteOptions has them
  formats::JsonValue allow;          ///< the recipe's, which may have more than the identity's
  formats::JsonValue sources;        ///< stamps of the source's files (SourceStamps)
  formats::JsonValue settings = {};  ///< settings of the run, as ExecuteOptions has them
};

/// The contents of a journal. Source: docs/records.md, "Journal".
struct JournalContents {
  /// The job's identity: version, recipe with the last run's `allow`, source, plan.
  formats::JsonValue identity;
  std::vector<RunRecord> runs;  ///< runs that worked on the job, the first one first
  std::map<std::uint32_t, TensorResult> items;  ///< durable items
  std::set<std::string> consumed;               ///< source files that were deleted
  bool complete = false;                        ///< a part has written all its files
  bool doubtful = false;    ///< joined parts only: another run may have begun their files again
  bool publishing = false;  ///< renaming had begun
  bool replacing = false;   ///< ... over an older checkpoint (--force)
  std::vector<std::string> published = {};  ///< ... to these names
  bool inspected = false;                   ///< ... with a report of its inspection
  bool consuming = false;  ///< ... and source files that are left are deleted (--consume-source)
  std::uint64_t valid_bytes = 0;  ///< length of the readable prefix; a torn tail follows

  /// True if any run replaces an older checkpoint.
  [[nodiscard]] bool was_forced() const;
  /// Files that were there before any of the runs, or that a publication which was cut put here.
  [[nodiscard]] std::set<std::string> found_files() const;
  /// The verification that the last run to ask for one asked for; null when none did.
  [[nodiscard]] formats::JsonValue gate() const;
};

/// The append-only record of a conversion, one checksummed line per fact, so that a killed job can
/// continue. A line is written only when its fact is on disk.
class Journal {
 public:
  /// Starts a new journal whose first line is the identity.
  static Journal create(const std::filesystem::path& path, const formats::Json& identity);
  /// Continues one: cuts the torn tail off.
  static Journal append_to(const std::filesystem::path& path, const JournalContents& contents);
  /// Reads up to the first damaged line. Nullopt when there is no journal, or its first line is
  /// damaged.
  static std::optional<JournalContents> read(const std::filesystem::path& path);

  void add_run(const RunRecord& run);
  void add_results(const std::map<std::uint32_t, TensorResult>& items);
  /// Everything that this part of the job writes is durable.
  void add_complete();
  void add_consumed(const std::string& file);
  void add_publishing(bool replacing, bool inspected, bool consuming = false,
                      const std::vector<std::string>& names = {});

 private:
  Journal(Fd file, std::uint64_t size) : file_(std::move(file)), size_(size) {}
  void append(const std::string& text);

  Fd file_;
  std::uint64_t size_ = 0;
};

}  // namespace ingot::convert
