#include "convert/recipe/statistics.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <utility>

#include <fmt/format.h>

#include "check/model_fingerprint.h"
#include "formats/base/error.h"
#include "formats/base/fd.h"
#include "formats/base/words.h"
#include "formats/experts/expert_views.h"

namespace ingot::convert {

using formats::CalibrationStatistics;
using formats::StatisticTensor;

namespace {

// All that is known of a module's input.
struct ModuleStatistics {
  std::optional<StatisticTensor> min, max, amax;
};

std::optional<float> read_float(const CalibrationStatistics& file,
                                const std::optional<StatisticTensor>& tensor) {
  if (!tensor) return std::nullopt;
  return file.values(*tensor).front();
}

InputRange range_of(const CalibrationStatistics& file, std::string_view module,
                    const ModuleStatistics& statistics) {
  const auto refuse = [&](std::string_view what) {
    return Error(ErrorCode::kCorrupt, std::string(what)).in_tensor(module);
  };
  const auto min = read_float(file, statistics.min), max = read_float(file, statistics.max);
  const auto amax = read_float(file, statistics.amax);
  if (amax && (!(*amax >= 0) || !std::isfinite(*amax)))
    throw refuse(fmt::format("has an input_amax of {}", *amax));
  if (!min && !max) return InputRange{.min = -*amax, .max = *amax};
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

void Statistics::open(const std::filesystem::path& path) {
  file_ = std::make_shared<const CalibrationStatistics>(CalibrationStatistics::open(path));
  file_->for_each(formats::kExpertTokens,
                  [&](const std::string& layer, const StatisticTensor& tensor) {
                    const std::vector<std::int64_t> tokens = file_->counts(tensor);
                    std::vector<std::uint64_t> unreached;
                    for (std::size_t expert = 0; expert < tokens.size(); ++expert) {
                      if (tokens[expert] == 0) unreached.push_back(expert);
                    }
                    if (!unreached.empty()) filled_.emplace(layer, std::move(unreached));
                  });
}

std::string Statistics::open_other(const std::filesystem::path& path, std::uint64_t most_bytes) {
  const Fd file = Fd::open_for_reading(path);
  std::string text = read_text_file(path, most_bytes);
  TensorHasher hasher;
  hasher.update(std::as_bytes(std::span(text)));
  other_ = Other{.file = {path, file.stamp()}, .hash = hasher.finish()};
  return text;
}

void Statistics::throw_if_any(const ErrorList& errors) const {
  try {
    errors.throw_if_any();
  } catch (Error& error) {
    throw error.in_file((file_ ? file_->path() : other_->file.path).string());
  }
}

std::vector<StampedFile> Statistics::files() const {
  std::vector<StampedFile> files;
  if (!file_) return {other_->file};
  for (const auto& [path, stamp] : file_->stamps()) files.push_back({path, stamp});
  return files;
}

void Statistics::keep_experts(const formats::Checkpoint& whole, const formats::KeptExperts& kept) {
  numbers_.emplace(whole, kept.layers);
  FilledExperts filled;
  for (const auto& [owner, experts] : filled_) {
    const auto layer = number_from(std::string_view(owner).substr(owner.rfind('.') + 1));
    const auto list = layer ? kept.layers.find(*layer) : kept.layers.end();
    if (list == kept.layers.end()) continue;
    for (std::size_t number = 0; number < list->second.size(); ++number) {
      if (std::ranges::binary_search(experts, list->second[number]))
        filled[owner].push_back(number);
    }
  }
  filled_ = std::move(filled);
}

void Statistics::require_made_from(const formats::Checkpoint& source,
                                   std::string_view option) const {
  if (file_) check::require_same_model(*file_, source, option);
}

std::optional<std::string> Statistics::warning(std::string_view option) const {
  if (!file_) {
    return fmt::format("{} {}: scales by layer have no fingerprint of their model", option,
                       other_->file.path.string());
  }
  if (file_->record() != nullptr) return std::nullopt;
  return fmt::format(
      "{} {}: one file of statistics has no fingerprint of its model, so nothing says that it is "
      "this model's (ingot calibrate --out DIRECTORY writes one)",
      option, file_->path().string());
}

std::uint64_t input_matrices(const formats::LogicalTensor& tensor) {
  return tensor.shape.size() == 3 ? tensor.shape.front() : 1;
}

std::vector<std::string> input_modules(const formats::Checkpoint& source,
                                       const formats::LogicalTensor& tensor, std::uint64_t matrix) {
  const std::string_view module = formats::module_name(tensor.name);
  if (tensor.shape.size() < 3) return {std::string(module)};
  if (!formats::is_expert_stack(role_of(tensor))) return {fmt::format("{}.{}", module, matrix)};
  // A rank's stack has other experts than their places in it say.
  if (source.slicing() != nullptr) return {};
  return formats::single_modules(source, tensor, static_cast<std::uint32_t>(matrix));
}

const StatisticTensor* input_statistic(const Statistics& statistics,
                                       const formats::Checkpoint& source,
                                       const formats::LogicalTensor& tensor, std::uint64_t matrix,
                                       std::string_view ending) {
  for (const std::string& module : input_modules(source, tensor, matrix)) {
    if (const StatisticTensor* const found = statistics.find_tensor(module, ending)) return found;
  }
  return nullptr;
}

void InputRange::include(const InputRange& other) {
  min = std::min(min, other.min);
  max = std::max(max, other.max);
}

ActivationScales ActivationScales::read(const std::filesystem::path& path) {
  ActivationScales scales;
  scales.open(path);
  std::map<std::string, ModuleStatistics> modules;
  for (const auto& [ending, member] : {std::pair{formats::kInputMin, &ModuleStatistics::min},
                                       {formats::kInputMax, &ModuleStatistics::max},
                                       {formats::kInputAmax, &ModuleStatistics::amax}}) {
    scales.file().for_each(
        ending, [&, member = member](const std::string& module, const StatisticTensor& tensor) {
          modules[module].*member = tensor;
        });
  }
  ErrorList errors;
  for (const auto& [module, statistics] : modules) {
    try {
      scales.values_.emplace(module, range_of(scales.file(), module, statistics));
    } catch (const Error& error) {
      errors.add(error);
    }
  }
  scales.throw_if_any(errors);
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
  importance.open(path);
  ErrorList errors;
  importance.file().for_each(
      formats::kInputMeanSquare, [&](const std::string& module, const StatisticTensor& tensor) {
        const std::vector<float> values = importance.file().values(tensor);
        const auto bad = std::ranges::find_if_not(
            values, [](float value) { return value >= 0 && std::isfinite(value); });
        if (bad != values.end()) {
          errors.add(ErrorCode::kCorrupt, module, "has a mean square of {} in column {}", *bad,
                     bad - values.begin());
        }
      });
  importance.throw_if_any(errors);
  return importance;
}

}  // namespace ingot::convert
