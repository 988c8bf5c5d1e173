#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "convert/job/claim.h"
#include "convert/job/execute.h"
#include "convert/job/journal.h"
#include "convert/job/preflight.h"
#include "convert/job/source_consumer.h"
#include "convert/output/staged_files.h"

namespace ingot::convert {

/// One execution, from an empty or unfinished directory that this run has claimed to a published
/// one, with which the claim is given back. Its steps are called in the order of their declarations
/// (convert/convert.cc).
class Execution {
 public:
  Execution(const Plan& plan, Claim& claim, const ExecuteOptions& options, Preflight checked);

  /// True if an earlier run had made the whole output, except for the final names of its files.
  [[nodiscard]] bool is_complete() const { return earlier_ && earlier_->publishing; }
  /// Goes on with the publication of such a run.
  ExecuteReport publish_again();

  /// Starts a journal, or takes over the results of earlier runs that their journals claim; those
  /// of parts, when they are joined, without reading the files again.
  void begin();
  void convert_weights();
  /// The end of a part: says that its files are complete.
  ExecuteReport finish_part();
  /// Writes side files, JSON, records and manifests, and reads all back if that was asked for.
  void stage_beside_weights();
  /// False when the inspection refuses the staged files.
  bool passes_inspection();
  ExecuteReport publish();
  ExecuteReport report();

 private:
  void resume(const JournalContents& earlier);
  void join(const JournalContents& parts);
  void open_journal();
  void take_over_base();
  void consume_from_here();
  void add_inspection_report();
  [[nodiscard]] std::set<std::string> replaced_files() const;
  void require_no_new_files(bool replacing) const;
  void finish_publishing(bool replacing, const StagedFiles* staged);
  void warn_of_file_system();
  void link_source_files();
  void require_links();
  void require_sources_of_open_tensors() const;
  void on_durable(const std::vector<std::uint32_t>& tensors);
  [[nodiscard]] std::set<std::string> weights_names() const;
  void warn(std::string text) { report_.warnings.push_back(check::remark(std::move(text))); }
  void log(const std::string& line) const {
    if (options_.log) options_.log(line);
  }

  const Plan& plan_;
  Claim& claim_;
  const OutputPaths paths_;
  const ExecuteOptions& options_;
  const std::size_t threads_;
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  const formats::JsonValue identity_;
  const std::optional<JournalContents> earlier_;
  const std::vector<std::string> replaced_;  // old files that this run may replace
  SourceStamps stamps_;
  std::vector<std::string> names_;
  bool has_report_ = false;  // among names_
  std::vector<TensorResult> results_;
  std::vector<std::uint32_t> taken_;  // from the base
  std::vector<char> done_, whole_files_;
  std::optional<StagedFiles> staged_;
  std::optional<Journal> journal_;
  std::optional<SourceConsumer> consumer_;
  ExecuteReport report_;
};

}  // namespace ingot::convert
