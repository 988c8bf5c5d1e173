#include "convert/recipe/statistics.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <span>

#include <fmt/format.h>

#include "check/stored_hashes.h"
#include "formats/container/safetensors.h"
#include "formats/records/activation_statistics.h"

namespace ingot::convert {

namespace {

using formats::DType;
using formats::StoredTensor;

// The contents of a header.
struct Found {
  std::map<std::string, ModuleStatistics, std::less<>> modules;
  FilledExperts filled;
};

struct Statistic {
  std::string_view suffix;
  std::optional<StatisticPlace> ModuleStatistics::*place;
  bool is_one;  // else one per column
};
constexpr std::array kStatistics = {
    Statistic{formats::kInputMin, &ModuleStatistics::min, true},
    Statistic{formats::kInputMax, &ModuleStatistics::max, true},
    Statistic{formats::kInputAmax, &ModuleStatistics::amax, true},
    Statistic{formats::kInputMeanSquare, &ModuleStatistics::mean_square, false}};

Error corrupt(const StoredTensor& tensor, std::string_view must) {
  return Error(ErrorCode::kCorrupt, "is {} {}, must be {}", formats::dtype_name(tensor.dtype),
               formats::shape_text(tensor.shape), must)
      .in_tensor(tensor.name);
}

// The text before the suffix.
std::string owner_of(const StoredTensor& tensor, std::string_view suffix) {
  return tensor.name.substr(0, tensor.name.size() - suffix.size());
}

bool has_suffix(const StoredTensor& tensor, std::string_view suffix) {
  return tensor.name.size() > suffix.size() && tensor.name.ends_with(suffix);
}

void add_statistic(const StoredTensor& tensor, const Statistic& statistic, Found& found) {
  if (tensor.dtype != DType::kF32 || (statistic.is_one && tensor.n_bytes != sizeof(float)))
    throw corrupt(tensor, statistic.is_one ? "one F32" : "F32 [K]");
  if (!statistic.is_one && (tensor.shape.size() != 1 || tensor.n_bytes == 0))
    throw corrupt(tensor, "F32 [K]");
  found.modules[owner_of(tensor, statistic.suffix)].*
      statistic.place = {.offset = tensor.offset, .count = tensor.n_bytes / sizeof(float)};
}

void add_expert_tokens(const Fd& file, const StoredTensor& tensor, Found& found) {
  if (tensor.dtype != DType::kI64 || tensor.shape.size() != 1) throw corrupt(tensor, "I64 [E]");
  std::vector<std::int64_t> tokens(tensor.n_bytes / sizeof(std::int64_t));
  file.read_exact(std::as_writable_bytes(std::span(tokens)), tensor.offset);
  std::vector<std::uint64_t> unreached;
  for (std::size_t expert = 0; expert < tokens.size(); ++expert) {
    if (tokens[expert] < 0) {
      throw Error(ErrorCode::kCorrupt, "says that expert {} saw {} tokens", expert, tokens[expert])
          .in_tensor(tensor.name);
    }
    if (tokens[expert] == 0) unreached.push_back(expert);
  }
  if (!unreached.empty())
    found.filled.emplace(owner_of(tensor, formats::kExpertTokens), std::move(unreached));
}

void add_tensor(const Fd& file, const StoredTensor& tensor, Found& found) {
  for (const Statistic& statistic : kStatistics) {
    if (has_suffix(tensor, statistic.suffix)) return add_statistic(tensor, statistic, found);
  }
  if (has_suffix(tensor, formats::kExpertTokens)) return add_expert_tokens(file, tensor, found);
  throw Error(ErrorCode::kCorrupt,
              "is none of MODULE.input_min, MODULE.input_max, MODULE.input_amax, "
              "MODULE.input_mean_square, LAYER.expert_tokens")
      .in_tensor(tensor.name);
}

std::optional<float> read_float(const StatisticsFile& file,
                                const std::optional<StatisticPlace>& place) {
  if (!place) return std::nullopt;
  return file.values(*place).front();
}

// Nullopt for modules of which only other statistics are known.
std::optional<InputRange> range_of(const StatisticsFile& file, std::string_view module,
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
                             amax ? " in addition to its input_amax, or neither" : ""));
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

void StatisticsFile::open(
    const std::filesystem::path& path,
    const std::function<void(const std::string&, const ModuleStatistics&)>& take) {
  ErrorList errors;
  const auto collect = [&](const auto& body) {
    try {
      body();
    } catch (const Error& error) {
      errors.add(error);
    }
  };
  file_ = Fd::open_for_reading(path);
  stamp_ = file_.stamp();
  Found found;
  for (const StoredTensor& tensor : formats::read_safetensors_header(file_).tensors)
    collect([&] { add_tensor(file_, tensor, found); });
  filled_ = std::move(found.filled);
  for (const auto& [module, statistics] : found.modules)
    collect([&, &module = module, &statistics = statistics] { take(module, statistics); });
  try {
    errors.throw_if_any();
  } catch (Error& error) {
    throw error.in_file(file_.path());
  }
  hash_ = check::hash_file(file_.path());
}

std::vector<float> StatisticsFile::values(const StatisticPlace& place) const {
  std::vector<float> list(place.count);
  file_.read_exact(std::as_writable_bytes(std::span(list)), place.offset);
  return list;
}

void InputRange::include(const InputRange& other) {
  min = std::min(min, other.min);
  max = std::max(max, other.max);
}

ActivationScales ActivationScales::read(const std::filesystem::path& path) {
  ActivationScales scales;
  scales.open(path, [&](const std::string& module, const ModuleStatistics& statistics) {
    if (const auto range = range_of(scales, module, statistics))
      scales.values_.emplace(module, *range);
  });
  return scales;
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

Importance Importance::read(const std::filesystem::path& path) {
  Importance importance;
  importance.open(path, [&](const std::string& module, const ModuleStatistics& statistics) {
    if (!statistics.mean_square) return;
    const std::vector<float> values = importance.values(*statistics.mean_square);
    const auto bad = std::ranges::find_if_not(
        values, [](float value) { return value >= 0 && std::isfinite(value); });
    if (bad != values.end()) {
      throw Error(ErrorCode::kCorrupt, "has a mean square of {} in column {}", *bad,
                  bad - values.begin())
          .in_tensor(module);
    }
    importance.values_.emplace(module, *statistics.mean_square);
  });
  return importance;
}

}  // namespace ingot::convert
