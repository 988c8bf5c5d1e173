#pragma once

#include <filesystem>
#include <fstream>
#include <string>

#include "formats/json/json_fwd.h"
#include "inference/generate/generate.h"
#include "inference/parallel/comm.h"

namespace ingot::cli {

/// The bytes that a rank sent to others, how long it waited for them, and which part of the time
/// that exchanges took was hidden by work, in one line.
std::string traffic_summary(const inference::TrafficByCollective& traffic);

/// Steps, sequences at once and preemptions, in a part of a line.
std::string steps_text(const inference::StepTotals& steps);
/// All totals of the steps, in a document.
formats::Json steps_json(const inference::StepTotals& steps);

/// The file of `generate --log`: a JSON object in a line for each step, as it ends, and one for all
/// of them.
class StepLog {
 public:
  /// Replaces an earlier log. Throws, naming the file, when it cannot be written; so do the others.
  explicit StepLog(std::filesystem::path path);
  /// `traffic`: of this rank since the start, of which the line gets the growth; empty for one
  /// process.
  void write(const inference::StepFigures& figures, const inference::TrafficByCollective& traffic);
  void write(const inference::StepTotals& steps);

 private:
  void write_line(const formats::Json& line);

  std::filesystem::path path_;
  std::ofstream file_;
  inference::TrafficByCollective before_;
};

}  // namespace ingot::cli
