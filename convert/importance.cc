#include "convert/importance.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "check/stored_hashes.h"
#include "formats/base/error.h"

namespace ingot::convert {
namespace {

using formats::LogicalTensor;
using formats::SchemeId;

bool is_weight(float value) {
  return value >= 0 && std::isfinite(value);
}

// Whether the file knows a tensor's columns; another number of them is refused.
bool knows(const Importance& importance, const LogicalTensor& tensor, Refusals& refusals) {
  const std::string_view module = formats::module_name(tensor.name);
  const auto place = importance.find(module);
  if (!place || place->count == tensor.shape.back()) return place.has_value();
  refusals.add(ErrorCode::kShapeMismatch,
               fmt::format("--importance has {} columns where the weight has {}", place->count,
                           tensor.shape.back()),
               module);
  return false;
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

void set_importance(const formats::TensorSource& source, const Choices& choices, Plan& plan,
                    Refusals& refusals) {
  if (choices.importance == nullptr) return;
  if (choices.nvfp4_search == quantize::Nvfp4Search::kAmax) {
    throw Error(ErrorCode::kInvalidArgument,
                "--importance weights a search of scales, and --nvfp4-search amax is none (use mse "
                "or 4over6)");
  }
  for (PlannedTensor& planned : plan.tensors) {
    const LogicalTensor& tensor = source.tensors()[planned.tensor];
    if (planned.to != SchemeId::kNvfp4 || planned.action != Action::kQuantize) continue;
    if (tensor.encoding.scheme == SchemeId::kMxfp4) continue;  // codes are copied where they can be
    ++plan.n_searched;
    planned.is_weighted = knows(*choices.importance, tensor, refusals);
    if (planned.is_weighted) ++plan.n_weighted;
  }
  refusals.throw_if_any();
  if (plan.n_searched > 0 && plan.n_weighted == 0) {
    throw Error(ErrorCode::kMissingTensor,
                "--importance has mean squares of none of the tensors that become nvfp4 (made from "
                "another model?)");
  }
}

}  // namespace ingot::convert
