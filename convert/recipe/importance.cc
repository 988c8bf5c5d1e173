#include "convert/recipe/importance.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "check/stored_hashes.h"
#include "formats/base/error.h"

namespace ingot::convert {
namespace {

bool is_weight(float value) {
  return value >= 0 && std::isfinite(value);
}

}  // namespace

Importance Importance::read(const std::filesystem::path& path) {
  Importance importance;
  importance.file_ = Fd::open_for_reading(path);
  importance.stamp_ = importance.file_.stamp();
  ErrorList errors;
  StatisticsHeader header = read_statistics_header(importance.file_, errors);
  for (const auto& [module, statistics] : header.modules) {
    if (!statistics.mean_square) continue;
    const std::vector<float> values = read_statistics(importance.file_, *statistics.mean_square);
    if (const auto bad = std::find_if_not(values.begin(), values.end(), is_weight);
        bad != values.end()) {
      errors.add(Error(ErrorCode::kCorrupt, fmt::format("has a mean square of {} in column {}",
                                                        *bad, bad - values.begin()))
                     .in_tensor(module));
      continue;
    }
    importance.places_.emplace(module, *statistics.mean_square);
  }
  try {
    errors.throw_if_any();
  } catch (Error& error) {
    throw error.in_file(path.string());
  }
  importance.filled_ = std::move(header.filled);
  importance.hash_ = formats::hash_file(path);
  return importance;
}

std::optional<StatisticPlace> Importance::find(std::string_view module) const {
  const auto found = places_.find(module);
  if (found == places_.end()) return std::nullopt;
  return found->second;
}

std::vector<float> Importance::weights(const StatisticPlace& place) const {
  return read_statistics(file_, place);
}

}  // namespace ingot::convert
