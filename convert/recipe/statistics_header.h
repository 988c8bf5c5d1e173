#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "formats/base/error.h"
#include "formats/base/fd.h"

namespace ingot::convert {

/// Where values of a tensor stand in a file of activation statistics.
struct StatisticPlace {
  std::uint64_t offset = 0;  ///< absolute
  std::uint64_t count = 0;   ///< of F32 values
};

/// What such a file holds about the input of one module.
struct ModuleStatistics {
  std::optional<StatisticPlace> min, max, amax, mean_square;
};

/// Experts that no token of the calibration reached, by layer (`model.layers.3`): their statistics
/// are those of their peers.
using FilledExperts = std::map<std::string, std::vector<std::uint64_t>, std::less<>>;

/// A file of activation statistics (docs/formats.md, "Activation statistics"), its values but for
/// expert_tokens unread.
struct StatisticsHeader {
  std::map<std::string, ModuleStatistics, std::less<>> modules;
  FilledExperts filled;
};

/// Adds kCorrupt for other names, dtypes or shapes and for a negative number of tokens; throws what
/// read_safetensors_header does.
StatisticsHeader read_statistics_header(const Fd& file, ErrorList& errors);

std::vector<float> read_statistics(const Fd& file, const StatisticPlace& place);

}  // namespace ingot::convert
