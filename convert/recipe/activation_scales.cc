#include "convert/recipe/activation_scales.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "check/stored_hashes.h"
#include "formats/base/error.h"

namespace ingot::convert {
namespace {

std::optional<float> read_float(const Fd& file, const std::optional<StatisticPlace>& place) {
  if (!place) return std::nullopt;
  return read_statistics(file, *place).front();
}

// Nothing for modules of which other things are known.
std::optional<InputRange> range_of(const Fd& file, const std::string& module,
                                   const ModuleStatistics& statistics) {
  const auto refuse = [&](std::string_view what) {
    return Error(ErrorCode::kCorrupt, std::string(what)).in_tensor(module);
  };
  const auto min = read_float(file, statistics.min), max = read_float(file, statistics.max);
  const auto amax = read_float(file, statistics.amax);
  if (amax && (!(*amax >= 0) || !std::isfinite(*amax)))
    throw refuse(fmt::format("has an input_amax of {}", *amax));
  if (!min && !max) {
    if (!amax) return std::nullopt;
    return InputRange{.min = -*amax, .max = *amax};
  }
  if (!min || !max) {
    throw refuse(fmt::format("needs both input_min and input_max{}",
                             amax ? " beside its input_amax, or neither" : ""));
  }
  if (!std::isfinite(*min) || !std::isfinite(*max) || *min > *max)
    throw refuse(fmt::format("has an input from {} to {}", *min, *max));
  const InputRange range{.min = std::min(*min, 0.0F), .max = std::max(*max, 0.0F)};
  if (amax && *amax != range.amax()) {
    throw refuse(
        fmt::format("has an input_amax of {}, but an input from {} to {}", *amax, *min, *max));
  }
  return range;
}

}  // namespace

void InputRange::include(const InputRange& other) {
  min = std::min(min, other.min);
  max = std::max(max, other.max);
}

ActivationScales ActivationScales::read(const std::filesystem::path& path) {
  const Fd file = Fd::open_for_reading(path);
  ErrorList errors;
  StatisticsHeader header = read_statistics_header(file, errors);
  ActivationScales scales;
  scales.file_ = {path, file.stamp()};
  for (const auto& [module, statistics] : header.modules) {
    try {
      if (const auto range = range_of(file, module, statistics))
        scales.ranges_.emplace(module, *range);
    } catch (const Error& error) {
      errors.add(error);
    }
  }
  try {
    errors.throw_if_any();
  } catch (Error& error) {
    throw error.in_file(path.string());
  }
  scales.filled_ = std::move(header.filled);
  scales.hash_ = formats::hash_file(path);
  return scales;
}

std::optional<InputRange> ActivationScales::find(std::string_view module) const {
  const auto found = ranges_.find(module);
  if (found == ranges_.end()) return std::nullopt;
  return found->second;
}

InputScale symmetric_input_scale(formats::CodeKind code, const InputRange& range, bool divides) {
  const float largest = code == formats::CodeKind::kInt8   ? 127.0F
                        : code == formats::CodeKind::kE2m1 ? 2688.0F
                                                           : 448.0F;
  const float scale = divides ? largest / range.amax() : range.amax() / largest;
  return {.scale = scale > 0 && std::isfinite(scale) ? scale : 1.0F};
}

InputScale asymmetric_input_scale(const InputRange& range) {
  constexpr float kLeast = 0x1p-23F;
  const float scale = std::max((range.max - range.min) / 255.0F, kLeast);
  return {.scale = scale, .offset = std::nearbyint(-range.min / scale) - 128.0F};
}

}  // namespace ingot::convert
