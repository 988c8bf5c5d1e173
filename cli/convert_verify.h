#pragma once

#include <filesystem>
#include <functional>
#include <string>

#include "cli/job_option.h"
#include "cli/verify_words.h"
#include "convert/job/execute.h"

namespace ingot::cli {

class FlagTable;

/// Words of `convert --verify`.
struct ConvertVerifyWords {
  std::string levels;  ///< empty: publish without being asked
  GateWords gates;
  bool skip = false;  ///< --no-verify

  /// As they were given, for the journal; empty without --verify.
  [[nodiscard]] std::string text() const;
  /// Throws for words that are not understood, or that go with no verification.
  void require_valid(const JobWords& job) const;
  /// Throws kUnsupported for levels that run a model which has no forward pass: hours later, when
  /// everything is converted, they could not be run.
  void require_possible(const formats::Checkpoint& source) const;
};
void declare_convert_verify(FlagTable& table, ConvertVerifyWords& words);

/// Compares what was made with `input`, what it was made of, before anything is published, and
/// prints the report on stderr; null when that was not asked for. The words must outlive it.
std::function<convert::Inspection(const std::filesystem::path& staged)> inspection_of(
    const ConvertVerifyWords& words, const std::string& input, const std::string& family,
    const JobWords& job);

}  // namespace ingot::cli
