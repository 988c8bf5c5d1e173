#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "check/rules/finding.h"
#include "convert/job/base_output.h"
#include "convert/job/claim.h"
#include "convert/output/tensor_records.h"
#include "convert/recipe/source_stamps.h"
#include "convert/run/convert_tensors.h"
#include "engines/verdicts.h"

namespace ingot::convert {

class GivenTensors;

/// The verdict on a finished output that has no final name yet.
struct Inspection {
  bool may_publish = true;
  std::string report;  ///< becomes ingot.verify.json next to the manifest; empty: there is none
};

/// The work that a StopScope around an execution ends.
inline constexpr std::string_view kStoppable = "the output was made; continue with --resume";

/// A source as a command names it, which may be deleted.
struct NamedSource {
  std::filesystem::path directory;
  std::string family;  ///< OpenOptions::family; empty: as config.json says
};

/// How a plan is executed; a StopScope ends it, and it can be resumed. Nothing here influences a
/// byte of the output, sha256, inspect, gate and no_verify excepted (they add to it).
struct ExecuteOptions {
  RunName run;  ///< shown to another run that wants the same output
  /// Stamps of the source's files, made before the first was opened; empty: they are made when the
  /// execution starts.
  SourceStamps stamps;
  /// The hub's cache, which other programs share, in addition to folders that look like a part of
  /// one; empty: none is known.
  std::filesystem::path hub_cache;
  std::size_t threads = 1;
  std::uint64_t mem_limit = std::uint64_t{4} << 30;
  /// A program that gives the source's bytes; null: they are in its files.
  GivenTensors* given = nullptr;
  /// An output of an earlier version of the source, of which unchanged tensors are taken over.
  BasePlace base = {};
  bool resume = false;
  bool force = false;
  /// Publishes the files that all parts of the job have made (PlanOptions::part), of a plan of the
  /// whole.
  bool join = false;
  bool consume_source = false;
  bool sha256 = false;
  bool direct_io = true;
  bool read_back = false;     ///< read the staged files again, past the page cache
  bool follow_links = false;  ///< links of side files to outside the source are followed
  /// Stops at the first tensor of which the output would not hold every value (ValueLost).
  bool lossless_only = false;
  std::size_t n_worst = 20;  ///< tensors in QualityReport::worst
  /// Called once when nothing refuses the job any more, before its first byte.
  std::function<void()> accepted;
  /// Called with each phase that begins, e.g. "reading back".
  std::function<void(std::string_view)> phase;
  /// (bytes done, bytes in all) of the output; called from several threads.
  std::function<void(std::uint64_t, std::uint64_t)> progress;
  /// Called with the directory of the finished files before anything is published, or with that of
  /// an output that was finished before; null: no inspection. A resumed job that was about to
  /// publish has been through it.
  std::function<Inspection(const std::filesystem::path& staged)> inspect;
  /// The settings that ask for the inspection, for the model card and the journal; null: none. A
  /// run that continues must inspect too, or say no_verify, which the manifest records.
  formats::JsonValue gate;
  formats::JsonValue settings;  ///< all that was said of the run, for who joins parts; may be null
  bool no_verify = false;
  /// One line per event worth keeping; called by one thread at a time.
  std::function<void(const std::string&)> log;

  void begin_phase(std::string_view name) const {
    if (phase) phase(name);
  }
};

struct ExecuteReport {
  bool already_done = false;    ///< the output was finished before; nothing was written
  bool only_published = false;  ///< an earlier run had made it all but the final names
  bool refused = false;         ///< ExecuteOptions::inspect refused: this run published no file,
                                ///< unless one of the two above is true
  std::uint32_t n_joined = 0;   ///< parts, by ExecuteOptions::join
  std::uint64_t tensors_resumed = 0;  ///< taken over from an earlier run
  std::uint64_t tensors_taken = 0;    ///< tensors taken over from ExecuteOptions::base
  std::uint64_t bytes_taken = 0;      ///< bytes of these
  std::uint64_t files_taken = 0;      ///< files taken over whole
  std::uint64_t tensors_redone = 0;   ///< tensors in the journal whose bytes had not survived
  double elapsed_seconds = 0;
  TensorRunReport tensors;  ///< figures of the tensors that this run converted
  MemoryPlan memory;
  QualityReport quality;
  ChangeReport changes;
  std::vector<check::Finding> warnings;  ///< findings of the loader rules, and of the file system
  std::vector<engines::EngineVerdict> engines;  ///< verdicts of Loadable::engines
};

}  // namespace ingot::convert
