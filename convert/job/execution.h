#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "convert/job/claim.h"
#include "convert/job/execute.h"
#include "convert/job/journal.h"
#include "convert/job/preflight.h"
#include "convert/job/source_consumer.h"
#include "convert/output/staged_files.h"
#include "convert/run/item_runner.h"
#include "formats/base/job_threads.h"

namespace ingot::convert {

/// One execution, from an empty or unfinished directory that this run has claimed to a published
/// one.
class Execution {
 public:
  Execution(const Plan& plan, const formats::Checkpoint& source, const Recipe& recipe,
            const Claim& claim, const OutputPaths& paths, const ExecuteOptions& options);

  ExecuteReport run(const formats::Json& identity, Preflight checked);

 private:
  void convert(const formats::Json& identity, const std::optional<JournalContents>& earlier);
  bool passes_inspection();
  void add_report();
  void finish_publishing(bool replacing, const StagedFiles* staged);
  void warn_of_file_system();
  void begin(const formats::Json& identity);
  void resume(const JournalContents& earlier);
  void consume_from_here();
  void require_links();
  void require_sources_of_open_items() const;
  void convert_items();
  [[nodiscard]] std::optional<float> journalled_amax(std::uint32_t group) const;
  void on_durable(const std::vector<std::uint32_t>& items);
  void take_side_files();
  void warn(std::string text) { report_.warnings.push_back(std::move(text)); }
  void log(const std::string& line) const {
    if (options_.log) options_.log(line);
  }

  const Plan& plan_;
  const formats::Checkpoint& source_;
  const Recipe& recipe_;
  const Claim& claim_;
  const OutputPaths paths_;
  const ExecuteOptions& options_;
  const JobThreads threads_;
  SourceStamps stamps_;
  std::vector<std::string> names_;
  bool has_report_ = false;  // among names_
  std::vector<ItemRecord> hashes_;
  std::vector<char> done_;
  std::optional<StagedFiles> staged_;
  std::optional<Journal> journal_;
  std::optional<SourceConsumer> consumer_;
  StageTimes times_;
  ExecuteReport report_;
};

}  // namespace ingot::convert
