#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "formats/base/fd.h"
#include "verify/calibrate/calibrated_modules.h"
#include "verify/calibrate/input_statistics.h"

namespace ingot::verify {

/// The file of activation statistics (docs/formats.md) while it is made: laid out beforehand,
/// filled in any order under another name, which goes away unless it is published.
class StatisticsFile {
 public:
  /// `n_experts` of each of `moe_layers`. kExists when `path` is there; kNoSpace when the file does
  /// not fit.
  StatisticsFile(std::filesystem::path path, std::span<const CalibratedModule> modules,
                 std::span<const std::uint32_t> moe_layers, std::size_t n_experts,
                 std::uint64_t documents, std::uint64_t tokens);
  ~StatisticsFile();
  StatisticsFile(const StatisticsFile&) = delete;
  StatisticsFile& operator=(const StatisticsFile&) = delete;

  void write(const CalibratedModule& module, const InputSummary& summary);
  void write_expert_tokens(std::uint32_t layer, std::span<const std::int64_t> tokens);
  /// Everything written is on disk under its name.
  void publish();

 private:
  void put(const std::string& name, std::span<const std::byte> bytes);

  std::filesystem::path path_, partial_;
  Fd file_;
  std::map<std::string, std::uint64_t, std::less<>> offsets_;
  bool is_published_ = false;
};

}  // namespace ingot::verify
